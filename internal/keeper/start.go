package keeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/subprocess"
)

// startPair starts a nest, which starts a keeper. Both run in a session of their own
// and outlive the agent.
func (c *Client) startPair(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	err := c.runStart(ctx, dir, nil)
	if err != nil {
		_ = os.Remove(dir)
	}
	return err
}

// runStart runs the program that starts a nest, which starts a keeper. From items, unless it is
// nil, the program receives the items for the nest.
func (c *Client) runStart(ctx context.Context, dir string, items *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	defer func() { _ = null.Close() }()
	path := filepath.Join(c.opts.StateDir, "keeper.log")
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("start the keeper: %w", err)
	}
	defer func() { _ = log.Close() }()
	cmd := subprocess.Command(ctx, c.opts.Binary, "start", dir)
	cmd.SysProcAttr.Setpgid, cmd.SysProcAttr.Setsid = false, true // a session is a group too
	cmd.Args[0] = kernel.KeeperName                               // the file may be another program as well
	cmd.Env, cmd.Dir = kernel.SmallEnv(1), "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, log, log
	if items != nil {
		cmd.Args, cmd.ExtraFiles = append(cmd.Args, "3"), []*os.File{items}
	}
	if err := subprocess.RunLeaving(ctx, cmd); err != nil {
		return fmt.Errorf("start the keeper %s: %w: %s: %w", c.opts.Binary, err, lastLine(path), errdefs.ErrUnavailable)
	}
	return nil
}

// lastLine returns the last line of the keeper's log.
func lastLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return lines[len(lines)-1]
}

// lockFile takes an exclusive lock, so that two agents never start two pairs. Closing
// the file releases it.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	done := make(chan error, 1)
	go func() {
		for {
			err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
			if err != unix.EINTR {
				done <- err
				return
			}
		}
	}()
	select {
	case err := <-done:
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("keeper: lock %s: %w", path, err)
		}
		return f, nil
	case <-ctx.Done():
		go func() { _, _ = <-done, f.Close() }() // close only after the lock call has returned
		return nil, ctx.Err()
	}
}
