package cli

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/obs"
)

func newAgent(a *app) *cobra.Command {
	var level, format string
	cmd := &cobra.Command{
		Use:   agentCommand,
		Short: "Run the agent",
		Long:  "Run the agent until SIGTERM or SIGINT. Containers keep running without it.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			if level != "" {
				cfg.Agent.LogLevel = level
			}
			if format != "" {
				cfg.Agent.LogFormat = format
			}
			_, onTerminal := terminal(a.o.Stderr)
			log, logLevel, err := obs.NewLogger(a.o.Stderr, obs.LogConfig{Level: cfg.Agent.LogLevel, Format: cfg.Agent.LogFormat, Terminal: onTerminal})
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.o.Agent(ctx, cfg, log, logLevel)
		},
	}
	cmd.Flags().StringVar(&level, "log-level", "", "debug, info, warn or error")
	cmd.Flags().StringVar(&format, "log-format", "", "json, text or auto")
	return cmd
}
