// Package guestprogram is the program that runs as a guest's agent: by its flags, in kata-agent's place, or as the
// machine's first process. Two programs use it: the small longshore-guest, and `longshore guest`, which adds the
// optional parts of Build.
//
// Start at Main.
package guestprogram

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/longshore/longshore/internal/agent/guestagent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/kata"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/guest/options"
	"github.com/longshore/longshore/internal/guest/vsock"
	"github.com/longshore/longshore/internal/logs"
)

// Build has the optional parts of a program.
type Build struct {
	Version string
	// Keeper returns the path of longshore-keeper, or of a program that links guest/onefile.
	Keeper func() (string, error)
	// Images opens the store of the images that are pulled for containers, in a directory. It is nil if the program
	// pulls none.
	Images func(dir, version string, log *slog.Logger) (Images, error)
	// Control serves the control API until ctx ends. It is nil if the program has none.
	Control func(ctx context.Context, c Control) error
}

// Images is a store of images that is closed at the end.
type Images interface {
	core.Images
	io.Closer
}

// Control has the parameters of a guest's control API.
type Control struct {
	Engine   *engine.Engine
	Listener net.Listener
	// Dir is a directory for the control API alone.
	Dir string
	// Recent has the last output of containers.
	Recent *logs.Recent
	// Restricted reports whether only calls that list and inspect are served, so that the API
	// offers no way around the shim's policy.
	Restricted func() bool
	Version    string
	Logger     *slog.Logger
}

// Main runs the program with its arguments, beginning with its name, and returns its status. As the
// machine's first process it does not return.
func Main(args []string, b Build) int {
	var err error
	switch roleOf(args, os.Getpid()) {
	case first:
		b.machine()
	case service:
		err = b.serveAsKataAgent(args[1:], os.Stderr)
	case plain:
		err = b.run(args[1:], os.Stderr)
	}
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintln(os.Stderr, "longshore-guest:", err)
		}
		return 1
	}
	return 0
}

