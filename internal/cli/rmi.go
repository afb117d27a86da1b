package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newRmi(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rmi IMAGE...",
		Short: "Remove image names, or with an ID all names of the image",
		Args:  base.MinArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Images.RemoveImage(ctx, &longshorev1.RemoveImageRequest{Name: name, Force: force})
				return base.IfForced(force, err)
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also images that containers use")
	return cmd
}
