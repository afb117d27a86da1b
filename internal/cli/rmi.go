package cli

import (
	"context"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newRmi(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rmi IMAGE...",
		Short: "Remove image names, or with an ID all names of the image",
		Args:  minArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.each(cmd.Context(), args, func(ctx context.Context, c *client, name string) error {
				_, err := c.images.RemoveImage(ctx, &longshorev1.RemoveImageRequest{Name: name, Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "also images that containers use")
	return cmd
}