func (b Build) run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("longshore-guest", flag.ContinueOnError)
	flags.SetOutput(out)
	s := settings{Build: b, cdi: guest.CDI{Dir: guest.CDIDir}}
	listen := flags.String("listen", "", "address for the shim: unix:///PATH, or vsock://CID:PORT with -1 for any CID")
	control := new(string)
	if b.Control != nil {
		control = flags.String("control", "", "address of the control API, in the form of --listen; by vsock it serves only the host (default: none)")
	}
	flags.Var(names{&s.requests.Allow}, "allow", "requests to allow, such as ExecProcessRequest, separated by commas; all others are refused; repeatable")
	flags.Var(names{&s.requests.Deny}, "deny", "requests to refuse, in the same form")
	flags.StringVar(&s.policyFile, "policy", "", "a `file` with the first policy for requests, in Rego")
	flags.StringVar(&s.state, "state", ownState, "directory on a tmpfs; the agent removes files of an earlier agent in it")
	flags.StringVar(&s.groups, "cgroup-root", ownGroups, "directory for containers' cgroups, below the root of each hierarchy")
	flags.DurationVar(&s.plugTime, "hotplug-timeout", guest.PlugTime, "time to wait for a device that the host plugs in")
	flags.BoolVar(&s.reclaim, "reclaim-paused", false, "free memory of containers when they are paused: page cache, and what goes to the machine's swap")
	flags.DurationVar(&s.cdi.Wait, "cdi-timeout", options.CDITimeout, "time to wait for the description of a container's devices in "+string(guest.CDIDir))
	flags.BoolVar(&s.cdi.Visible, "visible-cdi-devices", false, "also give containers the devices in their variable VISIBLE_CDI_DEVICES")
	flags.TextVar(&s.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; see --help", flags.Arg(0))
	}
	var err error
	if s.listen, err = options.ParseAddress(*listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if *control != "" {
		at, err := options.ParseAddress(*control)
		if err != nil {
			return fmt.Errorf("--control: %w", err)
		}
		s.control = &at
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	return s.serve(ctx, out)
}

// The agent's directories in a guest.
const (
	ownState  = "/run/longshore-guest"
	ownGroups = "/longshore-guest"
)

// settings are an agent's settings from all sources.
type settings struct {
	Build

	listen        options.Address
	control       *options.Address // nil: the control API is not served
	recent        *logs.Recent     // nil without it
	state, groups string
	requests      kata.Requests
	policyFile    string
	level         slog.Level
	plugTime      time.Duration
	reclaim       bool
	cdi           guest.CDI
	logPort       uint32   // of vsock; with 0 the log goes to serve's writer
	streamPort    uint32   // of vsock; 0 is none
	warnings      []string // about options, to be logged
}

// serve runs the agent until ctx ends or the sandbox was destroyed.
func (s settings) serve(ctx context.Context, out io.Writer) error {
	if s.logPort != 0 {
		l, err := vsock.Listen(vsock.Any, s.logPort)
		if err != nil {
			return fmt.Errorf("listen on the log's port: %w", err)
		}
		port := guestagent.NewLogPort(l)
		defer port.Close()
		out = port
	}
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: s.level}))
	for _, w := range s.warnings {
		log.WarnContext(ctx, "an option has no effect", "option", w)
	}
	if err := protect(); err != nil {
		log.WarnContext(ctx, "could not protect the agent from the kernel's out-of-memory killer", "error", err)
	}
	keeper, err := s.Keeper()
	if err != nil {
		return err
	}
	if s.control != nil {
		s.recent = logs.NewRecent()
	}
	beside, err := s.beside(log)
	if err != nil {
		return err
	}
	l, err := open(s.listen)
	if err != nil {
		return err
	}
	o := guestagent.Options{
		State: s.state, Keeper: keeper, CgroupRoot: s.groups, Listeners: []net.Listener{l}, Requests: s.requests, PolicyFile: s.policyFile, PlugTime: s.plugTime, Reclaim: s.reclaim, CDI: s.cdi, Version: s.Version, Logger: log, Beside: beside, Recent: s.recent,
	}
	if s.streamPort != 0 {
		l, err := vsock.Listen(vsock.Any, s.streamPort)
		if err != nil {
			return errors.Join(fmt.Errorf("listen on the streams' port: %w", err), o.Listeners[0].Close())
		}
		port := guestagent.NewStreamPort(l, guestagent.HostPort)
		defer port.Close()
		o.Streams = port
	}
	if s.Images != nil {
		store, err := s.Images(filepath.Join(s.state, "image"), s.Version, log)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		defer func() { _ = store.Close() }() // its content ends with the machine
		o.Images = store
	}
	return guestagent.Run(ctx, o)
}

// ownScore is the oom_score_adj of the agent, which keeper and nest inherit. Kata's unit file sets the same for its
// agent.
const ownScore = -997

// protect makes the kernel kill other processes first when memory runs out.
func protect() error {
	return os.WriteFile("/proc/self/oom_score_adj", strconv.AppendInt(nil, ownScore, 10), 0)
}

// beside returns the function that serves the control API, or nil.
func (s settings) beside(log *slog.Logger) (func(context.Context, *engine.Engine, func() bool) error, error) {
	if s.control == nil {
		return nil, nil
	}
	l, err := open(*s.control)
	if err != nil {
		return nil, fmt.Errorf("listen for the control API: %w", err)
	}
	return func(ctx context.Context, eng *engine.Engine, restricted func() bool) error {
		return s.Control(ctx, Control{Engine: eng, Listener: l, Dir: s.state + "/control", Recent: s.recent, Restricted: restricted, Version: s.Version, Logger: log})
	}, nil
}

// names is a flag with a list as its value.
type names struct{ list *[]string }

func (n names) String() string { return "" }

func (n names) Set(s string) error {
	*n.list = append(*n.list, strings.Split(s, ",")...)
	return nil
}

// open listens at an address. A socket with a path is for root alone.
func open(a options.Address) (net.Listener, error) {
	if a.Path == "" {
		return vsock.Listen(a.CID, a.Port)
	}
	defer syscall.Umask(syscall.Umask(0o177))
	return net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: a.Path})
}
