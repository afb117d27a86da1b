package ocicli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// paused is the only state that the runtime spec does not have.
const paused specs.ContainerState = "paused"

// process reads from /proc when a process started, in ticks since boot, and whether it
// still runs; a zombie does not.
func process(pid int) (ticks uint64, alive bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	// The name in parentheses may contain anything.
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) < 20 {
		return 0, false
	}
	ticks, err = strconv.ParseUint(f[19], 10, 64)
	return ticks, err == nil && f[0] != "Z" && f[0] != "X"
}

// alive reports whether the main process still runs and its pid was not reused.
func (c *container) alive() bool {
	if c.Pid == 0 {
		return false
	}
	ticks, alive := process(c.Pid)
	return alive && ticks == c.Ticks
}

// pidfd opens the main process. It fails with NotFound if that has ended.
func (c *container) pidfd() (int, error) {
	gone := fmt.Errorf("container %s: container not running: %w", c.ID, errdefs.ErrNotFound)
	if c.Pid == 0 {
		return -1, gone
	}
	fd, err := unix.PidfdOpen(c.Pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, gone
	}
	if err != nil {
		return -1, os.NewSyscallError("pidfd_open", err)
	}
	if !c.alive() { // checked after the open: the pid cannot be reused any more
		_ = unix.Close(fd)
		return -1, gone
	}
	return fd, nil
}

// parked reports whether the main process waits before its program: it is the only
// process that opens the FIFO for reading, and execve closes it.
func (c *container) parked() bool {
	fd, err := unix.Open(c.path(startFifo), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// status determines the state from the kernel, because a record can be outdated.
func (a *app) status(c *container) specs.ContainerState {
	if !c.alive() {
		// If this command holds the lock itself, no create is running.
		if c.Pid == 0 && c.lock == nil && c.busy() {
			return specs.StateCreating
		}
		return specs.StateStopped
	}
	if c.parked() {
		if c.First == 0 {
			return specs.StateCreating // its hooks of the creation are still to run
		}
		return specs.StateCreated
	}
	if t, err := a.cgroups(); err == nil && t.Frozen(c.ref()) {
		return paused
	}
	return specs.StateRunning
}

func (a *app) state(c *container) specs.State {
	s := specs.State{Version: specs.Version, ID: c.ID, Status: a.status(c), Bundle: c.Bundle, Annotations: c.Annotations}
	if s.Status != specs.StateStopped && s.Status != specs.StateCreating {
		s.Pid = c.Pid
	}
	return s
}

// listed is the output of state and list: runc's format, which starts with the spec's.
type listed struct {
	specs.State
	Pid     int       `json:"pid"` // printed even if it is 0
	Rootfs  string    `json:"rootfs"`
	Created time.Time `json:"created"`
	Owner   string    `json:"owner"`
}

func (a *app) listed(c *container) listed {
	s := a.state(c)
	return listed{State: s, Pid: s.Pid, Rootfs: c.Rootfs, Created: c.Created, Owner: "root"}
}

func stateCmd(_ context.Context, a *app, args []string) error {
	id, _, err := a.id(a.flags("state", "ID"), args)
	if err != nil {
		return err
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	return a.printJSON(a.listed(c))
}

func (a *app) printJSON(v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return a.print("%s\n", b)
}

func listCmd(_ context.Context, a *app, args []string) error {
	f := a.flags("list", "")
	format := f.String("format", "table", "table or json")
	f.StringVar(format, "f", "table", "table or json")
	quiet := f.Bool("quiet", false, "print IDs only")
	f.BoolVar(quiet, "q", false, "print IDs only")
	if err := f.Parse(args); err != nil {
		return usage(err)
	}
	entries, err := os.ReadDir(a.root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	all := []listed{}
	for _, e := range entries {
		if validID(e.Name()) != nil {
			continue
		}
		c, err := a.load(e.Name())
		if err != nil {
			a.logTo.warn("%v", err)
			continue
		}
		all = append(all, a.listed(c))
	}
	switch {
	case *quiet:
		for _, l := range all {
			if err := a.print("%s\n", l.ID); err != nil {
				return err
			}
		}
		return nil
	case *format == "json":
		b, err := json.Marshal(all)
		if err != nil {
			return err
		}
		return a.print("%s\n", b)
	case *format != "table":
		return fmt.Errorf("--format %q: want table or json: %w", *format, errdefs.ErrInvalidArgument)
	}
	w := tabwriter.NewWriter(a.o.Stdout, 12, 1, 3, ' ', 0)
	_, _ = fmt.Fprint(w, "ID\tPID\tSTATUS\tBUNDLE\tCREATED\n")
	for _, l := range all {
		_, _ = fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", l.ID, l.Pid, l.Status, l.Bundle, l.Created.Format(time.RFC3339Nano))
	}
	return w.Flush()
}
