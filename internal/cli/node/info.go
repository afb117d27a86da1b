package node

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

// NewInfo returns the command info.
func NewInfo(a *base.App) *cobra.Command {
	var format string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show the node's system and its number of objects",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var f *present.Format
			if format != "" {
				var err error
				if f, err = present.ParseFormat(format); err != nil {
					return &base.UsageError{Err: err}
				}
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.Info(cmd.Context(), &longshorev1.InfoRequest{})
				switch {
				case err != nil:
					return err
				case asJSON:
					return present.WriteJSON(a.Stdout, present.Plain(resp), true)
				case f != nil:
					member, err := membership(cmd.Context(), c)
					if err != nil {
						return err
					}
					return f.One(a.Stdout, present.Info(resp, member, a.Version, time.Now()))
				}
				return infoText(a, resp)
			})
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", "template to fill, such as '{{.ServerVersion}}', or json for a line")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// membership returns the node's membership of a Swarm, nil if the agent has none.
func membership(ctx context.Context, c *base.Client) (*longshorev1.SwarmStatus, error) {
	resp, err := c.Swarm.Status(ctx, &longshorev1.SwarmStatusRequest{})
	switch status.Code(err) {
	case codes.OK:
		return resp.GetStatus(), nil
	case codes.FailedPrecondition: // the face is disabled
		return nil, nil //nolint:nilnil // there is none
	}
	return nil, err
}

func infoText(a *base.App, r *longshorev1.InfoResponse) error {
	t := base.Facts{W: a.Stdout}
	t.Line("node        %s, %s, kernel %s, %s", r.GetHostname(), r.GetSystem(), r.GetVersion().GetKernel(), r.GetVersion().GetPlatform())
	t.Line("machine     %d CPUs, %s of memory, cgroups %s", r.GetCpus(), base.Size(r.GetMemoryBytes()), r.GetCgroups())
	t.Line("containers  %d running, %d paused, %d stopped", r.GetRunning(), r.GetPaused(), r.GetStopped())
	t.Line("images      %d, in %s", r.GetImages(), r.GetStorage())
	t.Line("volumes     %d", r.GetVolumes())
	t.Line("network     %s %s", r.GetNetwork(), strings.Join(r.GetNetworkRanges(), ", "))
	if t.Err != nil {
		return t.Err
	}
	return agentVersion(a, r.GetVersion())
}
