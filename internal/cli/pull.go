package cli

import (
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/progress"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newPull(a *app) *cobra.Command {
	req := &longshorev1.PullImageRequest{}
	var quiet bool
	var creds string
	cmd := &cobra.Command{
		Use:   "pull IMAGE",
		Short: "Fetch an image from its registry",
		Args:  base.ExactArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			return a.Call(func(c *base.Client) (err error) {
				if req.Credentials, err = credentialsFor(cmd.Context(), a, args[0], creds); err != nil {
					return err
				}
				stream, err := c.Images.PullImage(cmd.Context(), req)
				if err != nil {
					return err
				}
				show := progress.New(a.Stderr, quiet)
				defer show.End()
				return base.Receive(stream.Recv, func(m *longshorev1.PullImageResponse) error {
					if p := m.GetProgress(); p != nil {
						show.Step(p)
					}
					img := m.GetImage()
					if img == nil {
						return nil
					}
					show.End()
					return a.Print("%s\n", img.GetId())
				})
			})
		},
	}
	cmd.Flags().StringVar(&req.Platform, "platform", "", "platform, such as linux/arm64 (default: the node's own)")
	cmd.Flags().BoolVar(&req.Missing, "missing", false, "do not ask the registry when the image is already there")
	cmd.Flags().BoolVar(&req.Pin, "pin", false, "pin the image: prune keeps it")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print the ID only")
	cmd.Flags().StringVar(&creds, "creds", "", "registry user[:password]; without a password $LONGSHORE_REGISTRY_PASSWORD is used")
	return cmd
}
