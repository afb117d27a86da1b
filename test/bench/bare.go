package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/runtime/native"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/test/bench/machine"
)

// bare compares the native runtime by itself with the command lines of crun and
// runc: the same bundle, the same spec, run to its end and deleted, and a
// command in a running one.
func (b *bench) bare(ctx context.Context) error {
	if !b.ours() {
		return nil
	}
	_, noRunc := exec.LookPath("runc")
	_, noCrun := exec.LookPath("crun")
	if noRunc != nil && noCrun != nil {
		fmt.Printf("%-28s neither crun nor runc is installed\n", "native beside others")
		return nil
	}
	r, err := b.newBareRig(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	oursStart, err := b.bareStarts(ctx, r)
	if err != nil {
		return err
	}
	took, err := r.times(ctx, func(i int) error { _, err := r.run(ctx, i, true); return err })
	if err != nil {
		return fmt.Errorf("native run: %w", err)
	}
	b.row("", "native: run /bin/true", took)
	ours := middle(took)
	if took, err = r.execs(ctx); err != nil {
		return err
	}
	b.row("", "native: exec /bin/true", took)
	oursExec := middle(took)
	for _, name := range []string{"crun", "runc"} {
		program, err := exec.LookPath(name)
		if err != nil {
			fmt.Printf("%-28s not installed\n", name)
			continue
		}
		c := command{rig: r, program: program, root: filepath.Join(r.dir, name)}
		run, execs, err := c.measure(ctx)
		if err != nil {
			return err
		}
		b.row("", name+": run /bin/true", run)
		b.row("", name+": exec /bin/true", execs)
		fmt.Printf("%-28s %8.1f times native's run, %.1f times its start, %.1f times its exec (p50)\n", name, float64(middle(run))/float64(ours), float64(middle(run))/float64(oursStart), float64(middle(execs))/float64(oursExec))
	}
	return nil
}

// bareStarts shows the part of a container's life until its program runs, asked
// for at once, as crun run does it, and in two calls; the first is returned.
func (b *bench) bareStarts(ctx context.Context, r *bareRig) (atOnce time.Duration, err error) {
	for _, way := range []struct {
		label string
		once  bool
	}{{"native: start", true}, {"native: create, then start", false}} {
		var started []time.Duration
		_, err := r.times(ctx, func(i int) error {
			start, err := r.run(ctx, i, way.once)
			started = append(started, start)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("%s: %w", way.label, err)
		}
		b.row("", way.label, started)
		if way.once {
			atOnce = middle(started)
		}
	}
	return atOnce, nil
}

// bareRig is a keeper and a native runtime without an agent, and a bundle.
type bareRig struct {
	dir    string
	n      int
	spec   *specs.Spec
	tree   *cgroup.Tree
	keeper *keeper.Client
	native *native.Runtime
	spare  *pin.Spare
	exits  chan core.ProcessExit
	known  []core.Ref // known unacknowledged ends
	stop   context.CancelFunc
}

func (b *bench) newBareRig(ctx context.Context) (_ *bareRig, err error) {
	if err := machine.HideUnified(); err != nil {
		return nil, err
	}
	r := &bareRig{dir: filepath.Join(b.server.State, "bare"), n: 2 * b.pods, spare: pin.NewSpare(), exits: make(chan core.ProcessExit)}
	if err := r.makeBundle(ctx); err != nil {
		return nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	if r.tree, err = cgroup.New(cgroup.Options{Root: "/" + machine.Name() + "/bare", Logger: quiet}); err != nil {
		return nil, err
	}
	if r.keeper, err = keeper.New(ctx, keeper.Options{StateDir: filepath.Join(r.dir, "k"), Binary: filepath.Join(b.server.Bin, "longshore-keeper"), Logger: quiet}); err != nil {
		return nil, err
	}
	host, err := compile.ReadHost()
	if err != nil {
		return nil, err
	}
	if r.native, err = native.New(native.Options{Dir: filepath.Join(r.dir, "n"), Launcher: r.keeper, Supervisor: r.keeper, Cgroups: r.tree, Host: host, Spare: r.spare.Take, Logger: quiet}); err != nil {
		return nil, err
	}
	var watch context.Context
	watch, r.stop = context.WithCancel(ctx)
	go func() {
		for x, err := range r.keeper.Exits(watch) {
			if err != nil {
				return
			}
			select {
			case r.exits <- x:
			case <-watch.Done():
				return
			}
		}
	}()
	return r, nil
}

// makeBundle makes a root with busybox alone, and runc's default spec, with the pods' limits.
func (r *bareRig) makeBundle(ctx context.Context) error {
	bin := filepath.Join(r.dir, "bundle", "rootfs", "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return err
	}
	for _, name := range []string{"true", "sleep"} {
		if err := os.WriteFile(filepath.Join(bin, name), busybox, 0o755); err != nil {
			return err
		}
	}
	bundle := filepath.Join(r.dir, "bundle")
	root := filepath.Join(bundle, "rootfs")
	if err := unix.Mount(root, root, "", unix.MS_BIND, ""); err != nil { // native wants a mount point
		return err
	}
	for _, program := range []string{"runc", "crun"} {
		_ = os.Remove(filepath.Join(bundle, "config.json"))
		if err = exec.CommandContext(ctx, program, "spec", "--bundle", bundle).Run(); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("a spec by runc or crun: %w", err)
	}
	b, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		return err
	}
	r.spec = &specs.Spec{}
	if err := json.Unmarshal(b, r.spec); err != nil {
		return err
	}
	limit, pids, shares := int64(128<<20), int64(1000), uint64(102)
	r.spec.Process.Terminal = false
	r.spec.Process.Args = []string{"/bin/true"}
	r.spec.Root.Readonly = false
	r.spec.Linux.Resources = &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit}, Pids: &specs.LinuxPids{Limit: &pids}, CPU: &specs.LinuxCPU{Shares: &shares},
	}
	return nil
}

