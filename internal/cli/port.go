package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

func newPort(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "port CONTAINER [PORT[/PROTOCOL]]",
		Short: "Show the published ports of a container",
		Long:  "Show the published ports of a container, or only the host address and port of one of its ports.",
		Args:  cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				ports, err := portsOf(cmd, c, args[0])
				if err != nil {
					return err
				}
				if len(args) == 1 {
					for _, p := range ports {
						if err := a.Print("%d/%s -> %s\n", p.GetContainer(), p.GetProtocol(), base.HostText(p)); err != nil {
							return err
						}
					}
					return nil
				}
				port, proto, _ := strings.Cut(args[1], "/")
				found := false
				for _, p := range ports {
					if strconv.FormatUint(uint64(p.GetContainer()), 10) != port || proto != "" && proto != p.GetProtocol() {
						continue
					}
					found = true
					if err := a.Print("%s\n", base.HostText(p)); err != nil {
						return err
					}
				}
				if !found {
					return fmt.Errorf("%s: port %s is not forwarded: %w", args[0], args[1], errdefs.ErrNotFound)
				}
				return nil
			})
		},
	}
	return cmd
}

// portsOf returns the ports of a container that the agent finds by this name.
func portsOf(cmd *cobra.Command, c *base.Client, name string) ([]*longshorev1.Port, error) {
	resp, err := c.Containers.Inspect(cmd.Context(), &longshorev1.InspectRequest{Name: name})
	if err != nil {
		return nil, err
	}
	var found struct {
		ID      string `json:"id"`
		Sandbox string `json:"sandbox"`
	}
	if err := json.Unmarshal(resp.GetJson(), &found); err != nil {
		return nil, fmt.Errorf("inspect %s: %w", name, err)
	}
	list, err := c.Containers.ListContainers(cmd.Context(), &longshorev1.ListContainersRequest{All: true, Sandbox: found.Sandbox})
	if err != nil {
		return nil, err
	}
	for _, ct := range list.GetContainers() {
		if ct.GetId() == found.ID {
			return ct.GetPorts(), nil
		}
	}
	return nil, fmt.Errorf("%s is not a container: %w", name, errdefs.ErrNotFound)
}
