package node

import (
	"context"
	"fmt"
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

// NewSystemDf returns the command system df.
func NewSystemDf(a *base.App) *cobra.Command {
	var verbose, asJSON bool
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show the disk usage of images, containers and volumes",
		Long: "Show the disk usage of images, containers and volumes. Images share layers: the sum of their sizes is larger than the store, and removing\n" +
			"unused images frees at most the size shown as reclaimable.",
		Args: base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Node.DiskUsage(cmd.Context(), &longshorev1.DiskUsageRequest{})
				switch {
				case err != nil:
					return err
				case asJSON:
					return present.WriteJSON(a.Stdout, present.Plain(resp), true)
				case verbose:
					return usageTable(a, resp)
				}
				var rows [][]string
				for _, kind := range []struct {
					name string
					list []*longshorev1.Usage
				}{{"Images", resp.GetImages()}, {"Containers", resp.GetContainers()}, {"Volumes", resp.GetVolumes()}} {
					var active int
					var total, idle uint64
					for _, u := range kind.list {
						total += u.GetBytes()
						if u.GetActive() {
							active++
						} else {
							idle += u.GetBytes()
						}
					}
					share := ""
					if total > 0 {
						share = fmt.Sprintf(" (%d%%)", idle*100/total)
					}
					rows = append(rows, []string{kind.name, fmt.Sprint(len(kind.list)), fmt.Sprint(active), base.Size(total), base.Size(idle) + share})
				}
				if err := base.Table(a.Stdout, []string{"TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE"}, rows); err != nil {
					return err
				}
				return a.Print("The image store has %s.\n", base.Size(resp.GetStoreBytes()))
			})
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show each object")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func usageTable(a *base.App, r *longshorev1.DiskUsageResponse) error {
	var rows [][]string
	for _, kind := range []struct {
		name string
		list []*longshorev1.Usage
	}{{"image", r.GetImages()}, {"container", r.GetContainers()}, {"volume", r.GetVolumes()}} {
		for _, u := range kind.list {
			used := ""
			if u.GetActive() {
				used = "active"
			}
			name := u.GetName()
			if name == "" {
				name = "-"
			}
			rows = append(rows, []string{kind.name, u.GetOwner(), base.Cut(name, 60), base.Short(u.GetId()), base.Size(u.GetBytes()), used})
		}
	}
	return base.Table(a.Stdout, []string{"TYPE", "OWNER", "NAME", "ID", "SIZE", ""}, rows)
}
