package cli

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/present"
)

func newHistory(a *app) *cobra.Command {
	var format string
	var full, quiet bool
	cmd := &cobra.Command{
		Use:   "history IMAGE",
		Short: "Show how an image was made, step by step",
		Long:  "Show how an image was made, step by step, as its config says, with the size of each unpacked layer. The newest step is first.",
		Args:  exactArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var f *present.Format
			if format != "" {
				var err error
				if f, err = present.ParseFormat(format); err != nil {
					return &usageError{err}
				}
			}
			return a.call(func(c *client) error {
				resp, err := c.images.InspectImage(cmd.Context(), &longshorev1.InspectImageRequest{Name: args[0]})
				if err != nil {
					return err
				}
				steps, err := present.History(resp.GetJson())
				if err != nil {
					return err
				}
				return showHistory(a, steps, f, full, quiet)
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "template for each step, such as '{{.CreatedBy}}', \"table TEMPLATE\", or json")
	cmd.Flags().BoolVar(&full, "no-trunc", false, "do not shorten anything")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print IDs only")
	return cmd
}

func showHistory(a *app, steps []present.Step, f *present.Format, full, quiet bool) error {
	var rows [][]string
	var templated []present.Row
	for _, s := range steps {
		id, by, created := "<missing>", strings.Join(strings.Fields(s.CreatedBy), " "), "-"
		if s.ID != "" {
			if id = s.ID; !full {
				id = short(id)
			}
		}
		at := ""
		if s.Created != nil {
			created, at = span(time.Since(*s.Created))+" ago", s.Created.Format(time.RFC3339)
		}
		if !full {
			by = cut(by, 45)
		}
		if quiet {
			if err := a.print("%s\n", id); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{id, created, by, size(uint64(max(s.Bytes, 0))), s.Comment})
		templated = append(templated, present.Row{
			"ID": id, "CreatedSince": created, "CreatedAt": at, "CreatedBy": by, "Size": size(uint64(max(s.Bytes, 0))), "Comment": s.Comment,
		})
	}
	switch {
	case quiet:
		return nil
	case f != nil:
		return f.Rows(a.o.Stdout, templated)
	}
	return table(a.o.Stdout, []string{"IMAGE", "CREATED", "CREATED BY", "SIZE", "COMMENT"}, rows)
}
