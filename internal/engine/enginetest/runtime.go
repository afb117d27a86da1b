package enginetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Runtime is a fake core.Runtime on the fake Supervisor.
type Runtime struct {
	fault
	name    string
	sup     *Supervisor
	cgroups *Cgroups
	lock    sync.Mutex // guards kept
	kept    map[core.ID]core.RuntimeCreate
}

var _ core.Runtime = (*Runtime)(nil)

// Name returns the runtime's name.
func (r *Runtime) Name() string { return r.name }

// Features returns a few features.
func (r *Runtime) Features(ctx context.Context) (core.RuntimeFeatures, error) {
	return core.RuntimeFeatures{Version: "1", OCIVersionMax: "1.0.2", Seccomp: true, CgroupV2: true}, r.check(ctx, "Features")
}

// Spec returns the spec of a container's create.
func (r *Runtime) Spec(id core.ID) *specs.Spec {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.kept[id].Spec
}

// errMissing is the error for a program with the name "missing".
var errMissing = &core.StartError{Errno: unix.ENOENT, Err: fmt.Errorf("exec missing: no such file or directory: %w", errdefs.ErrNotFound)}

// Create parks a process.
func (r *Runtime) Create(ctx context.Context, c core.RuntimeCreate) (int, error) {
	if err := r.check(ctx, "Create"); err != nil {
		return 0, err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if _, ok := r.kept[c.ID]; ok {
		return 0, fmt.Errorf("create %s: %w", c.ID, errdefs.ErrAlreadyExists)
	}
	if c.Run && len(c.Spec.Process.Args) > 0 && c.Spec.Process.Args[0] == "missing" {
		return 0, fmt.Errorf("create %s: %w", c.ID, errMissing)
	}
	p, err := r.sup.launch(core.Ref{Container: c.ID}, c.Spec.Process, c.IO, c.Cgroup.Path)
	if err != nil {
		return 0, err
	}
	if r.kept[c.ID] = c; c.Run {
		r.sup.run(p)
	}
	return p.Pid, nil
}

// Start runs the program; one with the name "missing" does not exist.
func (r *Runtime) Start(ctx context.Context, id core.ID) error {
	if err := r.check(ctx, "Start"); err != nil {
		return err
	}
	p := r.sup.Process(core.Ref{Container: id})
	if p == nil {
		return fmt.Errorf("start %s: %w", id, errdefs.ErrNotFound)
	}
	if len(p.Args) > 0 && p.Args[0] == "missing" {
		return fmt.Errorf("start %s: %w", id, errMissing)
	}
	return r.sup.release(p)
}

// Exec runs a further process.
func (r *Runtime) Exec(ctx context.Context, e core.RuntimeExec) (core.Launched, error) {
	if err := r.check(ctx, "Exec"); err != nil {
		return core.Launched{}, err
	}
	if len(e.Spec.Args) > 0 && e.Spec.Args[0] == "missing" {
		return core.Launched{}, errMissing
	}
	r.lock.Lock()
	cgroup := r.kept[e.Ref.Container].Cgroup.Path
	r.lock.Unlock()
	p, err := r.sup.launch(e.Ref, e.Spec, e.IO, cgroup)
	if err != nil {
		return core.Launched{}, err
	}
	l := core.Launched{Pid: p.Pid}
	if e.Attach != nil {
		if l.Streams, err = r.sup.Streams(ctx, e.Ref, *e.Attach); err != nil {
			return core.Launched{}, err
		}
	}
	r.sup.run(p)
	return l, nil
}

// Pause freezes a container.
func (r *Runtime) Pause(ctx context.Context, id core.ID) error {
	return errors.Join(r.check(ctx, "Pause"), r.cgroups.Freeze(ctx, r.cgroup(id), true))
}

// Resume thaws a container.
func (r *Runtime) Resume(ctx context.Context, id core.ID) error {
	return errors.Join(r.check(ctx, "Resume"), r.cgroups.Freeze(ctx, r.cgroup(id), false))
}

func (r *Runtime) cgroup(id core.ID) core.CgroupRef {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.kept[id].Cgroup
}

// Update changes limits.
func (r *Runtime) Update(ctx context.Context, id core.ID, res *specs.LinuxResources) error {
	if err := r.check(ctx, "Update"); err != nil {
		return err
	}
	return r.cgroups.Update(ctx, r.cgroup(id), res)
}

// Delete removes a container.
func (r *Runtime) Delete(ctx context.Context, id core.ID, force bool) error {
	if err := r.check(ctx, "Delete"); err != nil {
		return err
	}
	p := r.sup.Process(core.Ref{Container: id})
	if p != nil {
		select {
		case <-p.Killed:
		default:
			if !force {
				return fmt.Errorf("delete %s: it runs: %w", id, errdefs.ErrFailedPrecondition)
			}
			r.sup.ExitAs(core.Ref{Container: id}, core.Exit{Signal: int(unix.SIGKILL)})
		}
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	delete(r.kept, id)
	return nil
}

// List returns the containers.
func (r *Runtime) List(ctx context.Context) ([]core.ID, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	return slices.Sorted(maps.Keys(r.kept)), r.check(ctx, "List")
}

func (r *Runtime) reboot() {
	r.lock.Lock()
	defer r.lock.Unlock()
	clear(r.kept)
}

// pipe is an unbounded buffer between one writer and one reader.
type pipe struct {
	mu     sync.Mutex // guards buf, closed
	cond   *sync.Cond
	buf    bytes.Buffer
	closed bool
}

func newPipe() *pipe {
	p := &pipe{}
	p.cond = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) write(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.buf.Write(b)
		p.cond.Broadcast()
	}
}

func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.cond.Broadcast()
}

// Read blocks until there are bytes, or the end.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.buf.Len() == 0 {
		if p.closed {
			return 0, io.EOF
		}
		p.cond.Wait()
	}
	return p.buf.Read(b)
}

// appendSink writes to a sink as the keeper does.
func appendSink(s core.Sink, stream int, b []byte) error {
	f, err := os.OpenFile(s.Path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	out := b
	if s.Format.Records() {
		out = nil
		name := "stdout"
		if stream == 2 {
			name = "stderr"
		}
		for line := range bytes.Lines(b) {
			tag := "P "
			if text, whole := bytes.CutSuffix(line, []byte{'\n'}); whole {
				tag, line = "F ", text
			}
			if s.Format == core.FormatCRIPlain {
				tag = ""
			}
			out = fmt.Appendf(out, "%s %s %s%s\n", time.Now().UTC().Format("2006-01-02T15:04:05.000000000Z"), name, tag, line)
		}
	}
	_, err = f.Write(out)
	return errors.Join(err, f.Close())
}
