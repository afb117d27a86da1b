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
		Short: "Repair damaged files of the agent's records",
		Long: "Repair the files of the agent's records if one is damaged and the agent does not start: from their copies, from the event log, and from\n" +
			"the readable entries. Stop the agent first; containers keep running. repair keeps each damaged file beside the new one, as FILE.damaged.\n" +
			"`longshore check --images` is for the images' own files.",
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
	cmd.Flags().BoolVar(&dry, "dry-run", false, "show the damage and the repairs, and change nothing")
	return cmd
}
