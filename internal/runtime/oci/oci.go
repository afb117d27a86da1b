// Package oci runs containers with an OCI runtime's command line: crun, runc, runsc and
// similar programs. It is one of the engine's core.Runtimes.
//
// It executes nothing itself: it writes config.json and passes command lines to the Launcher; the
// containers become that one's children. It must not know the purpose of a sandbox. Start reading
// at Runtime.Create; probe.go has the differences between the programs.
package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sysctl"
)

// Options configure a Runtime.
type Options struct {
	// Name is the name of the handler in the configuration.
	Name string
	// Path is the absolute path of the program.
	Path string
	// Root is the directory for the program's state, with a directory for each
	// container.
	Root string
	// SocketDir holds console sockets while a process with a terminal starts. Its path
	// must be short, because a socket's address has at most 107 bytes.
	SocketDir string
	// Launcher runs the program and becomes the parent of the processes it leaves;
	// Supervisor watches those.
	Launcher   core.Launcher
	Supervisor core.Supervisor
	// Cgroups says where out-of-memory kills are counted, and how cgroups are mounted.
	Cgroups core.Cgroups
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Runtime is one OCI runtime program.
type Runtime struct {
	o   Options
	log *slog.Logger

	passages passages

	mu     sync.Mutex // guards probed
	probed *probe     // nil before the probe
}

var _ core.Runtime = (*Runtime)(nil)

// New makes the directories and returns the Runtime. It does not run the
// program: Features does.
func New(o Options) (*Runtime, error) {
	for name, p := range map[string]string{"path": o.Path, "state directory": o.Root, "socket directory": o.SocketDir} {
		if !filepath.IsAbs(p) {
			return nil, fmt.Errorf("runtime %s: %s %q is not absolute: %w", o.Name, name, p, errdefs.ErrInvalidArgument)
		}
	}
	if o.Name == "" || o.Launcher == nil || o.Supervisor == nil || o.Cgroups == nil {
		return nil, fmt.Errorf("runtime %q: needs a name, a launcher, a supervisor and cgroups: %w", o.Name, errdefs.ErrInvalidArgument)
	}
	for _, dir := range []string{o.Root, o.SocketDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("runtime %s: %w", o.Name, err)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Runtime{o: o, log: o.Logger.With("runtime", o.Name)}, nil
}

// Name returns the name of the handler in the configuration.
func (r *Runtime) Name() string { return r.o.Name }

// command is one run of the program.
func (r *Runtime) command(logFile string, args ...string) core.Command {
	line := []string{r.o.Path, "--root", r.o.Root}
	if logFile != "" {
		line = append(line, "--log", logFile, "--log-format", "json")
	}
	// systemd also makes its units there: containers are below a cgroup that is
	// delegated.
	if r.isCrun() {
		line = append(line, "--cgroup-manager=cgroupfs")
	}
	return core.Command{
		Args: append(line, args...),
		// Programs written in Go search PATH for helpers (newuidmap).
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		// crun refuses every v2 tree that has controllers while v1 is mounted too.
		HideUnified: r.isCrun() && r.o.Cgroups.Mode() == core.CgroupHybrid,
	}
}

func (r *Runtime) isCrun() bool { return strings.HasPrefix(filepath.Base(r.o.Path), "crun") }

// Create writes config.json and runs `create`.
func (r *Runtime) Create(ctx context.Context, c core.RuntimeCreate) (int, error) {
	p, err := r.probe(ctx)
	if err != nil {
		return 0, err
	}
	if c.Spec == nil || c.Spec.Process == nil || c.Spec.Root == nil {
		return 0, fmt.Errorf("create container %s: the spec has no process or no root: %w", c.ID, errdefs.ErrInvalidArgument)
	}
	if len(c.Given) > 0 || c.Confine != nil {
		return 0, fmt.Errorf("create container %s: runtime %s cannot give descriptors to a program: %w", c.ID, r.Name(), errdefs.ErrNotImplemented)
	}
	if _, ok := c.Spec.Annotations[core.LandlockAnnotation]; ok {
		return 0, fmt.Errorf("create container %s: annotation %s: runtime %s cannot enforce it, native can: %w", c.ID, core.LandlockAnnotation, r.Name(), errdefs.ErrNotImplemented)
	}
	if c.Cgroup.Delegated() {
		return 0, fmt.Errorf("create container %s: runtime %s cannot give a container cgroups to divide, as systemd needs: %w", c.ID, r.Name(), errdefs.ErrNotImplemented)
	}
	if c.Spec.Linux != nil { // programs interpret a name differently
		if _, err := sysctl.ParseAll(c.Spec.Linux.Sysctl); err != nil {
			return 0, fmt.Errorf("create container %s: linux.sysctl: %w", c.ID, err)
		}
	}
	spec := r.specWithoutIdle(r.keepAdopted(c))
	// The program has made its mounts when it returns, so the copies can be removed.
	spec, err = r.copyBinds(c.ID, spec)
	if err != nil {
		return 0, fmt.Errorf("create container %s: %w", c.ID, err)
	}
	defer func() {
		if err := r.removeBindCopies(c.ID); err != nil {
			r.log.WarnContext(ctx, "could not unmount the copies of a container's mount sources; will retry when it is removed", "container", c.ID, "error", err)
		}
	}()
	if err := writeSpec(filepath.Join(c.Bundle, "config.json"), spec, p.features.OCIVersionMax); err != nil {
		return 0, fmt.Errorf("create container %s: %w", c.ID, err)
	}
	ref := core.Ref{Container: c.ID}
	files := r.files(c.Bundle, ref)
	args := []string{"create", "--bundle", c.Bundle, "--pid-file", files.pid}
	if c.IO.TTY {
		args = append(args, "--console-socket", files.console)
	}
	l := core.CommandLaunch{
		Launch:  core.Launch{Ref: ref, IO: c.IO, UID: c.UID, GID: c.GID},
		Command: r.command(files.log, append(args, string(c.ID))...), PidFile: files.pid,
	}
	if c.Cgroup.Adopted[""] != "" {
		leaveCgroups(&l.Command)
	}
	if c.IO.TTY {
		l.ConsoleSocket = files.console
	}
	l.Levels, l.Peak = r.levels(c.Levels)
	done, err := r.through(c)
	if err != nil {
		return 0, fmt.Errorf("create container %s: %w", c.ID, err)
	}
	launched, err := r.o.Launcher.LaunchCommand(ctx, l)
	if derr := done(); derr != nil {
		r.log.WarnContext(ctx, "a user stays let through the directories of a bundle", "container", c.ID, "error", derr)
	}
	if err != nil {
		return 0, r.explain("create container "+string(c.ID), files.log, err)
	}
	if err := r.joinAdopted(launched.Pid, c.Cgroup); err != nil {
		return 0, errors.Join(fmt.Errorf("create container %s: %w", c.ID, err), r.Delete(context.WithoutCancel(ctx), c.ID, true))
	}
	if c.Run {
		if err := r.Start(ctx, c.ID); err != nil {
			return 0, errors.Join(err, r.Delete(context.WithoutCancel(ctx), c.ID, true))
		}
	}
	return launched.Pid, nil
}

// keepAdopted returns the spec to write. At the container's end, a program removes the v2 cgroup of
// the spec, adopted or not. crun has an option not to touch cgroups; other programs get a cgroup of
// their own below the adopted one.
func (r *Runtime) keepAdopted(c core.RuntimeCreate) *specs.Spec {
	if c.Cgroup.Adopted[""] == "" || r.isCrun() || c.Spec.Linux == nil {
		return c.Spec
	}
	spec, linux := *c.Spec, *c.Spec.Linux
	linux.CgroupsPath = c.Cgroup.Path + "/" + c.ID.Short()
	spec.Linux = &linux
	return &spec
}

func leaveCgroups(c *core.Command) {
	if i := slices.Index(c.Args, "--cgroup-manager=cgroupfs"); i >= 0 {
		c.Args[i] = "--cgroup-manager=disabled"
	}
}

// joinAdopted moves the parked process, which has no threads and no children yet, into
// cgroups that could not be named to the program: its command line takes one path for
// all hierarchies.
func (r *Runtime) joinAdopted(pid int, ref core.CgroupRef) error {
	for controller, dir := range ref.Adopted {
		if controller == "" && !r.isCrun() {
			continue // the program's own cgroup is below it
		}
		f, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(strconv.Itoa(pid))
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			return fmt.Errorf("join the adopted cgroup %s of controller %q: %w", dir, controller, err)
		}
	}
	return nil
}

// levels returns the files of these cgroups for the exit record.
func (r *Runtime) levels(refs []core.CgroupRef) (levels []core.OOMLevel, peak string) {
	for i, ref := range refs {
		l, p := r.o.Cgroups.OOMLevel(ref)
		if l.Path == "" {
			continue
		}
		levels = append(levels, l)
		if i == 0 {
			peak = p
		}
	}
	return levels, peak
}

// files are the files needed for one process's start.
type files struct{ pid, log, console, process string }

func (r *Runtime) files(bundle string, ref core.Ref) files {
	base := "main"
	if ref.Process != core.Main {
		base = "exec-" + fileName(string(ref.Process))
	}
	// 12 characters of the container's and the process's ID suffice for a name that
	// exists for milliseconds in one directory, and keep it short.
	short := ref.Container.Short()
	if ref.Process != core.Main {
		short += "-" + core.ID(fileName(string(ref.Process))).Short()
	}
	return files{
		pid:     filepath.Join(bundle, base+".pid"),
		log:     filepath.Join(bundle, base+".log"),
		process: filepath.Join(bundle, base+".json"),
		console: filepath.Join(r.o.SocketDir, short),
	}
}

// fileName turns an ID, which a face may have chosen, into a file name.
func fileName(id string) string {
	var b strings.Builder
	for _, c := range []byte(id) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, ".%02x", c)
		}
	}
	name := b.String()
	if len(name) > 200 {
		name = name[:100] + "." + strconv.Itoa(len(name)) + "." + name[len(name)-80:]
	}
	return name
}

