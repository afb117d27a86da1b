// Longshore is the agent and its command line in one program. The agent executes it again under
// other names for work that must not be done in the agent's process; main chooses by the name.
// Start reading at internal/cli and internal/agent.
package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/longshore/longshore/internal/agent"
	"github.com/longshore/longshore/internal/agent/guestprogram"
	"github.com/longshore/longshore/internal/checkpoint/criurun"
	"github.com/longshore/longshore/internal/cli"
	"github.com/longshore/longshore/internal/cli/node"
	"github.com/longshore/longshore/internal/cli/service"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/face/mesos/fetch/store"
	"github.com/longshore/longshore/internal/face/nomad/relay"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/network/names"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == image.WorkerArg {
		os.Exit(image.WorkerMain(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == store.Arg {
		os.Exit(store.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == names.Arg {
		os.Exit(names.Main())
	}
	if len(os.Args) > 1 && os.Args[1] == criurun.Arg {
		os.Exit(criurun.Main(os.Args[2:]))
	}
	if len(os.Args) > 1 && os.Args[1] == broker.Arg {
		os.Exit(broker.Main())
	}
	if relay.Wanted(os.Getenv) {
		os.Exit(relay.Main(context.Background(), relay.Options{
			Args: os.Args[1:], Getenv: os.Getenv, Stdout: os.Stdout, Stderr: os.Stderr, Version: version(),
		}))
	}
	if guestprogram.Named(os.Args) {
		os.Exit(agent.Guest(os.Args, version()))
	}
	args := os.Args[1:]
	if filepath.Base(os.Args[0]) == service.GeneratorName {
		args = append([]string{"system", "generator"}, args...)
	}
	os.Exit(cli.Main(context.Background(), cli.Options{
		Args: args, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Version: version(),
		Agent: func(ctx context.Context, cfg config.Config, log *slog.Logger, level *slog.LevelVar) error {
			return agent.Run(ctx, agent.Options{Config: cfg, Logger: log, Level: level, Version: version(), Args: os.Args, CheckArgs: node.CheckArgs(os.Args[1:])})
		},
		Guest: func(args []string) int { return agent.Guest(args, version()) },
		Teardown: func(ctx context.Context, cfg config.Config, log *slog.Logger, grace time.Duration) error {
			return agent.Run(ctx, agent.Options{Config: cfg, Logger: log, Version: version(), Teardown: true, Grace: grace})
		},
		Repair:  agent.Repair,
		Offline: agent.Offline,
		Formats: func() string { return agent.Formats(version()) },
	}))
}

// release is set by the release build (-ldflags -X main.release=1.2.3).
var release string //nolint:gochecknoglobals // only the linker sets it

// version returns the release, or the revision that the build recorded.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}
