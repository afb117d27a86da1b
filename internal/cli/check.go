package cli

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newCheck(a *app) *cobra.Command {
	var asJSON bool
	req := &longshorev1.CheckRequest{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the engine's records with each other and with the node",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(func(c *client) error {
				resp, err := c.node.Check(cmd.Context(), req)
				if err != nil {
					return err
				}
				if len(resp.GetFindings()) == 0 && !asJSON {
					return a.print("no problems found\n")
				}
				return a.findings(resp.GetFindings(), asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&req.Images, "images", false, "also read all images: blobs against their digests, unpacked layers against what was unpacked; a pull mends what is damaged")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
