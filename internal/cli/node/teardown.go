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
		Short: "Remove everything that runs on this node, of every owner",
		Long: "Stop and remove every sandbox of every owner, with its containers, and what they use: keeper, mounts, cgroups, links. Images, volumes and " +
			"the configuration stay. Stop the agent first, so that nothing is started again. Use it before you uninstall the program.",
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
	cmd.Flags().DurationVar(&grace, "grace", 10*time.Second, "how long containers have to end by themselves before they are killed")
	return cmd
}