// writeSpec writes config.json for a program that supports spec versions up to version.
func writeSpec(path string, spec *specs.Spec, version string) error {
	s := *spec
	if version != "" {
		s.Version = version
	}
	b, err := json.Marshal(&s)
	if err != nil {
		return fmt.Errorf("encode the spec: %w", err)
	}
	return atomicfile.Replace(path, b, 0o600)
}

// Start releases the parked process. Programs refuse a second start, each with another message; the
// container's state then shows the result of the first.
func (r *Runtime) Start(ctx context.Context, id core.ID) error {
	op := "start container " + string(id)
	err := r.runAs(ctx, startFailure, op, "start", string(id))
	if err == nil || !startedBefore(err) {
		return err
	}
	switch status, serr := r.status(ctx, id); {
	case serr != nil:
		r.log.WarnContext(ctx, "the state of a container that cannot be started is not known", "container", id, "error", serr)
	case status == specs.StateRunning:
		return nil
	case status == specs.StateStopped:
		return fmt.Errorf("%s: %w: %w", op, core.ErrEnded, errdefs.ErrFailedPrecondition)
	}
	return err
}

// status asks the program for a container's state.
func (r *Runtime) status(ctx context.Context, id core.ID) (specs.ContainerState, error) {
	res, err := r.o.Launcher.Run(ctx, r.command("", "state", string(id)))
	if err == nil && res.Status != 0 {
		err = failure("state of container "+string(id), r.o.Name, res.Status, res.Stderr)
	}
	if err != nil {
		return "", err
	}
	var s specs.State
	if err := json.Unmarshal(res.Stdout, &s); err != nil {
		return "", fmt.Errorf("state of container %s: %s: %w", id, r.o.Name, err)
	}
	return s.Status, nil
}

