package node

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

// NewSwarm returns the command swarm.
func NewSwarm(a *base.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "swarm",
		Short: "The node's membership in a Swarm",
		Args:  cobra.ArbitraryArgs,
		RunE:  base.NeedsCommand,
	}
	cmd.AddCommand(newSwarmJoin(a), newSwarmLeave(a), newSwarmStatus(a))
	return cmd
}

// swarmPort is the default port of a manager's address.
const swarmPort = "2377"

func newSwarmJoin(a *base.App) *cobra.Command {
	req := &longshorev1.SwarmJoinRequest{}
	var tokenFile string
	cmd := &cobra.Command{
		Use:   "join HOST[:PORT]",
		Short: "Join the Swarm of this manager as a worker",
		Args:  base.ExactArgs(1, "the address of a manager"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if req.Token, err = joinToken(a, req.GetToken(), tokenFile); err != nil {
				return err
			}
			if req.Address = args[0]; !strings.Contains(strings.TrimPrefix(args[0], "["), ":") || strings.HasSuffix(args[0], "]") {
				req.Address += ":" + swarmPort
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Swarm.Join(cmd.Context(), req)
				if err != nil {
					return err
				}
				return a.Print("this node joined the swarm as worker %s\n", resp.GetStatus().GetNode())
			})
		},
	}
	cmd.Flags().StringVar(&req.Token, "token", "", "the workers' join token; others on this machine can read it in the list of processes")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "a file with the join token; - is the standard input")
	cmd.Flags().StringVar(&req.Availability, "availability", "active", "active, pause or drain")
	return cmd
}

// joinToken returns the token of the one flag that has it.
func joinToken(a *base.App, token, file string) (string, error) {
	var data []byte
	var err error
	switch {
	case (token == "") == (file == ""):
		return "", &base.UsageError{Err: errors.New("set the join token with --token or --token-file")}
	case token != "":
		return token, nil
	case file == "-":
		const most = 4096
		data, err = io.ReadAll(io.LimitReader(a.Stdin, most))
	default:
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("read the join token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

func newSwarmLeave(a *base.App) *cobra.Command {
	return &cobra.Command{
		Use:   "leave",
		Short: "Stop and remove the Swarm's tasks, and leave it",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				_, err := c.Swarm.Leave(cmd.Context(), &longshorev1.SwarmLeaveRequest{})
				return err
			})
		},
	}
}

func newSwarmStatus(a *base.App) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the node's Swarm, and whether a manager answers",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Swarm.Status(cmd.Context(), &longshorev1.SwarmStatusRequest{})
				if err != nil {
					return err
				}
				s := resp.GetStatus()
				if asJSON {
					return present.WriteJSON(a.Stdout, present.Plain(s), true)
				}
				if s.GetNode() == "" && s.GetError() == "" {
					return a.Print("this node is in no swarm\n")
				}
				return swarmStatus(a, s)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func swarmStatus(a *base.App, s *longshorev1.SwarmStatus) error {
	t := base.Facts{W: a.Stdout}
	if s.GetNode() != "" {
		t.Line("node         %s", s.GetNode())
		t.Line("swarm        %s", s.GetCluster())
		t.Line("session      %s", strings.TrimSpace(s.GetSession()+" "+s.GetManager()))
		t.Line("managers     %s", strings.Join(s.GetManagers(), ", "))
		t.Line("tasks        %d", s.GetTasks())
		t.Line("certificate  until %s", s.GetCertificateEnds().AsTime().Format(time.RFC3339))
		overlayStatus(&t, s.GetOverlays())
	}
	if s.GetError() != "" {
		t.Line("error        %s", base.Printable(s.GetError()))
	}
	return t.Err
}

// overlayStatus prints the state of the networks over several nodes.
func overlayStatus(t *base.Facts, o *longshorev1.SwarmOverlays) {
	if o.GetUnable() != "" {
		t.Line("overlays     none: %s", base.Printable(o.GetUnable()))
		return
	}
	t.Line("overlays     %s", strings.TrimSpace(base.Printable(o.GetGossip())+" "+strings.Join(o.GetMembers(), ", ")))
	for _, n := range o.GetNetworks() {
		line := fmt.Sprintf("%s: tasks %d, others %d", n.GetName(), n.GetTasks(), n.GetPeers())
		if !n.GetAnnounced() {
			line += ", not announced to other nodes yet"
		}
		if n.GetError() != "" {
			line += ", " + n.GetError()
		}
		t.Line("  network    %s", base.Printable(line))
	}
	for _, p := range o.GetTakenPorts() {
		t.Line("  port       %s", base.Printable(p))
	}
}
