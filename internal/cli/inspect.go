package cli

import (
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newInspect(a *app) *cobra.Command {
	var showEnv, image bool
	cmd := &cobra.Command{
		Use:   "inspect NAME...",
		Short: "Show the complete record of a container, sandbox or image as JSON",
		Long:  "Show the complete record of a container, sandbox or image as JSON. Values of environment variables are hidden unless --show-env.",
		Args:  minArgs(1, "a container, sandbox or image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(func(c *client) error {
				for _, name := range args {
					resp, err := c.containers.Inspect(cmd.Context(), &longshorev1.InspectRequest{Name: name, ShowEnv: showEnv})
					if image || status.Code(err) == codes.NotFound {
						img, ierr := c.images.InspectImage(cmd.Context(), &longshorev1.InspectImageRequest{Name: name, ShowEnv: showEnv})
						if image || ierr == nil {
							resp, err = img, ierr
						}
					}
					if err != nil {
						return err
					}
					if err := a.print("%s\n", resp.GetJson()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&showEnv, "show-env", false, "show the values of environment variables")
	cmd.Flags().BoolVar(&image, "image", false, "look up an image, even if a container has that name")
	return cmd
}
