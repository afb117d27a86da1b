// Package criu asks whether CRIU, the program that saves and restores processes,
// works on this node: whether it is there, and what its own check says of this
// kernel.
//
// It knows nothing of containers. Start at Probe.
package criu

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
)

// patience is how long the check may take.
const patience = 20 * time.Second

// Probe asks once and remembers the answer. The zero Probe looks for criu in
// $PATH.
type Probe struct {
	// Path is the program; "" is criu in $PATH.
	Path string

	once sync.Once
	err  error
}

// Check returns nil when CRIU works, or else why it does not: NotFound when there
// is none, FailedPrecondition when its own check fails. Whoever asks first waits
// for the check.
func (p *Probe) Check(ctx context.Context) error {
	p.once.Do(func() {
		// The answer is not this caller's alone.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		p.err = check(ctx, p.Path)
	})
	return p.err
}

func check(ctx context.Context, path string) error {
	if path == "" {
		path = "criu"
	}
	path, err := exec.LookPath(path)
	if err != nil {
		return fmt.Errorf("criu is not installed: %w", errdefs.ErrNotFound)
	}
	cmd := exec.CommandContext(ctx, path, "check")
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	out, err := cmd.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%s check takes longer than %s: %w", path, patience, errdefs.ErrFailedPrecondition)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("%s check: %w: %w", path, err, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("%s check: %s: %w", path, reason(out, exit.Error()), errdefs.ErrFailedPrecondition)
}

// reason is the first error of a check: those after it follow from it.
func reason(out []byte, otherwise string) string {
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
