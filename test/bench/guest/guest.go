// Package guest measures longshore-guest: its file, its start and its memory beside a bare
// server (test/bench/bareagent), and containers beside runc by its command line.
//
// It needs the right to make containers and a place where remnants die at the end: the bench's
// namespaces, or a machine in QEMU (TestFigures of test/kata). Start at Measure.
package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// Options are the parameters of Measure.
type Options struct {
	Agent  string // the program longshore-guest
	Bare   string // the program bareagent
	Runc   string // runc's program; "" leaves out the comparison
	Dir    string // an empty directory, not on a network
	Cgroup string // a cgroup for containers below each hierarchy's root, absolute
	// Starts and Runs are how often each is started, and how often containers are.
	Starts, Runs int
	Out          io.Writer
}

// rest is how long an agent had no call when the memory beside containers is read.
const rest = 4 * time.Second

// containers are how many run while their agent's memory is read.
const containers = 20

// The bounds of the figures.
const (
	maxFile      = 10e6      // bytes
	maxStart     = 1.3       // times the bare server's
	maxPrivate   = 4096      // KiB more than the bare server's
	maxResident  = 20 * 1024 // KiB
	maxOverRunc  = 0.5       // times runc's
	checkTimeout = time.Minute
)

// Results are the results, in the order of the table.
type Results struct {
	File, BareFile   int64           // bytes
	Start, BareStart []time.Duration // sorted
	Idle, Full       Memory
	BareMemory       Memory
	Run, RuncRun     []time.Duration // sorted; create and start
	Exec, RuncExec   []time.Duration // sorted
	HaveRunc         bool
}

// Measure takes them and prints them, each with its bound and with the reference's published
// figure.
func Measure(ctx context.Context, o Options) (f Results, err error) {
	if f.File, err = size(o.Agent); err != nil {
		return f, err
	}
	if f.BareFile, err = size(o.Bare); err != nil {
		return f, err
	}
	root, err := busybox(filepath.Join(o.Dir, "root"))
	if err != nil {
		return f, err
	}
	if err := f.starts(ctx, o); err != nil {
		return f, fmt.Errorf("start: %w", err)
	}
	if err := f.work(ctx, o, root); err != nil {
		return f, err
	}
	if o.Runc != "" {
		f.HaveRunc = true
		if err := f.runc(ctx, o, root); err != nil {
			return f, fmt.Errorf("runc: %w", err)
		}
	}
	return f, f.print(o.Out)
}

func size(path string) (int64, error) {
	i, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return i.Size(), nil
}

// starts times both servers by turns.
func (f *Results) starts(ctx context.Context, o Options) error {
	for i := range o.Starts + warmUp {
		ours, err := o.agent(ctx, fmt.Sprintf("start%d", i))
		if err != nil {
			return err
		}
		if err := ours.stop(); err != nil {
			return err
		}
		bare, err := o.bare(ctx, fmt.Sprintf("bare%d", i))
		if err != nil {
			return err
		}
		if i == o.Starts {
			f.BareMemory, err = MemoryOf(bare.cmd.Process.Pid)
		}
		if err := errors.Join(err, bare.stop()); err != nil {
			return err
		}
		if i >= warmUp {
			f.Start, f.BareStart = append(f.Start, ours.took), append(f.BareStart, bare.took)
		}
	}
	slices.Sort(f.Start)
	slices.Sort(f.BareStart)
	return nil
}

// warmUp is how often each is started before it counts.
const warmUp = 2

// work measures one agent from its first call to twenty containers.
func (f *Results) work(ctx context.Context, o Options, root string) (err error) {
	s, err := o.agent(ctx, "work")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	c := client{s: s, root: root}
	// It has begun when this is answered, which a Check does not wait for.
	if _, err := c.agent().GetGuestDetails(ctx, &katav1.GuestDetailsRequest{}); err != nil {
		return fmt.Errorf("GetGuestDetails: %w", err)
	}
	if f.Idle, err = s.memory(ctx); err != nil {
		return err
	}
	if err := c.sandbox(ctx); err != nil {
		return err
	}
	for i := range o.Runs + warmUp {
		run, exec, err := c.cycle(ctx, fmt.Sprintf("c%d", i))
		if err != nil {
			return err
		}
		if i >= warmUp {
			f.Run, f.Exec = append(f.Run, run), append(f.Exec, exec)
		}
	}
	slices.Sort(f.Run)
	slices.Sort(f.Exec)
	for i := range containers {
		if err := c.run(ctx, fmt.Sprintf("m%d", i)); err != nil {
			return err
		}
	}
	// Memory of calls is freed soon after the last.
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if f.Full, err = s.memory(ctx); err != nil {
		return err
	}
	for i := range containers {
		if err := c.remove(ctx, fmt.Sprintf("m%d", i)); err != nil {
			return err
		}
	}
	return nil
}

// busybox makes a container's root.
func busybox(dir string) (string, error) {
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return "", fmt.Errorf("busybox-static is not installed: %w", err)
	}
	for _, d := range []string{"bin", "proc", "dev", "sys", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	for _, name := range []string{"sleep", "true"} {
		if err := os.WriteFile(filepath.Join(dir, "bin", name), program, 0o755); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// runc does the agent's work with the command line of runc.
func (f *Results) runc(ctx context.Context, o Options, root string) error {
	r, err := newRunc(o, root)
	if err != nil {
		return err
	}
	for i := range o.Runs + warmUp {
		run, exec, err := r.cycle(ctx, fmt.Sprintf("r%d", i))
		if err != nil {
			return err
		}
		if i >= warmUp {
			f.RuncRun, f.RuncExec = append(f.RuncRun, run), append(f.RuncExec, exec)
		}
	}
	slices.Sort(f.RuncRun)
	slices.Sort(f.RuncExec)
	return nil
}

// Look returns runc's program, "" if there is none.
func Look() string {
	path, err := exec.LookPath("runc")
	if err != nil {
		return ""
	}
	return path
}
