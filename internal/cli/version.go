package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/present"
)

func newVersion(a *app) *cobra.Command {
	var asJSON, only bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of the agent",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if only {
				return a.print("%s\n", a.o.Version)
			}
			return a.call(func(c *client) error {
				resp, err := c.node.Version(cmd.Context(), &longshorev1.VersionRequest{})
				if asJSON {
					out := map[string]any{"client": map[string]any{"version": a.o.Version, "go": runtime.Version()}, "agent": nil}
					if err == nil {
						out["agent"] = present.Plain(resp)
					}
					return present.WriteJSON(a.o.Stdout, out, true)
				}
				if perr := a.print("client    %s (%s)\n", a.o.Version, runtime.Version()); perr != nil {
					return perr
				}
				if err != nil {
					return err
				}
				return a.agentVersion(resp)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&only, "client", false, "show only this program's version, without asking the agent")
	return cmd
}

func (a *app) agentVersion(v *longshorev1.VersionResponse) error {
	t := facts{w: a.o.Stdout}
	t.line("agent     %s (%s, %s), pid %d, started %s", v.GetVersion(), v.GetGo(), v.GetPlatform(), v.GetPid(), ago(v.GetStarted()))
	if v.GetRevision() != "" {
		t.line("revision  %s", v.GetRevision())
	}
	t.line("kernel    %s", v.GetKernel())
	for _, r := range v.GetRuntimes() {
		text := r.GetName()
		if r.GetVersion() != "" {
			text += " " + r.GetVersion()
		}
		if r.GetDefault() {
			text += " (default)"
		}
		if r.GetProblem() != "" {
			text += ": " + r.GetProblem()
		}
		t.line("runtime   %s", text)
	}
	return t.err
}
