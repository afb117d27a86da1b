// Package egress has the commands about the destinations that containers may reach.
package egress

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	lists "github.com/longshore/longshore/internal/egress"
)

// New returns the command and its subcommands.
func New(a *base.App) *cobra.Command {
	cmd := base.GroupOf("egress", "Show and change the destinations that containers may reach", newShow(a), newSet(a), newLog(a), newLearn(a))
	cmd.Long = `Show and change the destinations that containers may reach. A container gets its list by "longshore run --egress",
by the label longshore.egress, or from the node's configuration.`
	return cmd
}

func newShow(a *base.App) *cobra.Command {
	return &cobra.Command{
		Use:   "show CONTAINER",
		Short: "Print a container's list",
		Args:  base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Networks.EgressLog(cmd.Context(), &longshorev1.EgressLogRequest{Name: args[0]})
				if err != nil {
					return err
				}
				printList(a, resp.GetList())
				return nil
			})
		},
	}
}

// printList prints entries, one per line.
func printList(a *base.App, list []string) {
	for _, e := range list {
		_, _ = fmt.Fprintln(a.Stdout, e)
	}
	if len(list) == 0 {
		_, _ = fmt.Fprintln(a.Stderr, "It has no list: everything is open.")
	}
}

func newSet(a *base.App) *cobra.Command {
	var force, node bool
	cmd := &cobra.Command{
		Use:   "set CONTAINER ENTRY...",
		Short: "Replace a container's list",
		Long: `Replace a container's list. Connections that the new list does not permit end. Entries are names such as
api.example.com, *.example.com or db.corp.example@private, addresses and ranges, each with ports (:443 or :80,8000-8100)
and a protocol (/tcp, /udp, /sctp, /icmp) where wanted, and the words internet, cluster, none and learn.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return &base.UsageError{Err: errors.New("name a container")}
			case node && len(args) > 1:
				return &base.UsageError{Err: errors.New("--node-default excludes entries")}
			case !node && len(args) == 1:
				return &base.UsageError{Err: errors.New("name an entry; none permits nothing")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				_, err := c.Networks.SetEgress(cmd.Context(), &longshorev1.SetEgressRequest{Name: args[0], List: args[1:], Force: force})
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "also a container of another owner")
	cmd.Flags().BoolVar(&node, "node-default", false, "give it the list of the node's configuration")
	return cmd
}

func newLog(a *base.App) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "log CONTAINER",
		Short: "Show the connections and names that were permitted and refused",
		Args:  base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				return PrintLog(cmd.Context(), a, c, args[0], asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each record")
	return cmd
}

// PrintLog prints the log of a container's list.
func PrintLog(ctx context.Context, a *base.App, c *base.Client, name string, asJSON bool) error {
	resp, err := c.Networks.EgressLog(ctx, &longshorev1.EgressLogRequest{Name: name})
	if err != nil {
		return err
	}
	for _, r := range resp.GetRecords() {
		if asJSON {
			line, err := json.Marshal(recordOf(r))
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintln(a.Stdout, string(line))
			continue
		}
		_, _ = fmt.Fprintln(a.Stdout, Line(r))
	}
	return nil
}

// recordOf is the record as the log has it.
func recordOf(r *longshorev1.EgressRecord) lists.Record {
	addr, _ := netip.ParseAddr(r.GetAddress()) // "" is the zero Addr
	out := lists.Record{
		Time: r.GetTime().AsTime(), Kind: r.GetKind(), Name: r.GetName(), Addr: addr, Proto: r.GetProtocol(), Port: uint16(r.GetPort()), UID: r.Uid, Count: int(r.GetCount()), Reason: r.GetReason(),
	}
	for _, text := range r.GetAddresses() {
		if a, err := netip.ParseAddr(text); err == nil {
			out.Addrs = append(out.Addrs, a)
		}
	}
	return out
}

// Line is a record for people.
func Line(r *longshorev1.EgressRecord) string {
	line := r.GetTime().AsTime().Local().Format(time.DateTime) + "  " + r.GetKind() + "  "
	if r.GetProtocol() != "" {
		line += r.GetProtocol() + " "
	}
	at := r.GetAddress()
	if at != "" && r.GetPort() > 0 {
		at = "[" + at + "]:" + strconv.Itoa(int(r.GetPort()))
		if !strings.Contains(r.GetAddress(), ":") {
			at = r.GetAddress() + ":" + strconv.Itoa(int(r.GetPort()))
		}
	}
	switch name := base.Printable(r.GetName()); {
	case name != "" && at != "":
		line += name + " (" + at + ")"
	default:
		line += cmp.Or(name, at)
	}
	if len(r.GetAddresses()) > 0 {
		line += ": " + strings.Join(r.GetAddresses(), " ")
	}
	if r.GetReason() != "" {
		line += ": " + base.Printable(r.GetReason())
	}
	if r.GetCount() > 1 {
		line += fmt.Sprintf(" (%d times)", r.GetCount())
	}
	return line
}

func newLearn(a *base.App) *cobra.Command {
	return &cobra.Command{
		Use:   "learn CONTAINER",
		Short: "Print the list with which a container could have made its connections",
		Long: `Print the list with which a container could have made its connections so far. Run it with "--egress learn",
which permits everything and records it, use it, and then print the list.`,
		Args: base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Networks.EgressLog(cmd.Context(), &longshorev1.EgressLogRequest{Name: args[0]})
				if err != nil {
					return err
				}
				var records []lists.Record
				for _, r := range resp.GetRecords() {
					records = append(records, recordOf(r))
				}
				for _, e := range lists.Learned(records) {
					_, _ = fmt.Fprintln(a.Stdout, e)
				}
				return nil
			})
		},
	}
}
