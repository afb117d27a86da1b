package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newRename(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "rename CONTAINER NAME",
		Short: "Rename a container",
		Long:  "Rename a container. The host name inside it does not change.",
		Args:  base.ExactArgs(2, "a container and its new name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				_, err := c.Containers.Rename(cmd.Context(), &longshorev1.RenameRequest{Name: args[0], NewName: args[1]})
				return err
			})
		},
	}
}
