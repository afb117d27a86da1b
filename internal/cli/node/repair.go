package node

import (
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/obs"
)

// NewRepair returns the command repair.
func NewRepair(a *base.App) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Mend damaged files of the node's records",
		Long: "Mend the files in which the agent keeps its records, when one is damaged and the agent does not start: from the copies beside them, " +
			"from the event log, and from what can still be read. Stop the agent first; containers keep running. Each damaged file is kept beside the new one, " +
			"as FILE.damaged. `longshore check --images` is for the images' own files.",
		Args: base.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.LoadConfig()
			if err != nil {
				return err
			}
			_, onTerminal := base.Terminal(a.Stderr)
			log, _, err := obs.NewLogger(a.Stderr, obs.LogConfig{Level: "warn", Format: cfg.Agent.LogFormat, Terminal: onTerminal})
			if err != nil {
				return err
			}
			return a.Repair(cfg, log, a.Stdout, dry)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what is damaged and what would be done, and change nothing")
	return cmd
}
