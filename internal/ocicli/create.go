package ocicli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/runtime/native/compile"
)

// createFlags are the flags of create and run.
type createFlags struct {
	bundle, console, pidFile       string
	noPivot, noKeyring, noSubreape bool
	preserve                       int
}

func (c *createFlags) add(f *flag.FlagSet) {
	f.StringVar(&c.bundle, "bundle", "", "directory with config.json (default: the working directory)")
	f.StringVar(&c.bundle, "b", "", "short for --bundle")
	f.StringVar(&c.console, "console-socket", "", "unix socket that takes the terminal's master")
	f.StringVar(&c.pidFile, "pid-file", "", "file to write the main process's number to")
	f.BoolVar(&c.noPivot, "no-pivot", false, "refused: the root is always pivoted to")
	f.BoolVar(&c.noKeyring, "no-new-keyring", false, "make no session keyring")
	f.BoolVar(&c.noSubreape, "no-subreaper", false, "taken for the sake of callers: we never are one")
	f.IntVar(&c.preserve, "preserve-fds", 0, "how many descriptors from 3 on the program keeps")
}

// maxPreserved bounds --preserve-fds, far above any real use.
const maxPreserved = 1024

func checkPreserve(n int) (int, error) {
	if v := os.Getenv("LISTEN_FDS"); v != "" {
		listen, err := strconv.Atoi(v)
		if err != nil || listen < 0 {
			return 0, fmt.Errorf("LISTEN_FDS=%s: %w", v, errdefs.ErrInvalidArgument)
		}
		n += listen
	}
	if n < 0 || n > maxPreserved {
		return 0, fmt.Errorf("--preserve-fds %d: want 0 to %d: %w", n, maxPreserved, errdefs.ErrInvalidArgument)
	}
	return n, nil
}

// passListen tells the program about the sockets passed to it, as systemd does.
func passListen(p *specs.Process) {
	if v := os.Getenv("LISTEN_FDS"); v != "" {
		p.Env = append(p.Env, "LISTEN_FDS="+v, "LISTEN_PID=1")
	}
}

func createCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("create", "ID")
	var o createFlags
	o.add(f)
	id, _, err := a.id(f, args)
	if err != nil {
		return err
	}
	c, l, err := a.create(ctx, id, o, false)
	if err != nil {
		return fmt.Errorf("create container %s: %w", id, err)
	}
	l.close()
	c.unlock()
	return nil
}

// create makes a container with its main process parked before its program, and returns it locked.
// If it fails, nothing of the container is left.
//
// With foreground, the terminal stays with this process, in launched.master.
func (a *app) create(ctx context.Context, id string, o createFlags, foreground bool) (_ *container, _ *launched, err error) {
	if o.noPivot {
		return nil, nil, fmt.Errorf("--no-pivot: not supported: %w", errdefs.ErrNotImplemented)
	}
	if o.preserve, err = checkPreserve(o.preserve); err != nil {
		return nil, nil, err
	}
	n, err := a.read(id, o)
	if err != nil {
		return nil, nil, err
	}
	tty := n.spec.Process.Terminal
	switch {
	case tty && o.console == "" && !foreground:
		return nil, nil, fmt.Errorf("process.terminal: needs --console-socket: %w", errdefs.ErrInvalidArgument)
	case !tty && o.console != "":
		return nil, nil, fmt.Errorf("--console-socket without process.terminal: %w", errdefs.ErrInvalidArgument)
	}
	if a.taken(id) {
		return nil, nil, errTaken(id)
	}
	t, err := a.cgroups()
	if err != nil {
		return nil, nil, err
	}
	// Deleting the container kills everything in its cgroup.
	if pids, err := t.Pids(ctx, n.ref()); err == nil && len(pids) > 0 {
		return nil, nil, fmt.Errorf("cgroup %s already has processes %v of another program: %w", n.Cgroup, pids, errdefs.ErrFailedPrecondition)
	}
	c, err := a.claim(n.record, n.config)
	if err != nil {
		return nil, nil, err
	}
	var l *launched
	defer func() {
		if err == nil {
			return
		}
		// Clean up even if the caller has given up.
		ctx := context.WithoutCancel(ctx)
		if l != nil {
			l.kill()
		}
		if rerr := a.remove(ctx, c); rerr != nil {
			err = errors.Join(err, fmt.Errorf("undo: %w", rerr))
		}
		c.unlock()
	}()
	if err := a.prepare(ctx, c, n); err != nil {
		return nil, nil, err
	}
	stopped := func(l *launched) error { return a.createHooks(ctx, c, n, l) }
	if l, err = c.launch(n, o, stopped); err != nil {
		return nil, nil, err
	}
	if err := c.created(l); err != nil {
		return nil, nil, err
	}
	if tty && o.console != "" {
		if err := sendConsole(o.console, l.master); err != nil {
			return nil, nil, err
		}
		_ = unix.Close(l.master)
		l.master = -1
	}
	if err := writePid(o.pidFile, c.Pid); err != nil {
		return nil, nil, err
	}
	return c, l, nil
}

