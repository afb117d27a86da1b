package ocicli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/cgroup/device"
	"github.com/longshore/longshore/internal/cgroup/systemd"
	"github.com/longshore/longshore/internal/core"
)

// Name is that of the program which is this command line alone, for callers that
// want one path to execute.
const Name = "longshore-oci"

// Options are what Main needs.
type Options struct {
	Args    []string // without the program's name, and without "oci"
	Version string
	Stdout  io.Writer // nil is os.Stdout
	Stderr  io.Writer // nil is os.Stderr
}

// app is one command being run.
type app struct {
	o       Options
	root    string
	systemd bool
	logTo   logger
	tree    *cgroup.Tree
}

// exitError ends the program with a status of its own; err may be nil.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.status)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// errUsage is a command line that cannot be understood; what is wrong was said.
var errUsage = errors.New("bad command line")

// command is one verb. It parses what follows its name by flags of its own.
type command struct {
	run   func(ctx context.Context, a *app, args []string) error
	usage string
}

func commands() map[string]command {
	return map[string]command{
		"create":   {createCmd, "create a container, parked before its program"},
		"start":    {startCmd, "let a created container's program run"},
		"run":      {runCmd, "create, start, wait and delete"},
		"state":    {stateCmd, "print a container's state as JSON"},
		"kill":     {killCmd, "send a signal"},
		"delete":   {deleteCmd, "remove what a container has left"},
		"exec":     {execCmd, "start a further process in a container"},
		"ps":       {psCmd, "list a container's processes"},
		"list":     {listCmd, "list containers"},
		"events":   {eventsCmd, "print figures and out-of-memory events as JSON lines"},
		"update":   {updateCmd, "change limits"},
		"pause":    {pauseCmd, "freeze a container"},
		"resume":   {resumeCmd, "let a frozen container go on"},
		"features": {featuresCmd, "print what this runtime can do as JSON"},
		"spec":     {specCmd, "write a config.json to begin with"},
	}
}

// Main runs one command and returns the process's exit status. It may replace
// the process by itself, on a read-only mount; see shield.
func Main(ctx context.Context, o Options) int {
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	a := &app{o: o}
	err := a.main(ctx)
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errUsage):
		return 1
	case errors.As(err, &exit):
		if exit.err != nil {
			a.logTo.fail(o.Stderr, exit.err)
		}
		return exit.status
	}
	a.logTo.fail(o.Stderr, err)
	return 1
}

func (a *app) main(ctx context.Context) error {
	f := a.flags("", "COMMAND [ARGUMENT…]")
	var logFile, logFormat string
	var debug, version bool
	f.StringVar(&a.root, "root", defaultRoot(), "directory of what is kept of containers")
	f.StringVar(&logFile, "log", "", "file to append messages to")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	f.BoolVar(&debug, "debug", false, "log what is done")
	f.BoolVar(&a.systemd, "systemd-cgroup", false, "linux.cgroupsPath is slice:prefix:name, and systemd makes it")
	f.BoolVar(&version, "version", false, "print the version")
	f.BoolVar(&version, "v", false, "print the version")
	_ = f.String("rootless", "auto", "taken for the sake of callers: nothing depends on it")
	_ = f.String("criu", "", "taken for the sake of callers: there is no checkpoint")
	if err := f.Parse(a.o.Args); err != nil {
		return usage(err)
	}
	if version {
		return a.print("%s version %s\nspec: %s\n", Name, a.o.Version, specs.Version)
	}
	if err := a.logTo.open(logFile, logFormat, debug); err != nil {
		return err
	}
	root, err := filepath.Abs(a.root)
	if err != nil {
		return err
	}
	a.root = root
	name := f.Arg(0)
	c, ok := commands()[name]
	switch {
	case name == "" || name == "help":
		f.SetOutput(a.o.Stdout)
		f.Usage()
		return nil
	case name == "checkpoint" || name == "restore":
		return fmt.Errorf("%s: not done by this runtime: %w", name, errdefs.ErrNotImplemented)
	case !ok:
		return fmt.Errorf("%s: no such command: %w", name, errdefs.ErrInvalidArgument)
	}
	// What containers are given does not depend on who calls.
	unix.Umask(0o022)
	if name == "create" || name == "run" || name == "exec" {
		if err := shield(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return c.run(ctx, a, f.Args()[1:])
}

// defaultRoot is where containers are kept unless --root says otherwise.
func defaultRoot() string {
	if os.Geteuid() != 0 {
		if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
			return dir + "/" + Name
		}
	}
	return "/run/" + Name
}

// flags makes the flag set of a command; "" is the program's own.
func (a *app) flags(command, args string) *flag.FlagSet {
	f := flag.NewFlagSet(command, flag.ContinueOnError)
	f.SetOutput(a.o.Stderr)
	f.Usage = func() {
		w := f.Output()
		_, _ = fmt.Fprintf(w, "usage: %s\n", strings.Join(strings.Fields(Name+" [OPTION…] "+command+" "+args), " "))
		if command == "" {
			_, _ = fmt.Fprintln(w, "\ncommands:")
			for _, name := range sorted(commands()) {
				_, _ = fmt.Fprintf(w, "  %-10s%s\n", name, commands()[name].usage)
			}
			_, _ = fmt.Fprintln(w, "\noptions:")
		}
		f.PrintDefaults()
	}
	return f
}

// usage turns what the flag package has already told into our error.
func usage(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return &exitError{}
	}
	return errUsage
}

