package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newPause(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "pause CONTAINER...",
		Short: "Freeze running containers",
		Args:  base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Pause(ctx, &longshorev1.PauseRequest{Name: name, Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also containers of other owners")
	return cmd
}
