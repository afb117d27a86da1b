package node

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/config"
)

// NewConfig returns the command config.
func NewConfig(a *base.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show or check the configuration",
		Args:  cobra.ArbitraryArgs,
		RunE:  base.NeedsCommand,
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "default",
		Short: "Print a configuration file with every key, its meaning and its default",
		Args:  base.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return a.Print("%s", config.DefaultFile()) },
	}, &cobra.Command{
		Use:   "check",
		Short: "Check the configuration, and the files that it names, as the agent would",
		Args:  base.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.LoadConfig()
			if err == nil {
				err = cfg.CheckFiles()
			}
			if err != nil {
				return err
			}
			return a.Print("the configuration is valid\n")
		},
	}, newConfigShow(a))
	return cmd
}

func newConfigShow(a *base.App) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the complete configuration as the files set it, with secrets masked",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if live {
				return a.Call(func(c *base.Client) error {
					resp, err := c.Node.Config(cmd.Context(), &longshorev1.ConfigRequest{})
					if err != nil {
						return err
					}
					return a.Print("%s", resp.GetToml())
				})
			}
			cfg, err := a.LoadConfig()
			if err != nil {
				return err
			}
			text, err := cfg.Masked()
			if err != nil {
				return err
			}
			return a.Print("%s", text)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "show the configuration that the running agent uses")
	return cmd
}
