// Longshore-guest is the agent inside of a virtual machine, which Kata's shim drives in
// place of kata-agent. Start reading at internal/guest/agent and internal/face/kata.
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

	"github.com/longshore/longshore/internal/guest/agent"
)

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release string //nolint:gochecknoglobals // only the linker sets it

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintln(os.Stderr, "longshore-guest:", err)
		}
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("longshore-guest", flag.ContinueOnError)
	flags.SetOutput(out)
	listen := flags.String("listen", "", "where the shim calls: unix:///PATH")
	state := flags.String("state", "/run/longshore-guest", "directory on a tmpfs; what an earlier agent left in it is removed")
	groups := flags.String("cgroup-root", "/longshore-guest", "containers' cgroups are below this directory of each hierarchy")
	level := slog.LevelInfo
	flags.TextVar(&level, "log-level", level, "debug, info, warn or error")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; --help shows what there is", flags.Arg(0))
	}
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level}))
	keeper, err := agent.Program("longshore-keeper")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	l, err := open(ctx, *listen)
	if err != nil {
		return err
	}
	return agent.Run(ctx, agent.Options{State: *state, Keeper: keeper, CgroupRoot: *groups, Listeners: []net.Listener{l}, Version: version(), Logger: log})
}

// open listens at an address. The socket is for root alone.
func open(ctx context.Context, address string) (net.Listener, error) {
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("--listen %q: unix:///PATH is wanted", address)
	}
	defer syscall.Umask(syscall.Umask(0o177))
	return new(net.ListenConfig).Listen(ctx, "unix", path)
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
