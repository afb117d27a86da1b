package node

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/config"
)

// NewDoctor returns the command doctor.
func NewDoctor(a *base.App) *cobra.Command {
	var asJSON, offline bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this node, and show a remedy for each problem",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if offline && a.Offline == nil {
				return errors.New("check the machine without an agent: this program has no agent")
			}
			if offline {
				cfg, err := a.LoadConfig()
				if err != nil {
					return err
				}
				return findings(a, a.Offline(cfg), asJSON)
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.Doctor(cmd.Context(), &longshorev1.DoctorRequest{})
				if err != nil {
					return err
				}
				return findings(a, resp.GetFindings(), asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&offline, "offline", false, "check the machine without an agent, before its first start or after one that failed")
	return cmd
}

// writeProblems prints a machine's warnings and failures, after a failed start of the agent.
func writeProblems(a *base.App, cfg config.Config) {
	if a.Offline == nil {
		return
	}
	list := slices.DeleteFunc(a.Offline(cfg), func(f *longshorev1.Finding) bool { return f.GetStatus() == "ok" })
	_ = writeFindings(a.Stderr, list) // the error of the start counts
}

// findings prints the findings; the exit status is 1 when a check failed.
func findings(a *base.App, list []*longshorev1.Finding, asJSON bool) error {
	failed := false
	for _, f := range list {
		failed = failed || f.GetStatus() == "fail"
	}
	if asJSON {
		if err := present.WriteList(a.Stdout, list); err != nil {
			return err
		}
	} else if err := writeFindings(a.Stdout, list); err != nil {
		return err
	}
	if failed {
		return &base.ExitError{Status: 1}
	}
	return nil
}

func writeFindings(w io.Writer, list []*longshorev1.Finding) error {
	wide := 0
	for _, f := range list {
		wide = max(wide, len(f.GetName()))
	}
	for _, f := range list {
		if _, err := fmt.Fprintf(w, "%-4s  %-*s  %s\n", f.GetStatus(), wide, f.GetName(), base.Printable(f.GetDetail())); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		if f.GetHint() == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%*s  -> %s\n", wide+6, "", base.Printable(f.GetHint())); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	return nil
}
