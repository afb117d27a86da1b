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
	"github.com/longshore/longshore/internal/cgroup/systemd"
	"github.com/longshore/longshore/internal/core"
)

// Name is the name of the program that has only this command line, for callers that need
// a single path to execute.
const Name = "longshore-oci"

// Options configure Main.
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

// exitError makes the program exit with a status of its own; err may be nil.
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

// errUsage means that the command line is wrong and the reason has already been printed.
var errUsage = errors.New("bad command line")

// command is one command, with its own flags.
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
		"delete":   {deleteCmd, "remove a container's remains"},
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

// Main runs one command and returns the exit status. It may re-execute the program from
// a read-only mount; see shield.
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
	f.StringVar(&a.root, "root", defaultRoot(), "directory of the containers' state")
	f.StringVar(&logFile, "log", "", "file to append messages to")
	f.StringVar(&logFormat, "log-format", "text", "text or json")
	f.BoolVar(&debug, "debug", false, "log each step")
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
		return fmt.Errorf("%s: not supported by this runtime: %w", name, errdefs.ErrNotImplemented)
	case !ok:
		return fmt.Errorf("%s: no such command: %w", name, errdefs.ErrInvalidArgument)
	}
	// The caller's umask must not affect containers.
	unix.Umask(0o022)
	if name == "create" || name == "run" || name == "exec" {
		if err := shield(); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return c.run(ctx, a, f.Args()[1:])
}

// defaultRoot is the directory of containers without --root.
func defaultRoot() string {
	if os.Geteuid() != 0 {
		if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
			return dir + "/" + Name
		}
	}
	return "/run/" + Name
}

// flags makes the flag set of a command; "" means the program's own flags.
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

// usage turns an error that the flag package has already printed into errUsage.
func usage(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return &exitError{}
	}
	return errUsage
}

// id parses a command's flags, and returns the container's ID and the other arguments.
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

// cgroups returns this machine's cgroups, which it looks up at the first call.
func (a *app) cgroups() (*cgroup.Tree, error) {
	if a.tree != nil {
		return a.tree, nil
	}
	var err error
	o := cgroup.Options{Root: "/" + Name}
	if a.systemd {
		o.Systemd = &systemd.Bus{}
	}
	a.tree, err = cgroup.New(o)
	return a.tree, err
}

// place returns where a container's cgroup is. As with other runtimes, a path is below
// the root of each hierarchy, and the default is the container's ID.
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

// placeUnit returns the systemd unit of a container, for a path slice:prefix:name.
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
