package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/help"
)

func newMan(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "man DIRECTORY",
		Short: "Write the manual pages of all commands",
		Long:  "Write the manual pages of all commands into a directory, such as /usr/local/share/man/man1. Packages have them.",
		Args:  base.ExactArgs(1, "a directory"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("write manual pages: %w", err)
			}
			var write func(*cobra.Command) error
			write = func(c *cobra.Command) error {
				if !c.IsAvailableCommand() && c.HasParent() {
					return nil
				}
				path := filepath.Join(args[0], strings.ReplaceAll(c.CommandPath(), " ", "-")+".1")
				if err := os.WriteFile(path, help.Page(c, a.Version), 0o644); err != nil {
					return fmt.Errorf("write manual pages: %w", err)
				}
				for _, sub := range c.Commands() {
					if err := write(sub); err != nil {
						return err
					}
				}
				return nil
			}
			return write(cmd.Root())
		},
	}
}