// fresh is a container that does not exist yet.
type fresh struct {
	record
	spec   *specs.Spec // the spec that is compiled
	config []byte      // the file's content
	out    compile.Output
}

// read reads the bundle and compiles it, without changing anything.
func (a *app) read(id string, o createFlags) (fresh, error) {
	bundle, err := filepath.Abs(o.bundle)
	if err != nil {
		return fresh{}, err
	}
	n := fresh{record: record{ID: id, Bundle: bundle, Created: time.Now().UTC(), KeepKeyring: o.noKeyring}}
	if n.config, err = os.ReadFile(filepath.Join(bundle, configFile)); err != nil {
		return fresh{}, err
	}
	if n.spec, err = decodeSpec(n.config); err != nil {
		return fresh{}, err
	}
	if n.spec.Process == nil {
		return fresh{}, fmt.Errorf("%s: process: missing: %w", configFile, errdefs.ErrInvalidArgument)
	}
	if _, ok := n.spec.Annotations[core.GrantAnnotation]; ok { // to run it as an ordinary container would give it more than it may have
		return fresh{}, fmt.Errorf("annotation %s: only the agent grants; an OCI command line cannot: %w", core.GrantAnnotation, errdefs.ErrNotImplemented)
	}
	n.Annotations = n.spec.Annotations
	n.Rootfs = n.spec.Root.Path
	if !filepath.IsAbs(n.Rootfs) {
		n.Rootfs = filepath.Join(bundle, n.Rootfs)
	}
	if n.Rootfs, err = filepath.EvalSymlinks(n.Rootfs); err != nil {
		return fresh{}, fmt.Errorf("root.path: %w", err)
	}
	if n.Mounts = -1; !ownMounts(n.spec) {
		n.Mounts = mountsAt(n.Rootfs)
	}
	ref, err := a.place(id, n.spec.Linux.CgroupsPath)
	if err != nil {
		return fresh{}, err
	}
	n.Cgroup, n.Systemd = ref.Path, a.systemd
	passListen(n.spec.Process)
	if err := addHome(n.spec.Process, n.Rootfs, n.spec.Mounts); err != nil {
		return fresh{}, err
	}
	host, err := compile.ReadHost()
	if err != nil {
		return fresh{}, err
	}
	cgroups, err := a.nativeCgroup(ref)
	if err != nil {
		return fresh{}, err
	}
	n.out, err = compile.Container(compile.Input{
		ID: id, Bundle: bundle, Spec: n.spec, Root: n.Rootfs, Cgroup: cgroups, Host: host, Park: true, Preserve: o.preserve, KeepKeyring: o.noKeyring, Borrow: true,
	})
	for _, w := range n.out.Warnings {
		a.logTo.warn("%s", w)
	}
	return n, err
}

// prepare makes cgroups and mount points, which must exist before the process.
func (a *app) prepare(ctx context.Context, c *container, n fresh) error {
	t, err := a.cgroups()
	if err != nil {
		return err
	}
	res := n.spec.Linux.Resources
	if err := t.Create(ctx, c.ref(), res); err != nil {
		return err
	}
	if err := t.Devices(c.ref(), compile.DeviceRules(res)); err != nil {
		return err
	}
	if err := compile.MakePoints(c.Rootfs, n.out); err != nil {
		return err
	}
	return compile.FindProgram(c.Rootfs, n.spec)
}

