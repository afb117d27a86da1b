package ocicli

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/runtime/native/compile"
)

// statusCannot is exec's exit status if the program did not run.
const statusCannot = 255

// list is a flag that may occur several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value.
func (l *list) Set(v string) error { *l = append(*l, v); return nil }

// execFlags are the flags of exec.
type execFlags struct {
	process, console, pidFile, cwd, user string
	label, apparmor, cgroup              string
	env, caps, gids                      list
	tty, detach, noNewPrivs, paused      bool
	preserve                             int
}

func execCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("exec", "ID [PROGRAM ARGUMENT…]")
	var o execFlags
	for _, s := range []struct {
		to          *string
		long, short string
		text        string
	}{
		{&o.process, "process", "p", "file with the process as JSON"},
		{&o.console, "console-socket", "", "unix socket that takes the terminal's master"},
		{&o.pidFile, "pid-file", "", "file to write the process's number to"},
		{&o.cwd, "cwd", "", "working directory"},
		{&o.user, "user", "u", "UID[:GID]"},
		{&o.label, "process-label", "", "SELinux label"},
		{&o.apparmor, "apparmor", "", "AppArmor profile"},
		{&o.cgroup, "cgroup", "", "cgroup below the container's, on v1 CONTROLLER[,CONTROLLER]:PATH"},
	} {
		f.StringVar(s.to, s.long, "", s.text)
		if s.short != "" {
			f.StringVar(s.to, s.short, "", "short for --"+s.long)
		}
	}
	for _, b := range []struct {
		to          *bool
		long, short string
		text        string
	}{
		{&o.tty, "tty", "t", "with a terminal"},
		{&o.detach, "detach", "d", "do not wait for the process"},
		{&o.noNewPrivs, "no-new-privs", "", "with no new privileges"},
		{&o.paused, "ignore-paused", "", "in a paused container too"},
		{new(bool), "no-subreaper", "", "taken for the sake of callers: we never are one"},
	} {
		f.BoolVar(b.to, b.long, false, b.text)
		if b.short != "" {
			f.BoolVar(b.to, b.short, false, "short for --"+b.long)
		}
	}
	f.Var(&o.env, "env", "NAME=VALUE, may be given again")
	f.Var(&o.env, "e", "short for --env")
	f.Var(&o.caps, "cap", "capability to add, may be given again")
	f.Var(&o.caps, "c", "short for --cap")
	f.Var(&o.gids, "additional-gids", "further group, may be given again")
	f.Var(&o.gids, "g", "short for --additional-gids")
	f.IntVar(&o.preserve, "preserve-fds", 0, "how many descriptors from 3 on the program keeps")
	id, rest, err := a.id(f, args)
	if err != nil {
		return err
	}
	status, err := a.exec(ctx, id, o, rest)
	if err != nil {
		return &exitError{statusCannot, fmt.Errorf("exec in container %s: %w", id, err)}
	}
	if status != 0 {
		return &exitError{status: status}
	}
	return nil
}

func (a *app) exec(ctx context.Context, id string, o execFlags, args []string) (status int, err error) {
	if o.preserve, err = checkPreserve(o.preserve); err != nil {
		return 0, err
	}
	c, err := a.load(id)
	if err != nil {
		return 0, err
	}
	switch s := a.status(c); {
	case s == paused && !o.paused, s == specs.StateStopped, s == specs.StateCreating:
		return 0, fmt.Errorf("cannot exec in a container that is %s: container not running: %w", s, errdefs.ErrFailedPrecondition)
	}
	spec, err := c.spec()
	if err != nil {
		return 0, err
	}
	root, err := os.OpenRoot(fmt.Sprintf("/proc/%d/root", c.Pid))
	if err != nil {
		return 0, fmt.Errorf("open the container's root: %w", err)
	}
	files, ferr := ocispec.ReadUserFiles(root) // the user's number is enough, except for its groups and its home
	if err := root.Close(); err != nil {
		return 0, err
	}
	if ferr != nil {
		a.logTo.warn("%s", ferr)
	}
	p, err := o.spec(spec, files, args)
	if err != nil {
		return 0, err
	}
	files.AddHome(p)
	switch {
	case p.Terminal && o.console == "" && o.detach:
		return 0, fmt.Errorf("a terminal with --detach needs --console-socket: %w", errdefs.ErrInvalidArgument)
	case !p.Terminal && o.console != "":
		return 0, fmt.Errorf("--console-socket without a terminal: %w", errdefs.ErrInvalidArgument)
	}
	l, releaseParked, err := a.enter(c, spec, p, o)
	if err != nil {
		return 0, err
	}
	defer l.close()
	if err := o.handOver(l); err != nil {
		l.kill()
		return 0, err
	}
	if o.detach {
		return 0, releaseParked()
	}
	return l.foreground(ctx, releaseParked)
}

