package plugins

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/subprocess"
)

const (
	// maxOutput and maxComplaint are how much of a plugin's standard output and standard error
	// is read, in bytes.
	maxOutput    = 4 << 20
	maxComplaint = 4 << 10
	// busyTime is how long a plugin is tried again that is just being written, and busyPause the
	// time between two tries.
	busyTime  = 5 * time.Second
	busyPause = 200 * time.Millisecond
)

// Exec runs plugins, for libcni. A call ends with its plugin, even if a child of the plugin still
// has its output open, and the end of the call's context kills the plugin's process group.
type Exec struct {
	version.PluginDecoder
	// Timeout bounds one call of a plugin.
	Timeout time.Duration
}

var _ invoke.Exec = (*Exec)(nil)

// FindInPath implements invoke.Exec.
func (e *Exec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin implements invoke.Exec.
func (e *Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	late := fmt.Errorf("it has not ended after %s: %w", e.Timeout, context.DeadlineExceeded)
	ctx, cancel := context.WithTimeoutCause(ctx, e.Timeout, late)
	defer cancel()
	for busy := time.Now().Add(busyTime); ; {
		out, err := run(ctx, path, stdin, environ)
		if !errors.Is(err, unix.ETXTBSY) || time.Now().After(busy) {
			return out, err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

func run(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	out, stderr := &subprocess.Head{Max: maxOutput}, &subprocess.Head{Max: maxComplaint}
	cmd := subprocess.Command(ctx, path)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environ, bytes.NewReader(stdin), out, stderr
	err := subprocess.RunLeaving(ctx, cmd)
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("CNI plugin %s was killed: %w", filepath.Base(path), context.Cause(ctx))
	case errors.Is(err, unix.ETXTBSY):
		return nil, err
	case err != nil:
		return nil, failure(err, out.Bytes(), stderr)
	case out.Truncated():
		return nil, fmt.Errorf("CNI plugin %s wrote more than %d bytes", filepath.Base(path), maxOutput)
	}
	return out.Bytes(), nil
}

// failure returns the error that a failed plugin has printed, as libcni's own exec does.
func failure(err error, out []byte, stderr *subprocess.Head) error {
	printed := types.Error{}
	switch {
	case len(out) == 0 && len(stderr.Bytes()) == 0:
		printed.Msg = fmt.Sprintf("the plugin failed without a message: %v", err)
	case len(out) == 0:
		printed.Msg = fmt.Sprintf("the plugin failed: %v: %q", err, stderr)
	default:
		if bad := json.Unmarshal(out, &printed); bad != nil {
			printed.Msg = fmt.Sprintf("the plugin failed: %v: its message %.500q is not CNI's: %v", err, out, bad)
		}
	}
	return &printed
}

// Classify gives a plugin's error a class where CNI's code has one.
func Classify(err error) error {
	var refusal *types.Error
	if !errors.As(err, &refusal) {
		return err
	}
	switch refusal.Code {
	case types.ErrTryAgainLater, types.ErrPluginNotAvailable, types.ErrLimitedConnectivity:
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	case types.ErrInvalidNetworkConfig, types.ErrInvalidEnvironmentVariables, types.ErrUnsupportedField, types.ErrIncompatibleCNIVersion:
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	default:
		return err
	}
}