// Exec starts a further process.
func (r *Runtime) Exec(ctx context.Context, e core.RuntimeExec) (core.Launched, error) {
	op := fmt.Sprintf("exec in container %s", e.Ref.Container)
	if e.Ref.Process == core.Main || e.Spec == nil {
		return core.Launched{}, fmt.Errorf("%s: needs a process ID and a spec: %w", op, errdefs.ErrInvalidArgument)
	}
	files := r.files(e.Bundle, e.Ref)
	b, err := json.Marshal(e.Spec)
	if err != nil {
		return core.Launched{}, fmt.Errorf("%s: %w", op, err)
	}
	if err := atomicfile.Replace(files.process, b, 0o600); err != nil {
		return core.Launched{}, fmt.Errorf("%s: %w", op, err)
	}
	args := []string{"exec", "--process", files.process, "--detach", "--pid-file", files.pid}
	l := core.CommandLaunch{Launch: core.Launch{Ref: e.Ref, IO: e.IO, Attach: e.Attach, UID: e.UID, GID: e.GID}, PidFile: files.pid}
	if e.IO.TTY {
		l.ConsoleSocket = files.console
		args = append(args, "--console-socket", files.console)
	}
	l.Command = r.command(files.log, append(args, string(e.Ref.Container))...)
	l.Levels, l.Peak = r.levels(e.Levels)
	launched, err := r.o.Launcher.LaunchCommand(ctx, l)
	if err != nil {
		err = r.explain(op, files.log, err)
	} else if len(e.Levels) > 0 {
		// The process runs by now: children it has already forked stay in their cgroup.
		err = r.joinAdopted(launched.Pid, e.Levels[0])
		if errors.Is(err, unix.ESRCH) { // it has ended
			err = nil
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", op, errors.Join(err, r.o.Supervisor.Signal(context.WithoutCancel(ctx), e.Ref, int(unix.SIGKILL))))
		}
	}
	// Keep the pid file: the keeper may have died, and the next one reads it.
	_ = os.Remove(files.process)
	_ = os.Remove(files.log)
	return launched, err
}

