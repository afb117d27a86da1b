package cli

import (
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/obs"
)

func newRepair(a *app) *cobra.Command {
	var dry bool
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Mend damaged files of the node's records",
		Long: "Mend the files in which the agent keeps its records, when one is damaged and the agent does not start: from the copies beside them, " +
			"from the event log, and from what can still be read. Stop the agent first; containers keep running. Each damaged file is kept beside the new one, " +
			"as FILE.damaged. `longshore check --images` is for the images' own files.",
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			_, onTerminal := terminal(a.o.Stderr)
			log, _, err := obs.NewLogger(a.o.Stderr, obs.LogConfig{Level: "warn", Format: cfg.Agent.LogFormat, Terminal: onTerminal})
			if err != nil {
				return err
			}
			return a.o.Repair(cfg, log, a.o.Stdout, dry)
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what is damaged and what would be done, and change nothing")
	return cmd
}