// id parses a command's flags and returns the container's ID and what follows.
func (a *app) id(f *flag.FlagSet, args []string) (id string, rest []string, err error) {
	if err := f.Parse(args); err != nil {
		return "", nil, usage(err)
	}
	if f.NArg() == 0 {
		f.Usage()
		return "", nil, errUsage
	}
	if err := validID(f.Arg(0)); err != nil {
		return "", nil, err
	}
	return f.Arg(0), f.Args()[1:], nil
}

func (a *app) print(format string, args ...any) error {
	_, err := fmt.Fprintf(a.o.Stdout, format, args...)
	return err
}

// cgroups are this machine's, looked at when first needed.
func (a *app) cgroups() (*cgroup.Tree, error) {
	if a.tree != nil {
		return a.tree, nil
	}
	var err error
	o := cgroup.Options{Root: "/" + Name, DeviceProgram: device.Program}
	if a.systemd {
		o.Systemd = &systemd.Bus{}
	}
	a.tree, err = cgroup.New(o)
	return a.tree, err
}

// place says where a container's cgroup is. As for other runtimes a path is one
// below the root of each hierarchy, and without one the ID is.
func (a *app) place(id, cgroupsPath string) (core.CgroupRef, error) {
	if a.systemd {
		return a.placeUnit(id, cgroupsPath)
	}
	if cgroupsPath == "" {
		cgroupsPath = id
	}
	if strings.ContainsAny(cgroupsPath, "\x00\n") {
		return core.CgroupRef{}, fmt.Errorf("linux.cgroupsPath %q: %w", cgroupsPath, errdefs.ErrInvalidArgument)
	}
	clean := filepath.Clean("/" + cgroupsPath)
	if clean == "/" {
		return core.CgroupRef{}, fmt.Errorf("linux.cgroupsPath %q is the root: %w", cgroupsPath, errdefs.ErrInvalidArgument)
	}
	return core.CgroupRef{Path: clean}, nil
}

// placeUnit says which unit of systemd a container is in, slice:prefix:name.
func (a *app) placeUnit(id, cgroupsPath string) (core.CgroupRef, error) {
	if cgroupsPath == "" {
		cgroupsPath = ":" + Name + ":" + id
	}
	if strings.Count(cgroupsPath, ":") != 2 {
		return core.CgroupRef{}, fmt.Errorf("linux.cgroupsPath %q: want slice:prefix:name with --systemd-cgroup: %w", cgroupsPath, errdefs.ErrInvalidArgument)
	}
	t, err := a.cgroups()
	if err != nil {
		return core.CgroupRef{}, err
	}
	return t.Place(core.Cgroup{Parent: cgroupsPath}, core.CgroupRef{}, id)
}
