package node

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// replaced is the state of a process that runs another program than the installed one.
const replaced = "replaced"

// NewUpgrade returns the command upgrade.
func NewUpgrade(a *base.App) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Have the node's processes execute the installed programs, under running containers",
		Long: "Have the keeper, which outlives the agent, execute the installed longshore-keeper in place: containers, their output and attached clients stay.\n" +
			"The Debian package calls this after it has restarted the agent. A program that does not start, or that cannot read what the present one\n" +
			"hands over, replaces none. The nest stays as it is; `longshore version` shows each process and its program.",
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.Upgrade(cmd.Context(), &longshorev1.UpgradeRequest{})
				if err != nil {
					return err
				}
				t := base.Facts{W: a.Stdout}
				for _, name := range resp.GetUpgraded() {
					t.Line("upgraded  %s", name)
				}
				addProcesses(&t, resp.GetProcesses())
				i := slices.IndexFunc(resp.GetProcesses(), func(p *longshorev1.NodeProcess) bool { return p.GetName() == "agent" && p.GetState() == replaced })
				if t.Err == nil && i >= 0 {
					t.Line("The agent is another program than %s: restart it, for example by systemctl restart longshore.", resp.GetProcesses()[i].GetPath())
				}
				return t.Err
			})
		},
	}
}

// addProcesses prints the node's own processes.
func addProcesses(t *base.Facts, list []*longshorev1.NodeProcess) {
	for _, p := range list {
		text := fmt.Sprintf("%s %s, pid %d", p.GetName(), cmp.Or(p.GetVersion(), "of an unknown version"), p.GetPid())
		switch p.GetState() {
		case replaced:
			text += ", another program than " + p.GetPath()
		case "":
			text += ", cannot be compared with " + p.GetPath()
		}
		t.Line("process   %s", text)
	}
}
