package cli

import (
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newPs(a *app) *cobra.Command {
	req := &longshorev1.ListContainersRequest{}
	var labels []string
	var asJSON, quiet, full bool
	cmd := &cobra.Command{
		Use:     "ps",
		Aliases: []string{"list"},
		Short:   "List the containers of every owner",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if req.Labels, err = parseLabels(labels); err != nil {
				return &usageError{err}
			}
			return a.call(func(c *client) error {
				resp, err := c.containers.ListContainers(cmd.Context(), req)
				if err != nil {
					return err
				}
				switch {
				case asJSON:
					return printJSON(a.o.Stdout, resp.GetContainers())
				case quiet:
					for _, ct := range resp.GetContainers() {
						if err := a.print("%s\n", ct.GetId()); err != nil {
							return err
						}
					}
					return nil
				}
				return a.psTable(resp.GetContainers(), full)
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&req.All, "all", "a", false, "also containers that do not run")
	fl.StringVar(&req.Owner, "owner", "", "only this owner's: cli, cri, swarm, nomad, mesos, kata")
	fl.StringVar(&req.Sandbox, "sandbox", "", "only containers in this sandbox")
	fl.StringArrayVarP(&labels, "label", "l", nil, "only with this label, NAME=value")
	fl.BoolVar(&asJSON, "json", false, "print JSON")
	fl.BoolVarP(&quiet, "quiet", "q", false, "print IDs only")
	fl.BoolVar(&full, "no-trunc", false, "do not shorten anything")
	return cmd
}

func (a *app) psTable(list []*longshorev1.Container, full bool) error {
	var rows [][]string
	for _, c := range list {
		id, name, image, command := c.GetId(), c.GetKey(), c.GetImage(), strings.Join(c.GetCommand(), " ")
		if !full {
			id, name, image, command = short(id), cut(name, 40), cut(image, 40), cut(command, 30)
			if strings.HasPrefix(c.GetImage(), "sha256:") {
				image = short(c.GetImage())
			}
		}
		rows = append(rows, []string{id, c.GetOwner(), name, image, command, stateText(c), ago(c.GetCreated()), portText(c.GetPorts())})
	}
	return table(a.o.Stdout, []string{"ID", "OWNER", "NAME", "IMAGE", "COMMAND", "STATE", "CREATED", "PORTS"}, rows)
}
