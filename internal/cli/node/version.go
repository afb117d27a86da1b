package node

import (
	"runtime"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

// NewVersion returns the command version.
func NewVersion(a *base.App) *cobra.Command {
	var asJSON, only, formats bool
	var format string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of the agent",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if formats {
				return a.Print("%s", a.Formats())
			}
			if only {
				return a.Print("%s\n", a.Version)
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.Version(cmd.Context(), &longshorev1.VersionRequest{})
				if format != "" {
					return versionOf(a, format, resp, err)
				}
				if asJSON {
					out := map[string]any{"client": map[string]any{"version": a.Version, "go": runtime.Version()}, "agent": nil}
					if err == nil {
						out["agent"] = present.Plain(resp)
					}
					return present.WriteJSON(a.Stdout, out, true)
				}
				if perr := a.Print("client    %s (%s)\n", a.Version, runtime.Version()); perr != nil {
					return perr
				}
				if err != nil {
					return err
				}
				return agentVersion(a, resp)
			})
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", "template to fill, such as '{{.Server.Version}}', or json")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&formats, "formats", false, "show the numbers of the formats that this program's agent reads and writes, without asking the agent")
	cmd.Flags().BoolVar(&only, "client", false, "show only this program's version, without asking the agent")
	return cmd
}

// versionOf fills a template with the members of docker version. failed is the error of an agent that did not answer.
func versionOf(a *base.App, format string, v *longshorev1.VersionResponse, failed error) error {
	f, err := present.ParseFormat(format)
	if err != nil {
		return &base.UsageError{Err: err}
	}
	if failed != nil {
		v = nil
	}
	if err := f.One(a.Stdout, present.Version(v, a.Version)); err != nil && failed != nil {
		return failed // the template uses members of an agent that does not answer
	} else if err != nil {
		return err
	}
	return failed
}

func agentVersion(a *base.App, v *longshorev1.VersionResponse) error {
	t := base.Facts{W: a.Stdout}
	t.Line("agent     %s (%s, %s), pid %d, started %s", v.GetVersion(), v.GetGo(), v.GetPlatform(), v.GetPid(), base.Ago(v.GetStarted()))
	if v.GetRevision() != "" {
		t.Line("revision  %s", v.GetRevision())
	}
	t.Line("kernel    %s", v.GetKernel())
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
		t.Line("runtime   %s", text)
	}
	addProcesses(&t, v.GetProcesses())
	return t.Err
}
