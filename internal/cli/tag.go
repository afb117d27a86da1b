package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newTag(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "tag IMAGE NAME",
		Short: "Give an image another name",
		Args:  exactArgs(2, "an image and a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(func(c *client) error {
				_, err := c.images.TagImage(cmd.Context(), &longshorev1.TagImageRequest{Source: args[0], Target: args[1]})
				return err
			})
		},
	}
}