// launch starts the process and returns once it has parked before its program. stopped
// is called if the process waits before pivot_root.
func (c *container) launch(n fresh, o createFlags, stopped func(*launched) error) (*launched, error) {
	// Open for reading and writing: the child must not see an end of file when this
	// process ends.
	park, err := unix.Open(c.path(startFifo), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: c.path(startFifo), Err: err}
	}
	defer func() { _ = unix.Close(park) }()
	from, err := c.openErrors()
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(from) }()
	to, err := unix.Open(c.path(errorFifo), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: c.path(errorFifo), Err: err}
	}
	l := launch{
		plan: n.out.Plan, park: park, errs: to, errsFrom: from, target: -1,
		tty: n.spec.Process.Terminal, uid: hostUID(n.spec, n.spec.Process), preserve: o.preserve,
	}
	if n.out.Stops {
		l.stopped = stopped
	}
	return l.run()
}

// openErrors opens the failure FIFO for reading. Only a reader that opened it while
// there was a writer, or before, sees its end.
func (c *container) openErrors() (int, error) {
	fd, err := unix.Open(c.path(errorFifo), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: c.path(errorFifo), Err: err}
	}
	return fd, unix.SetNonblock(fd, false)
}

// created stores the parked process in the record.
func (c *container) created(l *launched) error {
	ticks, alive := process(l.Pid)
	if !alive {
		return errors.New("the process died before its program ran")
	}
	c.Pid, c.Ticks = l.Pid, ticks
	c.First, c.Steps = afterPark(l.steps)
	return c.save()
}

// createHooks runs the hooks of the creation while the process waits before pivot_root,
// with its mounts made.
func (a *app) createHooks(ctx context.Context, c *container, n fresh, l *launched) error {
	// Stored without its steps, because a hook may ask for the state.
	if err := c.created(&launched{Child: l.Child}); err != nil {
		return err
	}
	for _, kind := range []string{"prestart", "createRuntime", "createContainer"} {
		if err := a.runHooks(ctx, c, n.spec, specs.StateCreating, kind); err != nil {
			return err
		}
	}
	return nil
}

func writePid(path string, pid int) error {
	if path == "" {
		return nil
	}
	if err := atomicfile.Replace(path, []byte(strconv.Itoa(pid)), 0o644); err != nil {
		return fmt.Errorf("pid file: %w", err)
	}
	return nil
}

func startCmd(ctx context.Context, a *app, args []string) error {
	id, _, err := a.id(a.flags("start", "ID"), args)
	if err != nil {
		return err
	}
	c, err := a.open(id)
	if err != nil {
		return err
	}
	defer c.unlock()
	if err := a.start(ctx, c); err != nil {
		return fmt.Errorf("start container %s: %w", id, err)
	}
	return nil
}

// start releases the parked process, which executes its program.
func (a *app) start(ctx context.Context, c *container) error {
	if s := a.status(c); s != specs.StateCreated {
		return fmt.Errorf("cannot start a container that is %s: %w", s, errdefs.ErrFailedPrecondition)
	}
	if t, err := a.cgroups(); err == nil && t.Frozen(c.ref()) {
		return fmt.Errorf("cannot start a paused container: %w", errdefs.ErrFailedPrecondition)
	}
	spec, err := c.spec()
	if err != nil {
		return err
	}
	if err := a.runHooks(ctx, c, spec, specs.StateCreated, "startContainer"); err != nil {
		return errors.Join(err, a.kill(ctx, c, unix.SIGKILL, true))
	}
	from, err := c.openErrors()
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(from) }()
	park, err := unix.Open(c.path(startFifo), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("container not running: its process has ended: %w", errdefs.ErrNotFound)
	}
	defer func() { _ = unix.Close(park) }()
	err = releaseParked(park, from, func(step int) string {
		if i := step - c.First; i >= 0 && i < len(c.Steps) {
			return c.Steps[i]
		}
		return fmt.Sprintf("operation %d", step)
	})
	if err != nil {
		return err
	}
	if err := a.runHooks(ctx, c, spec, specs.StateRunning, "poststart"); err != nil {
		return errors.Join(err, a.kill(ctx, c, unix.SIGKILL, true))
	}
	return nil
}

// nativeCgroup returns the cgroups of a plan's process.
func (a *app) nativeCgroup(ref core.CgroupRef) (compile.Cgroup, error) {
	t, err := a.cgroups()
	if err != nil {
		return compile.Cgroup{}, err
	}
	v1, unified, own := t.Dirs(ref)
	return compile.Cgroup{Dirs: v1, Unified: unified, Own: own}, nil
}
