package cli

import (
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/progress"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newPush(a *app) *cobra.Command {
	var quiet bool
	var flag string
	cmd := &cobra.Command{
		Use:   "push [flags] IMAGE [DESTINATION]",
		Short: "Store an image in a registry",
		Long: "Store an image in the registry of its name, or of another name. If the image is for several platforms, only the local one is sent.\n" +
			"push uses the credentials of login.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &longshorev1.PushImageRequest{Name: args[0]}
			if len(args) == 2 {
				req.Target = args[1]
			}
			return a.Call(func(c *base.Client) (err error) {
				if req.Credentials, err = credentialsFor(cmd.Context(), a, args[len(args)-1], flag); err != nil {
					return err
				}
				stream, err := c.Images.PushImage(cmd.Context(), req)
				if err != nil {
					return err
				}
				show := progress.New(a.Stderr, quiet)
				defer show.End()
				return base.Receive(stream.Recv, func(m *longshorev1.PushImageResponse) error {
					show.Step(m.GetProgress())
					return nil
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	cmd.Flags().StringVar(&flag, "creds", "", "registry user[:password]; without a password $LONGSHORE_REGISTRY_PASSWORD is used")
	return cmd
}
