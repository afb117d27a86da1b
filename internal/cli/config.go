package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/config"
)

func newConfig(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show or check the configuration",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsCommand,
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "default",
		Short: "Print a configuration file with every key, its meaning and its default",
		Args:  noArgs,
		RunE:  func(*cobra.Command, []string) error { return a.print("%s", config.DefaultFile()) },
	}, &cobra.Command{
		Use:   "check",
		Short: "Check the configuration, and the files that it names, as the agent would",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			cfg, err := a.loadConfig()
			if err == nil {
				err = cfg.CheckFiles()
			}
			if err != nil {
				return err
			}
			return a.print("the configuration is valid\n")
		},
	}, newConfigShow(a))
	return cmd
}

func newConfigShow(a *app) *cobra.Command {
	var live bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Print the complete configuration as the files set it, with secrets masked",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if live {
				return a.call(func(c *client) error {
					resp, err := c.node.Config(cmd.Context(), &longshorev1.ConfigRequest{})
					if err != nil {
						return err
					}
					return a.print("%s", resp.GetToml())
				})
			}
			cfg, err := a.loadConfig()
			if err != nil {
				return err
			}
			text, err := cfg.Masked()
			if err != nil {
				return err
			}
			return a.print("%s", text)
		},
	}
	cmd.Flags().BoolVar(&live, "live", false, "show the configuration that the running agent uses")
	return cmd
}

// loadConfig reads the files as the agent would, and applies our flags.
func (a *app) loadConfig() (config.Config, error) {
	var cfg config.Config
	var err error
	if a.configFile != "" {
		cfg, err = config.Load(a.configFile)
	} else {
		cfg, err = config.LoadDefault()
	}
	if err != nil {
		return cfg, err
	}
	cfg = cfg.Rooted(a.root, a.state)
	return cfg, cfg.Validate()
}
