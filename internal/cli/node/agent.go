// Package node has the commands of the node as a whole: the agent itself, its configuration, its Swarm,
// and checks.
package node

import (
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/obs"
)

// AgentCommand is the command that runs the agent.
const AgentCommand = "agent"

// CheckArgs returns the arguments of a check of the configuration, `config check`, that an agent with these arguments has.
func CheckArgs(args []string) (check []string) {
	var skip, found bool
	for _, a := range args {
		switch {
		case skip:
			skip = false
		case a == AgentCommand && !found:
			check, found = append(check, "config", "check"), true
		case a == "--log-level" || a == "--log-format":
			skip = true
		case strings.HasPrefix(a, "--log-level=") || strings.HasPrefix(a, "--log-format="):
		default:
			check = append(check, a)
		}
	}
	if !found {
		return nil
	}
	return check
}

// NewAgent returns the command agent.
func NewAgent(a *base.App) *cobra.Command {
	var level, format string
	cmd := &cobra.Command{
		Use:   AgentCommand,
		Short: "Run the agent",
		Long:  "Run the agent until SIGTERM or SIGINT. Containers keep running without it.",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.LoadConfig()
			if err != nil {
				return err
			}
			if level != "" {
				cfg.Agent.LogLevel = level
			}
			if format != "" {
				cfg.Agent.LogFormat = format
			}
			_, onTerminal := base.Terminal(a.Stderr)
			log, logLevel, err := obs.NewLogger(a.Stderr, obs.LogConfig{Level: cfg.Agent.LogLevel, Format: cfg.Agent.LogFormat, Terminal: onTerminal})
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err = a.Agent(ctx, cfg, log, logLevel)
			if err != nil {
				writeProblems(a, cfg)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&level, "log-level", "", "debug, info, warn or error")
	cmd.Flags().StringVar(&format, "log-format", "", "json, text or auto")
	return cmd
}
