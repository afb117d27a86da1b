package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newTag(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "tag IMAGE NAME",
		Short: "Give an image another name",
		Args:  base.ExactArgs(2, "an image and a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				_, err := c.Images.TagImage(cmd.Context(), &longshorev1.TagImageRequest{Source: args[0], Target: args[1]})
				return err
			})
		},
	}
}