// handOver gives the caller the requested pid file and console.
func (o execFlags) handOver(l *launched) error {
	if l.master >= 0 && o.console != "" {
		if err := sendConsole(o.console, l.master); err != nil {
			return err
		}
		_ = unix.Close(l.master)
		l.master = -1
	}
	return writePid(o.pidFile, l.Pid)
}

// enter starts a process in the container, parked; releaseParked releases it.
func (a *app) enter(c *container, spec *specs.Spec, p *specs.Process, o execFlags) (_ *launched, release func() error, err error) {
	host, err := compile.ReadHost()
	if err != nil {
		return nil, nil, err
	}
	cgroups, err := a.nativeCgroup(c.ref())
	if err == nil {
		err = below(&cgroups, o.cgroup)
	}
	if err != nil {
		return nil, nil, err
	}
	out, err := compile.Exec(compile.ExecInput{
		ID: c.ID, Process: p, Spec: spec, Cgroup: cgroups, Host: host, Preserve: o.preserve, KeepKeyring: c.KeepKeyring, Pid: c.Pid, Bundle: c.Bundle,
	})
	if err != nil {
		return nil, nil, err
	}
	target, err := c.pidfd()
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = unix.Close(target) }()
	var park, errs [2]int
	if err := unix.Pipe2(park[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	defer func() { _ = unix.Close(park[0]) }()
	if err := unix.Pipe2(errs[:], unix.O_CLOEXEC); err != nil {
		_ = unix.Close(park[1])
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	l, err := launch{
		plan: out.Plan, park: park[0], errs: errs[1], errsFrom: errs[0], target: target, tty: p.Terminal, uid: hostUID(spec, p), preserve: o.preserve,
	}.run()
	if err != nil {
		_ = unix.Close(park[1])
		_ = unix.Close(errs[0])
		return nil, nil, err
	}
	return l, func() error {
		defer func() { _ = unix.Close(park[1]); _ = unix.Close(errs[0]) }()
		err := releaseParked(park[1], errs[0], l.name)
		if err != nil {
			l.kill()
		}
		return err
	}, nil
}

// decodeProcess reads the file of --process.
func decodeProcess(b []byte) (*specs.Process, error) {
	var p specs.Process
	if err := json.Unmarshal(b, &p); err != nil {
		return nil, fmt.Errorf("--process: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	if len(p.Args) == 0 {
		return nil, fmt.Errorf("--process: args: empty: %w", errdefs.ErrInvalidArgument)
	}
	if p.Cwd == "" {
		p.Cwd = "/"
	}
	return &p, nil
}

// spec returns the process to start: that of the file, or the container's own with the changes of
// the flags. Values that depend on the user are then those of --user.
func (o execFlags) spec(s *specs.Spec, files ocispec.UserFiles, args []string) (*specs.Process, error) {
	if o.process != "" {
		b, err := os.ReadFile(o.process)
		if err != nil {
			return nil, fmt.Errorf("--process: %w", err)
		}
		p, err := decodeProcess(b)
		if err == nil {
			passListen(p)
		}
		return p, err
	}
	if len(args) == 0 {
		return nil, fmt.Errorf("no program given: %w", errdefs.ErrInvalidArgument)
	}
	p := *s.Process
	p.Args, p.Terminal, p.ConsoleSize = args, o.tty, nil
	p.Env = append(slices.Clone(p.Env), o.env...)
	for to, from := range map[*string]string{&p.Cwd: o.cwd, &p.SelinuxLabel: o.label, &p.ApparmorProfile: o.apparmor} {
		if from != "" {
			*to = from
		}
	}
	p.NoNewPrivileges = p.NoNewPrivileges || o.noNewPrivs
	if err := o.switchUser(&p, files); err != nil {
		return nil, err
	}
	addCapabilities(&p, o.caps)
	p.User.AdditionalGids = slices.Clone(p.User.AdditionalGids)
	for _, g := range o.gids {
		n, err := strconv.ParseUint(g, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("--additional-gids %q: %w", g, errdefs.ErrInvalidArgument)
		}
		p.User.AdditionalGids = append(p.User.AdditionalGids, uint32(n))
	}
	passListen(&p)
	return &p, nil
}

// switchUser makes the process run as --user. Without a group it keeps the container's, as with
// runc.
func (o execFlags) switchUser(p *specs.Process, files ocispec.UserFiles) error {
	if o.user == "" {
		return nil
	}
	uid, gid, both := strings.Cut(o.user, ":")
	u, err := strconv.ParseUint(uid, 10, 32)
	g, err2 := uint64(p.User.GID), error(nil)
	if both {
		g, err2 = strconv.ParseUint(gid, 10, 32)
	}
	if err != nil || err2 != nil {
		return fmt.Errorf("--user %q: want UID[:GID], numbers: %w", o.user, errdefs.ErrInvalidArgument)
	}
	to := ocispec.User{User: specs.User{UID: uint32(u), GID: uint32(g), AdditionalGids: files.MemberOf(uint32(u))}, Home: files.Home(uint32(u))}
	if to.UID == p.User.UID {
		to.AdditionalGids = slices.Clone(p.User.AdditionalGids)
	}
	files.SwitchUser(p, to)
	return nil
}

// addHome sets HOME for the main process's user, as runc does. A root with unreadable files has no
// users: HOME is / then.
func addHome(p *specs.Process, rootfs string, mounts []specs.Mount) error {
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return fmt.Errorf("root.path: %w", err)
	}
	defer func() { _ = root.Close() }()
	files, _ := ocispec.ReadUserFilesBelow(root, mounts)
	files.AddHome(p)
	return nil
}

func addCapabilities(p *specs.Process, names []string) {
	if len(names) == 0 {
		return
	}
	caps := specs.LinuxCapabilities{}
	if p.Capabilities != nil {
		caps = *p.Capabilities
	}
	for _, set := range []*[]string{&caps.Bounding, &caps.Effective, &caps.Permitted} {
		*set = slices.Clone(*set)
		for _, n := range names {
			n = "CAP_" + strings.TrimPrefix(strings.ToUpper(n), "CAP_")
			if !slices.Contains(*set, n) {
				*set = append(*set, n)
			}
		}
	}
	p.Capabilities = &caps
}

// below changes a process's cgroups to one below the container's; on v1 those of the
// named controllers only, or all.
func below(c *compile.Cgroup, arg string) error {
	if arg == "" {
		return nil
	}
	controllers, sub, named := strings.Cut(arg, ":")
	if !named {
		controllers, sub = "", arg
	}
	sub = filepath.Clean("/" + sub)
	own := maps.Clone(c.Own)
	moved := false
	for i, dir := range c.Dirs {
		for name, of := range own {
			match := of == dir && slices.ContainsFunc(strings.Split(controllers, ","), func(w string) bool { return slices.Contains(strings.Split(name, ","), w) })
			if of == dir && (controllers == "" || match) {
				c.Dirs[i], moved = path.Join(dir, sub), true
			}
		}
	}
	if c.Unified != "" && controllers == "" {
		c.Unified, moved = path.Join(c.Unified, sub), true
	}
	if !moved {
		return fmt.Errorf("--cgroup %q: names no controller of this machine: %w", arg, errdefs.ErrInvalidArgument)
	}
	return nil
}
