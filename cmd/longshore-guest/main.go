// Longshore-guest is the agent inside of a virtual machine, which Kata's shim drives in
// place of kata-agent. It can be the machine's first process, and it is the keeper that it
// starts. Start reading at internal/guest/agent, internal/guest/boot, internal/guest/onefile
// and internal/face/kata.
package main

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
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/longshore/longshore/internal/face/kata"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/guest/agent"
	_ "github.com/longshore/longshore/internal/guest/onefile" // this program may be the keeper
	"github.com/longshore/longshore/internal/guest/options"
	"github.com/longshore/longshore/internal/guest/vsock"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release string //nolint:gochecknoglobals // only the linker sets it

func main() {
	var err error
	switch roleOf(os.Args, os.Getpid()) {
	case first:
		machine()
	case service:
		err = serveAsKataAgent(os.Args[1:], os.Stderr)
	case plain:
		err = run(os.Args[1:], os.Stderr)
	}
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintln(os.Stderr, "longshore-guest:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("longshore-guest", flag.ContinueOnError)
	flags.SetOutput(out)
	listen := flags.String("listen", "", "where the shim calls: unix:///PATH, or vsock://CID:PORT with -1 for any CID")
	var s settings
	flags.Var(names{&s.requests.Allow}, "allow", "names of requests, such as ExecProcessRequest, with commas between them: only these are answered; more than once adds")
	flags.Var(names{&s.requests.Deny}, "deny", "names of requests that are not answered")
	flags.StringVar(&s.policyFile, "policy", "", "a `file` with a policy in Rego that decides about requests from the beginning")
	flags.StringVar(&s.state, "state", ownState, "directory on a tmpfs; what an earlier agent left in it is removed")
	flags.StringVar(&s.groups, "cgroup-root", ownGroups, "containers' cgroups are below this directory of each hierarchy")
	flags.DurationVar(&s.plugTime, "hotplug-timeout", guest.PlugTime, "how long to wait for a device that the host is plugging in")
	flags.TextVar(&s.level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; --help shows what there is", flags.Arg(0))
	}
	var err error
	if s.listen, err = options.ParseAddress(*listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
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

// settings are what an agent needs to know, however it was told.
type settings struct {
	listen        options.Address
	state, groups string
	requests      kata.Requests
	policyFile    string
	level         slog.Level
	plugTime      time.Duration
	logPort       uint32   // of vsock; 0 means out
	warnings      []string // about options, to be logged
}

// serve is the agent, until ctx ends or the sandbox was destroyed.
func (s settings) serve(ctx context.Context, out io.Writer) error {
	if s.logPort != 0 {
		l, err := vsock.Listen(vsock.Any, s.logPort)
		if err != nil {
			return fmt.Errorf("the log's port: %w", err)
		}
		port := agent.NewLogPort(l)
		defer port.Close()
		out = port
	}
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: s.level}))
	for _, w := range s.warnings {
		log.WarnContext(ctx, "an option has no effect", "option", w)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	l, err := open(s.listen)
	if err != nil {
		return err
	}
	return agent.Run(ctx, agent.Options{State: s.state, Keeper: self, CgroupRoot: s.groups, Listeners: []net.Listener{l}, Requests: s.requests, PolicyFile: s.policyFile, PlugTime: s.plugTime, Version: version(), Logger: log})
}

// names is a flag whose value is a list.
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

func version() string {
	if release != "" {
		return release
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