// Pause freezes the container's cgroup.
func (r *Runtime) Pause(ctx context.Context, id core.ID) error {
	return r.run(ctx, "pause container "+string(id), "pause", string(id))
}

// Resume thaws the container's cgroup.
func (r *Runtime) Resume(ctx context.Context, id core.ID) error {
	return r.run(ctx, "resume container "+string(id), "resume", string(id))
}

// Update changes the container's resource limits.
func (r *Runtime) Update(ctx context.Context, id core.ID, res *specs.LinuxResources) error {
	op := "update container " + string(id)
	b, err := json.Marshal(r.withoutIdle(res))
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	file := filepath.Join(r.o.Root, "."+string(id)+".resources.json")
	if err := atomicfile.Replace(file, b, 0o600); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	defer func() { _ = os.Remove(file) }()
	return r.run(ctx, op, "update", "--resources", file, string(id))
}

// Delete removes the program's state of a container.
func (r *Runtime) Delete(ctx context.Context, id core.ID, force bool) error {
	if err := checkID(id); err != nil {
		return err
	}
	if err := r.removeBindCopies(id); err != nil {
		return fmt.Errorf("delete container %s: %w", id, err)
	}
	if _, err := os.Lstat(filepath.Join(r.o.Root, string(id))); errors.Is(err, os.ErrNotExist) {
		return nil // the program does not know the container, so there is nothing to run
	}
	args := []string{"delete"}
	if force {
		args = append(args, "--force")
	}
	err := r.run(ctx, "delete container "+string(id), append(args, string(id))...)
	if errdefs.IsNotFound(err) {
		err = nil
	}
	if force && err == nil {
		// After a failed creation, the program may not know the container, and then does not remove
		// its directory.
		err = os.RemoveAll(filepath.Join(r.o.Root, string(id)))
	}
	return err
}

func checkID(id core.ID) error {
	if s := string(id); s == "" || s != filepath.Base(s) || s[0] == '.' {
		return fmt.Errorf("bad container ID %q: %w", s, errdefs.ErrInvalidArgument)
	}
	return nil
}

// List returns the containers that the program has state of.
func (r *Runtime) List(context.Context) ([]core.ID, error) {
	entries, err := os.ReadDir(r.o.Root)
	if err != nil {
		return nil, fmt.Errorf("list containers of %s: %w", r.o.Name, err)
	}
	var ids []core.ID
	for _, e := range entries {
		if e.IsDir() && e.Name()[0] != '.' {
			ids = append(ids, core.ID(e.Name()))
		}
	}
	copied, err := r.withBindCopies()
	if err != nil {
		return nil, fmt.Errorf("list containers of %s: %w", r.o.Name, err)
	}
	for _, id := range copied {
		if !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// run runs the program and waits for its end.
func (r *Runtime) run(ctx context.Context, op string, args ...string) error {
	return r.runAs(ctx, failure, op, args...)
}

// runAs is run with a choice of the function that makes the error.
func (r *Runtime) runAs(ctx context.Context, failure func(op, name string, status int, stderr string) error, op string, args ...string) error {
	res, err := r.o.Launcher.Run(ctx, r.command("", args...))
	if err != nil {
		return fmt.Errorf("%s: %s: %w", op, r.o.Name, err)
	}
	if res.Status == 0 {
		return nil
	}
	return failure(op, r.o.Name, res.Status, res.Stderr)
}
