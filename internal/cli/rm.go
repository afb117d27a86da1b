package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newRm(a *app) *cobra.Command {
	var force, volumes, ignore bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove containers or sandboxes",
		Args:  base.MinArgs(1, "a container or sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			remove := func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Containers.Remove(ctx, &longshorev1.RemoveRequest{Name: name, Force: force, Volumes: volumes})
				return base.IfForced(force && !ignore, err)
			}
			if ignore {
				return a.eachExact(cmd.Context(), args, remove)
			}
			return a.Each(cmd.Context(), args, remove)
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also running objects, and those of other owners")
	cmd.Flags().BoolVarP(&ignore, "ignore", "i", false, ignoreUsage)
	cmd.Flags().BoolVarP(&volumes, "volumes", "v", false, "also their anonymous volumes")
	return cmd
}
