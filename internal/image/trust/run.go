package trust

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/subprocess"
)

// maxOutput is how much of a program's output is kept, in bytes. The rest is read and dropped, so
// that the program does not block.
const maxOutput = 32 << 10

// nobody is the user and group that run programs which need no rights.
const nobody = 65534

// askVerifiers runs the administrator's verifier programs, as containerd does. All must accept
// the image.
func (c *Case) askVerifiers(ctx context.Context, target ocispec.Descriptor) error {
	cfg := c.gate.cfg
	if cfg.Verifiers == "" {
		return nil
	}
	entries, err := os.ReadDir(cfg.Verifiers) // sorted
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return cannot("%w", err)
	}
	if n := cfg.MaxVerifiers; n >= 0 && len(entries) > n {
		c.gate.log.WarnContext(ctx, "more image verifiers than images.policy.max_verifiers; the others are not run", "directory", cfg.Verifiers, "found", len(entries), "asked", n)
		entries = entries[:n]
	}
	desc, err := json.Marshal(target)
	if err != nil {
		return cannot("%w", err)
	}
	for _, e := range entries {
		res, err := run{
			path:  filepath.Join(cfg.Verifiers, e.Name()),
			args:  []string{"-name", c.name, "-digest", target.Digest.String(), "-stdin-media-type", ocispec.MediaTypeDescriptor},
			stdin: desc, timeout: time.Duration(cfg.VerifierTimeout), log: c.gate.log,
		}.do(ctx)
		if err != nil {
			return err
		}
		if res.code != 0 {
			return refused("the verifier %s refuses it (exit status %d): %s", e.Name(), res.code, res.reason)
		}
		c.gate.log.DebugContext(ctx, "image verifier", "verifier", e.Name(), "image", c.name, "digest", target.Digest, "reason", res.reason)
	}
	return nil
}

// run is one program to run.
type run struct {
	path    string
	args    []string
	stdin   []byte
	timeout time.Duration
	log     *slog.Logger
	// confine takes all rights, the network and the environment from the program.
	confine bool
}

// result is a program's output and exit status.
type result struct {
	code   int
	reason string
}

// do runs the program, and everything that it starts, until it ends or its time is over. An error
// means that there is no verdict.
func (r run) do(ctx context.Context) (result, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("%s took longer than %s: %w", r.path, r.timeout, errdefs.ErrUnavailable))
	defer cancel()
	cmd := subprocess.Command(ctx, r.path, r.args...)
	if r.confine {
		cmd.Env, cmd.Dir = []string{}, "/"
		r.dropRights(cmd.SysProcAttr)
	}
	var out, said bounded
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(r.stdin), &out, &said
	err := subprocess.Run(ctx, cmd)
	if errors.Is(err, os.ErrPermission) && r.confine {
		err = fmt.Errorf("%w (it is run as the user %d)", err, nobody)
	}
	r.tell(&said)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return result{}, fmt.Errorf("policy: %w", context.Cause(ctx))
	case err == nil:
		return result{0, out.text()}, nil
	case errors.As(err, &exit) && exit.Exited():
		return result{exit.ExitCode(), out.text()}, nil
	}
	return result{}, cannot("run %s: %w", r.path, err)
}

// dropRights runs the program as nobody and without a network, if we are root.
func (r run) dropRights(a *syscall.SysProcAttr) {
	if os.Geteuid() != 0 {
		return
	}
	a.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	a.Cloneflags = syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC
}

// tell logs the program's output besides its verdict.
func (r run) tell(said *bounded) {
	lines := bufio.NewScanner(strings.NewReader(said.text()))
	for lines.Scan() {
		r.log.Debug("image verifier", "verifier", filepath.Base(r.path), "line", lines.Text())
	}
}

// bounded keeps the first maxOutput bytes that are written to it.
type bounded struct {
	mu   sync.Mutex // guards kept, more
	kept bytes.Buffer
	more bool
}

var _ io.Writer = (*bounded)(nil)

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	room := min(len(p), maxOutput-b.kept.Len())
	b.kept.Write(p[:room])
	b.more = b.more || room < len(p)
	return len(p), nil
}

func (b *bounded) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := strings.TrimSpace(b.kept.String())
	if b.more {
		s += " (cut)"
	}
	return s
}
