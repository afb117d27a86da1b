package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// wasmProcess is the name of processes that run WebAssembly programs.
const wasmProcess = "wasm"

// replaced is the state of a process that runs another program than the installed one.
const replaced = "replaced"

// NewUpgrade returns the command upgrade.
func NewUpgrade(a *base.App) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade",
		Short: "Have the node's processes execute the installed programs, under running containers",
		Long: "Have the agent and the keeper, which outlives it, execute the installed programs in place: containers and their output continue, and\n" +
			"no client of a face finds a closed port. Calls under way may fail once. The name server of sandboxes and the board are each replaced by a new\n" +
			"process with the same sockets. The Debian package calls this. A program that does not start, or that cannot read what the present one hands\n" +
			"over, replaces none. The nest stays as it is, and a WebAssembly program's process until its container's next start; `longshore version` shows\n" +
			"each process and its program.",
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				t := base.Facts{W: a.Stdout}
				for range processKinds {
					names, err := upgradeNext(cmd.Context(), c)
					if err != nil {
						return err
					}
					if len(names) == 0 {
						break
					}
					t.Line("upgraded  %s", strings.Join(names, ", "))
				}
				v, err := c.Node.Version(cmd.Context(), &longshorev1.VersionRequest{})
				if err != nil {
					return err
				}
				addProcesses(&t, v.GetProcesses())
				return t.Err
			})
		},
	}
}

// processKinds bounds the upgrades of one call: one for each kind of process.
const processKinds = 4

// upgradeNext has the next process become the installed program, and waits for it if that is the agent.
func upgradeNext(ctx context.Context, c *base.Client) ([]string, error) {
	before, err := c.Node.Version(ctx, &longshorev1.VersionRequest{})
	if err != nil {
		return nil, err
	}
	resp, err := c.Node.Upgrade(ctx, &longshorev1.UpgradeRequest{})
	cut := err
	if status.Code(err) == codes.Unavailable { // the agent may have stopped for the next program before it had sent its answer
		resp, err = &longshorev1.UpgradeResponse{Upgraded: []string{AgentCommand}}, nil
	} else {
		cut = nil
	}
	if err != nil || !slices.Contains(resp.GetUpgraded(), AgentCommand) {
		return resp.GetUpgraded(), err
	}
	ctx, cancel := context.WithTimeout(ctx, agentPatience)
	defer cancel()
	tick := time.NewTicker(agentTick)
	defer tick.Stop()
	for {
		v, err := c.Node.Version(ctx, &longshorev1.VersionRequest{}, grpc.WaitForReady(true))
		if err == nil && !v.GetStarted().AsTime().Equal(before.GetStarted().AsTime()) {
			if v.GetUpgradeFailure() != "" {
				return nil, fmt.Errorf("the installed agent did not start, and its predecessor continues: %s", v.GetUpgradeFailure())
			}
			return resp.GetUpgraded(), nil
		}
		if err == nil && cut != nil {
			return nil, cut
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the agent does not answer after its upgrade: see its log: %w", errors.Join(err, ctx.Err()))
		case <-tick.C:
		}
	}
}

// agentPatience is the time for the next agent to answer, and agentTick the time between two questions.
const (
	agentPatience = 2 * time.Minute
	agentTick     = 20 * time.Millisecond
)

// addProcesses prints the node's own processes.
func addProcesses(t *base.Facts, list []*longshorev1.NodeProcess) {
	for _, p := range list {
		text := fmt.Sprintf("%s %s, pid %d", p.GetName(), cmp.Or(p.GetVersion(), "of an unknown version"), p.GetPid())
		switch p.GetState() {
		case replaced:
			text += ", another program than " + p.GetPath()
			if p.GetName() == wasmProcess {
				text += " until the container's next start"
			}
		case "":
			text += ", cannot be compared with " + p.GetPath()
		}
		t.Line("process   %s", text)
	}
}
