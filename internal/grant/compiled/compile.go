package compiled

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/flight"
	"github.com/longshore/longshore/internal/subprocess"
	"github.com/longshore/longshore/internal/turns"
)

// ChildArg makes longshore-wasm compile the module on its standard input and write the result to its standard output. Its second argument
// is the only directory that it can access. Its exit status is StatusLocal after an error of the machine, such as a full disk.
const (
	ChildArg    = "compile-child"
	StatusLocal = 3
)

// Bounds of a compilation. The child limits its memory and processor time by itself, before it reads.
const (
	ChildSeconds = 60 // of the processor
	ChildMemory  = 1 << 30
	childTimeout = 3 * ChildSeconds * time.Second
)

// Bounds of all compilations.
const (
	minSlots   = 2
	maxSlots   = 16
	maxWaiting = 64 // starts of one owner, and as many other requests
	// defaultPatience is how long a start waits for a slot. After that the container compiles its module itself.
	defaultPatience = 10 * time.Second
)

// slotsHere returns how many modules this machine compiles at once.
func slotsHere() int {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return minSlots
	}
	return slotsFor(runtime.NumCPU(), uint64(info.Totalram)*uint64(info.Unit)) //nolint:unconvert // some architectures differ
}

// slotsFor limits compilations to half of the processors and a quarter of the memory. It returns at least 2, because one slot is reserved
// for other owners.
func slotsFor(processors int, memory uint64) int {
	const share = 4
	return min(max(minSlots, min(processors/2, int(memory/share/ChildMemory))), maxSlots)
}

// compilation compiles one module for all of its waiting callers.
type compilation struct {
	key    Key
	turn   *turns.Turn
	module *os.File // a descriptor of its own, because the first caller may leave
	err    error    // of opening module
}

func (c *Cache) prepare(key Key, module *os.File) *compilation {
	w := &compilation{key: key, turn: c.turns.New()}
	w.module, w.err = os.Open(fmt.Sprintf("/proc/self/fd/%d", module.Fd()))
	return w
}

// run waits for a slot and compiles the module. The end of ctx stops both.
func (c *Cache) run(ctx context.Context, w *compilation) error {
	if w.err != nil {
		return w.err
	}
	defer func() { _ = w.module.Close() }()
	if err := w.turn.Wait(ctx); err != nil {
		return err
	}
	defer w.turn.Release()
	if f := c.entry(w.key); f != nil {
		return f.Close() // it was compiled just before this began
	}
	if c.hasFailed(w.key) {
		return errFailed
	}
	err := c.compile(ctx, w)
	if err != nil && ctx.Err() == nil && !isLocal(err) {
		c.fail(w.key)
	}
	return err
}

// isLocal reports whether this machine caused the error, for example by a full disk. The module may then be compiled again later.
func isLocal(err error) bool {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, ok := exit.Sys().(syscall.WaitStatus)
		used := exit.UserTime() + exit.SystemTime()
		killed := ok && status.Signaled() && status.Signal() == unix.SIGKILL && used < (ChildSeconds-1)*time.Second
		return exit.ExitCode() == StatusLocal || killed // by the OOM killer, not by the CPU limit
	}
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// awaitTurn waits until the compilation has a slot, at most c.patience.
func (c *Cache) awaitTurn(ctx context.Context, work *flight.Flight[string, *compilation]) error {
	late := time.NewTimer(c.patience)
	defer late.Stop()
	select {
	case <-work.State.turn.Started():
	case <-work.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-late.C:
		c.mu.Lock()
		c.alone++
		c.mu.Unlock()
		return fmt.Errorf("it had no turn within %s: %w", c.patience, turns.ErrFull)
	}
	return nil
}

// compileInChild compiles a module in a confined child, and keeps the result. Preconditions: it is the module's turn.
func (c *Cache) compileInChild(ctx context.Context, w *compilation) error {
	scratch, err := os.MkdirTemp(c.dir, partPrefix)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	out, err := os.OpenFile(filepath.Join(scratch, "out"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = out.Close() }()
	child := filepath.Join(scratch, "child")
	if err := os.Mkdir(child, 0o700); err != nil {
		return err
	}
	if err := c.runChild(ctx, child, w.module, out); err != nil {
		return err
	}
	size, err := out.Seek(0, io.SeekEnd)
	if err == nil && size > MaxEntry-maxHeader-sha256.Size {
		err = fmt.Errorf("what comes of it has %d bytes", size)
	}
	if err != nil {
		return err
	}
	part := filepath.Join(scratch, "entry")
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = errors.Join(seal(f, w.key, io.NewSectionReader(out, 0, size), size), f.Close())
	if err == nil {
		err = os.Rename(part, filepath.Join(c.dir, w.key.Name()))
	}
	if err != nil {
		return err
	}
	_, err = c.remove(c.limit, func(e os.FileInfo) bool { return e.Name() != w.key.Name() })
	return err
}

func (c *Cache) runChild(ctx context.Context, dir string, module, out *os.File) error {
	ctx, cancel := context.WithTimeoutCause(ctx, childTimeout, errors.New("it takes too long"))
	defer cancel()
	cmd := subprocess.Command(ctx, c.program, ChildArg, dir)
	cmd.Env = []string{}
	cmd.Dir = dir
	const most = 4096
	stderr := &subprocess.Head{Max: most}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = module, out, stderr
	err := subprocess.Run(ctx, cmd)
	by, text, _ := bytes.Cut(stderr.Bytes(), []byte("\n"))
	if err != nil {
		return fmt.Errorf("%w: %s", err, bytes.ToValidUTF8(bytes.TrimSpace(text), []byte("?")))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.confined = string(bytes.ToValidUTF8(by, []byte("?")))
	return nil
}
