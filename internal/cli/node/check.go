package node

import (
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// NewCheck returns the command check.
func NewCheck(a *base.App) *cobra.Command {
	var asJSON bool
	req := &longshorev1.CheckRequest{}
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Compare the engine's records with each other and with the node",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.Check(cmd.Context(), req)
				if err != nil {
					return err
				}
				if len(resp.GetFindings()) == 0 && !asJSON {
					return a.Print("no problems found\n")
				}
				return findings(a, resp.GetFindings(), asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&req.Images, "images", false, "also verify all images: blobs by their digests, unpacked layers by the recorded checksums; a pull repairs damaged parts")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
