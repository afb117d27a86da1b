package cli

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

func newHistory(a *app) *cobra.Command {
	var format string
	var full, quiet, human bool
	cmd := &cobra.Command{
		Use:   "history IMAGE",
		Short: "Show the build steps of an image",
		Long:  "Show the build steps of an image from its config, newest first, with the size of each unpacked layer.",
		Args:  base.ExactArgs(1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var f *present.Format
			if format != "" {
				var err error
				if f, err = present.ParseFormat(format); err != nil {
					return &base.UsageError{Err: err}
				}
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Images.InspectImage(cmd.Context(), &longshorev1.InspectImageRequest{Name: args[0]})
				if err != nil {
					return err
				}
				steps, err := present.History(resp.GetJson())
				if err != nil {
					return err
				}
				return showHistory(a, steps, f, historyForm{full, quiet, human})
			})
		},
	}
	cmd.Flags().StringVar(&format, "format", "", "template for each step, such as '{{.CreatedBy}}', \"table TEMPLATE\", or json")
	cmd.Flags().BoolVar(&full, "no-trunc", false, "do not shorten anything")
	cmd.Flags().BoolVarP(&human, "human", "H", true, "sizes with units, and how long ago a step was; without it bytes and times")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print IDs only")
	return cmd
}

// historyForm is the form of the output of history.
type historyForm struct{ full, quiet, human bool }

func showHistory(a *app, steps []present.Step, f *present.Format, form historyForm) error {
	var rows [][]string
	var templated []present.Row
	for _, s := range steps {
		id, by, created := "<missing>", strings.Join(strings.Fields(s.CreatedBy), " "), "-"
		if s.ID != "" {
			if id = s.ID; !form.full {
				id = base.Short(id)
			}
		}
		at := ""
		if s.Created != nil {
			created, at = base.Span(time.Since(*s.Created))+" ago", s.Created.Format(time.RFC3339)
		}
		size := base.Size(uint64(max(s.Bytes, 0)))
		if !form.human {
			size = strconv.FormatInt(max(s.Bytes, 0), 10)
			if at != "" {
				created = at
			}
		}
		if !form.full {
			by = base.Cut(by, 45)
		}
		if form.quiet {
			if err := a.Print("%s\n", id); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{id, created, by, size, s.Comment})
		templated = append(templated, present.Row{
			"ID": id, "CreatedSince": created, "CreatedAt": at, "CreatedBy": by, "Size": size, "Comment": s.Comment,
		})
	}
	switch {
	case form.quiet:
		return nil
	case f != nil:
		return f.Rows(a.Stdout, present.Headers{"ID": "IMAGE"}, templated)
	}
	return base.Table(a.Stdout, []string{"IMAGE", "CREATED", "CREATED BY", "SIZE", "COMMENT"}, rows)
}
