package cli

import (
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newImages(a *app) *cobra.Command {
	req := &longshorev1.ListImagesRequest{}
	var asJSON, quiet, full bool
	cmd := &cobra.Command{
		Use:   "images",
		Short: "List the images of every owner",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(func(c *client) error {
				resp, err := c.images.ListImages(cmd.Context(), req)
				if err != nil {
					return err
				}
				switch {
				case asJSON:
					return printJSON(a.o.Stdout, resp.GetImages())
				case quiet:
					for _, img := range resp.GetImages() {
						if err := a.print("%s\n", img.GetId()); err != nil {
							return err
						}
					}
					return nil
				}
				return a.imageTable(resp.GetImages(), full)
			})
		},
	}
	cmd.Flags().StringVar(&req.Owner, "owner", "", "only this owner's")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print IDs only")
	cmd.Flags().BoolVar(&full, "no-trunc", false, "do not shorten anything")
	return cmd
}

// imageTable prints a row for each name.
func (a *app) imageTable(list []*longshorev1.Image, full bool) error {
	var rows [][]string
	for _, img := range list {
		names := img.GetNames()
		if len(names) == 0 {
			names = img.GetDigests()
		}
		if len(names) == 0 {
			names = []string{"-"}
		}
		for _, n := range names {
			id := img.GetId()
			if !full {
				id = short(id)
				if i := strings.Index(n, "@sha256:"); i >= 0 && len(n) > i+20 {
					n = n[:i+20]
				}
			}
			pinned := ""
			if img.GetPinned() {
				pinned = "pinned"
			}
			rows = append(rows, []string{n, img.GetOwner(), id, size(uint64(max(img.GetSizeBytes(), 0))), ago(img.GetPulled()), pinned})
		}
	}
	return table(a.o.Stdout, []string{"NAME", "OWNER", "ID", "SIZE", "PULLED", ""}, rows)
}
