package cli

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/typed"
)

func newSandboxes(a *app) *cobra.Command {
	req := &longshorev1.ListSandboxesRequest{}
	var labels []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "sandboxes",
		Short: "List the sandboxes of every owner",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if req.Labels, err = typed.Labels(labels); err != nil {
				return &base.UsageError{Err: err}
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Containers.ListSandboxes(cmd.Context(), req)
				if err != nil {
					return err
				}
				if asJSON {
					return present.WriteList(a.Stdout, resp.GetSandboxes())
				}
				var rows [][]string
				for _, sb := range resp.GetSandboxes() {
					rows = append(rows, []string{
						base.Short(sb.GetId()), sb.GetOwner(), base.Cut(sb.GetKey(), 40), sb.GetState(), strconv.Itoa(int(sb.GetContainers())),
						strings.Join(sb.GetAddresses(), ","), base.Ago(sb.GetCreated()), base.PortText(sb.GetPorts()),
					})
				}
				return base.Table(a.Stdout, []string{"ID", "OWNER", "NAME", "STATE", "CONTAINERS", "ADDRESSES", "CREATED", "PORTS"}, rows)
			})
		},
	}
	cmd.Flags().StringVar(&req.Owner, "owner", "", "only this owner's")
	cmd.Flags().StringArrayVarP(&labels, "label", "l", nil, "only with this label, NAME=value")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
