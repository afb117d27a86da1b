package node

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/typed"
)

// NewWhyDisk returns the command why disk.
func NewWhyDisk(a *base.App) *cobra.Command {
	var asJSON bool
	least := "1MiB"
	cmd := &cobra.Command{
		Use:   "disk",
		Short: "Show what occupies the disk, and what a prune frees",
		Long: `Show what occupies the agent's directory, as a tree whose sum is that of "du -x": images by name and owner, what they
share, changed files and output of containers, volumes, checkpoints, memory of sleeping containers, and records. FREES has
what "longshore system prune --all" would remove. Deleted files that processes still hold open come last. Write
"longshore why -- disk" for a container of this name.`,
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			smallest, err := typed.Bytes(least)
			if err != nil {
				return &base.UsageError{Err: fmt.Errorf("--least: %w", err)}
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.DiskParts(cmd.Context(), &longshorev1.DiskPartsRequest{})
				if err != nil {
					return err
				}
				if asJSON {
					return present.WriteJSON(a.Stdout, present.Plain(resp), true)
				}
				var rows [][]string
				for _, p := range resp.GetParts() {
					rows = append(rows, partRows(p, 0, smallest)...)
				}
				return base.Table(a.Stdout, []string{"SIZE", "FREES", "WHAT", ""}, rows)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, with all parts")
	cmd.Flags().StringVar(&least, "least", least, "leave out smaller parts, which stay in the sums; 0 shows all")
	return cmd
}

// partRows returns a row for a part and for each below it that is not too small.
func partRows(p *longshorev1.DiskPart, depth int, least uint64) [][]string {
	frees := ""
	if p.GetFrees() > 0 {
		frees = base.Size(p.GetFrees())
	}
	rows := [][]string{{base.Size(p.GetBytes()), frees, strings.Repeat("  ", depth) + base.Cut(base.Printable(p.GetName()), 100), p.GetNote()}}
	for _, c := range p.GetParts() {
		if c.GetBytes() >= least {
			rows = append(rows, partRows(c, depth+1, least)...)
		}
	}
	return rows
}
