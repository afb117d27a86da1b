package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/present"
)

func newDoctor(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node, and say what to do about each problem",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(func(c *client) error {
				resp, err := c.node.Doctor(cmd.Context(), &longshorev1.DoctorRequest{})
				if err != nil {
					return err
				}
				return a.findings(resp.GetFindings(), asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// findings prints the findings; the exit status is 1 when a check failed.
func (a *app) findings(list []*longshorev1.Finding, asJSON bool) error {
	failed := false
	for _, f := range list {
		failed = failed || f.GetStatus() == "fail"
	}
	if asJSON {
		if err := present.WriteList(a.o.Stdout, list); err != nil {
			return err
		}
	} else if err := writeFindings(a.o.Stdout, list); err != nil {
		return err
	}
	if failed {
		return &exitError{status: 1}
	}
	return nil
}

func writeFindings(w io.Writer, list []*longshorev1.Finding) error {
	wide := 0
	for _, f := range list {
		wide = max(wide, len(f.GetName()))
	}
	for _, f := range list {
		if _, err := fmt.Fprintf(w, "%-4s  %-*s  %s\n", f.GetStatus(), wide, f.GetName(), printable(f.GetDetail())); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if f.GetHint() == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%*s  -> %s\n", wide+6, "", printable(f.GetHint())); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}
