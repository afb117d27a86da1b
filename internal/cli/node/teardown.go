package node

import (
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/obs"
)

// NewTeardown returns the command teardown.
func NewTeardown(a *base.App) *cobra.Command {
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "teardown",
		Short: "Remove all sandboxes and containers of this node, of every owner",
		Long: "Stop and remove every sandbox of every owner, with its containers, keeper, mounts, cgroups and links. Images, volumes and the\n" +
			"configuration stay. Stop the agent first, so that it restarts nothing. Use teardown before you uninstall the program.",
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := a.LoadConfig()
			if err != nil {
				return err
			}
			_, onTerminal := base.Terminal(a.Stderr)
			log, _, err := obs.NewLogger(a.Stderr, obs.LogConfig{Level: "warn", Format: cfg.Agent.LogFormat, Terminal: onTerminal})
			if err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.Teardown(ctx, cfg, log, grace)
		},
	}
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Second, "time for containers to exit before they are killed")
	return cmd
}