func (r *bareRig) close() {
	r.stop()
	_ = r.spare.Close()
	_ = r.keeper.Close()
}

// times runs f as often as the rig says. The time excludes the acknowledgement of exits, which
// comes after the answer.
func (r *bareRig) times(ctx context.Context, f func(i int) error) ([]time.Duration, error) {
	took := make([]time.Duration, 0, r.n)
	for i := range r.n {
		t := time.Now()
		err := f(i)
		took = append(took, time.Since(t))
		for _, ref := range r.known {
			err = errors.Join(err, r.keeper.Ack(ctx, ref), r.keeper.Forget(ctx, ref))
		}
		if r.known = r.known[:0]; err != nil {
			return nil, err
		}
	}
	return took, nil
}

// ended waits for the next exit.
func (r *bareRig) ended(ctx context.Context) error {
	select {
	case x := <-r.exits:
		r.known = append(r.known, x.Ref)
		if x.Exit.Status() != 0 {
			return fmt.Errorf("exit status %d", x.Exit.Status())
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// create makes a container with a running program, in one call or in two.
func (r *bareRig) create(ctx context.Context, id core.ID, once bool, args ...string) (core.CgroupRef, error) {
	spec := *r.spec
	process := *spec.Process
	process.Args = args
	spec.Process = &process
	bundle := filepath.Join(r.dir, string(id))
	if err := os.Mkdir(bundle, 0o700); err != nil {
		return core.CgroupRef{}, err
	}
	spec.Root = &specs.Root{Path: filepath.Join(r.dir, "bundle", "rootfs")}
	ref, err := r.tree.Place(core.Cgroup{}, core.CgroupRef{Path: r.tree.Root()}, string(id))
	if err != nil {
		return ref, err
	}
	if _, err := r.native.Create(ctx, core.RuntimeCreate{ID: id, Bundle: bundle, Spec: &spec, Cgroup: ref, Levels: []core.CgroupRef{ref}, Run: once}); err != nil || once {
		return ref, err
	}
	return ref, r.native.Start(ctx, id)
}

func (r *bareRig) delete(ctx context.Context, id core.ID, ref core.CgroupRef) error {
	return errors.Join(r.native.Delete(ctx, id, true), r.tree.Remove(ctx, ref), os.RemoveAll(filepath.Join(r.dir, string(id))))
}

// run is a container's whole life; start is how long it took to run.
func (r *bareRig) run(ctx context.Context, i int, once bool) (start time.Duration, err error) {
	id, t := core.ID(fmt.Sprintf("bare-%d", i)), time.Now()
	ref, err := r.create(ctx, id, once, "/bin/true")
	if err != nil {
		return 0, err
	}
	start = time.Since(t)
	return start, errors.Join(r.ended(ctx), r.delete(ctx, id, ref))
}

func (r *bareRig) execs(ctx context.Context) ([]time.Duration, error) {
	id := core.ID("bare-exec")
	ref, err := r.create(ctx, id, true, "/bin/sleep", "3600")
	if err != nil {
		return nil, err
	}
	p := *r.spec.Process
	took, err := r.times(ctx, func(i int) error {
		_, err := r.native.Exec(ctx, core.RuntimeExec{Ref: core.Ref{Container: id, Process: core.ProcessID(fmt.Sprint(i))}, Bundle: filepath.Join(r.dir, string(id)), Spec: &p})
		if err != nil {
			return err
		}
		return r.ended(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("native exec: %w", err)
	}
	_ = r.keeper.Signal(ctx, core.Ref{Container: id}, int(unix.SIGKILL))
	select {
	case x := <-r.exits:
		_, _ = r.keeper.Ack(ctx, x.Ref), r.keeper.Forget(ctx, x.Ref)
	case <-ctx.Done():
	}
	return took, r.delete(ctx, id, ref)
}

// command is an OCI runtime's command line.
type command struct {
	rig     *bareRig
	program string
	root    string
}

func (c *command) do(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.program, append([]string{"--root", c.root}, args...)...)
	// A file: a pipe would be held open by the container.
	said, err := os.OpenFile(filepath.Join(c.rig.dir, "stderr"), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = said.Close() }()
	cmd.Stderr = said
	if err := cmd.Run(); err != nil {
		b, _ := os.ReadFile(said.Name())
		return fmt.Errorf("%s %v: %w: %s", filepath.Base(c.program), args, err, bytes.TrimSpace(b))
	}
	return nil
}

// write puts the rig's spec into the bundle.
func (c *command) write(name string, args ...string) error {
	spec := *c.rig.spec
	process := *spec.Process
	process.Args = args
	spec.Process = &process
	linux := *spec.Linux
	linux.CgroupsPath = filepath.Join(c.rig.tree.Root(), name)
	spec.Linux = &linux
	spec.Version = "1.0.2" // an old crun takes no other
	b, err := json.Marshal(&spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.rig.dir, "bundle", "config.json"), b, 0o600)
}

func (c *command) measure(ctx context.Context) (run, execs []time.Duration, err error) {
	name, bundle := filepath.Base(c.program), filepath.Join(c.rig.dir, "bundle")
	if err := c.write(name, "/bin/true"); err != nil {
		return nil, nil, err
	}
	run, err = c.rig.times(ctx, func(i int) error { return c.do(ctx, "run", "--bundle", bundle, fmt.Sprintf("%s-%d", name, i)) })
	if err != nil {
		return nil, nil, err
	}
	if err := c.write(name, "/bin/sleep", "3600"); err != nil {
		return nil, nil, err
	}
	if err := c.do(ctx, "run", "--detach", "--bundle", bundle, name+"-exec"); err != nil {
		return nil, nil, err
	}
	execs, err = c.rig.times(ctx, func(int) error { return c.do(ctx, "exec", name+"-exec", "/bin/true") })
	return run, execs, errors.Join(err, c.do(ctx, "delete", "--force", name+"-exec"))
}
