package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/subprocess"
)

// criuTime bounds criu's own check.
const criuTime = 20 * time.Second

// criuProbe finds out whether CRIU, the program that checkpoints and restores processes, works on
// this node. It runs CRIU's check once and keeps the result.
type criuProbe struct {
	// path is the program; "" is criu in $PATH.
	path string

	once sync.Once
	err  error
}

// check returns nil when CRIU works, NotFound when it is not installed, and FailedPrecondition
// when its own check fails. The first caller waits for the check.
func (p *criuProbe) check(ctx context.Context) error {
	p.once.Do(func() {
		// The check does not end with this caller, because others wait for it too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), criuTime)
		defer cancel()
		p.err = criuCheck(ctx, p.path)
	})
	return p.err
}

func criuCheck(ctx context.Context, path string) error {
	if path == "" {
		path = "criu"
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return fmt.Errorf("criu is not installed: %w", errdefs.ErrNotFound)
	}
	out := &subprocess.Head{Max: 64 << 10}
	cmd := subprocess.Command(ctx, path, "check")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = out, out
	err = subprocess.Run(ctx, cmd)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s check takes longer than %s: %w", path, criuTime, errdefs.ErrFailedPrecondition)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("%s check: %w: %w", path, err, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("%s check: %s: %w", path, criuReason(out.Bytes(), exit.Error()), errdefs.ErrFailedPrecondition)
}

// criuReason returns the first error of a check: those after it follow from it.
func criuReason(out []byte, otherwise string) string {
	for line := range bytes.Lines(out) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "Error "); ok {
			if len(text) > 200 {
				text = text[:200]
			}
			return text
		}
	}
	return otherwise
}
