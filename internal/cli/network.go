package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/runflags"
	"github.com/longshore/longshore/internal/cli/typed"
)

func newNetwork(a *app) *cobra.Command {
	return base.GroupOf("network", "Manage networks that resolve containers' names",
		newNetworkLs(a), newNetworkCreate(a), newNetworkInspect(a), newNetworkRm(a), newNetworkPrune(a), newNetworkConnect(a), newNetworkDisconnect(a))
}

func newNetworkLs(a *app) *cobra.Command {
	var flags listFlags
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the networks that were created",
		Args:    base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			format, filters, err := flags.parsed([]string{"name", "label", "label!", "driver"})
			if err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Networks.ListNetworks(cmd.Context(), &longshorev1.ListNetworksRequest{})
				if err != nil {
					return err
				}
				list := slices.DeleteFunc(resp.GetNetworks(), func(n *longshorev1.Network) bool {
					return !filters.Any("name", func(v string) bool {
						return strings.Contains(n.GetName(), strings.Trim(v, "^$")) && anchored(n.GetName(), v)
					}) ||
						!filters.Any("driver", func(v string) bool { return v == "bridge" }) || !filters.Labels(n.GetLabels())
				})
				if flags.json {
					return present.WriteList(a.Stdout, list)
				}
				if flags.ids {
					for _, n := range list {
						if err := a.Print("%s\n", n.GetName()); err != nil {
							return err
						}
					}
					return nil
				}
				var rows [][]string
				var templated []present.Row
				for _, n := range list {
					rows = append(rows, []string{n.GetName(), subnetsText(n), yesNo(n.GetInternal()), fmt.Sprint(len(n.GetMembers())), base.Ago(n.GetCreated())})
					templated = append(templated, listing.Network(n))
				}
				if format != nil {
					return format.Rows(a.Stdout, listing.NetworkHeaders, templated)
				}
				return base.Table(a.Stdout, []string{"NAME", "SUBNETS", "INTERNAL", "CONTAINERS", "CREATED"}, rows)
			})
		},
	}
	flags.define(cmd, []string{"name", "label", "label!", "driver"})
	return cmd
}

func subnetsText(n *longshorev1.Network) string {
	var list []string
	for _, s := range n.GetSubnets() {
		list = append(list, s.GetRange())
	}
	return strings.Join(list, " ")
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func newNetworkCreate(a *app) *cobra.Command {
	req := &longshorev1.CreateNetworkRequest{}
	var labels []string
	var flags networkFlags
	var ignore bool
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a network",
		Long: "Create a network: a bridge of its own, isolated from other networks, and a name server that resolves the running containers on it\n" +
			"by their names, the beginning of their IDs, and the names of --network-alias.",
		Example: "  longshore network create app\n" +
			"  longshore run -d --network app --name db --network-alias postgres example.org/postgres\n" +
			"  longshore network create --subnet 10.90.0.0/24 --gateway 10.90.0.254 --internal back\n" +
			"  longshore network create --subnet 10.91.0.0/16 --ip-range 10.91.5.0/24 --aux-address router=10.91.5.1 wide",
		Args: base.ExactArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Name = args[0]
			err := flags.fill(req)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			if req.Labels, err = typed.Labels(labels); err != nil {
				return &base.UsageError{Err: err}
			}
			return a.Call(func(c *base.Client) error {
				_, err := c.Networks.CreateNetwork(cmd.Context(), req)
				if ignore && status.Code(err) == codes.AlreadyExists {
					// It may be another network's bridge that exists.
					if _, missing := inspectNetwork(cmd.Context(), c, args[0]); missing == nil {
						err = nil
					}
				}
				if err != nil {
					return err
				}
				return a.Print("%s\n", args[0])
			})
		},
	}
	fl := cmd.Flags()
	flags.define(fl, req)
	fl.StringArrayVarP(&labels, "label", "l", nil, "label, NAME=value")
	fl.BoolVar(&ignore, "ignore", false, "succeed if a network has the name, also with other options")
	return cmd
}

func newNetworkInspect(a *app) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "inspect NAME...",
		Short: "Show networks, and the containers on them, as JSON",
		Args:  base.MinArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.inspectEach(args, format, func(c *base.Client, name string) (any, error) { return inspectNetwork(cmd.Context(), c, name) })
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", inspectFormat)
	return cmd
}

func inspectNetwork(ctx context.Context, c *base.Client, name string) (any, error) {
	resp, err := c.Networks.ListNetworks(ctx, &longshorev1.ListNetworksRequest{Name: name})
	if err != nil {
		return nil, err
	}
	if len(resp.GetNetworks()) == 0 { // the agent cannot create networks
		return nil, status.Errorf(codes.NotFound, "network %s: not found", name)
	}
	return present.Network(resp.GetNetworks()[0]), nil
}

func newNetworkRm(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove"},
		Short:   "Remove networks without containers",
		Args:    base.MinArgs(1, "a name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Each(cmd.Context(), args, func(ctx context.Context, c *base.Client, name string) error {
				_, err := c.Networks.RemoveNetwork(ctx, &longshorev1.RemoveNetworkRequest{Name: name})
				return base.IfForced(force, err)
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not fail when there is no such network")
	return cmd
}

func newNetworkPrune(a *app) *cobra.Command {
	var force bool
	p := pruning{}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove every network that no container uses",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.parse(); err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error {
				if len(p.filters) > 0 {
					return a.pruneNetworks(cmd, c, p)
				}
				resp, err := c.Networks.PruneNetworks(cmd.Context(), &longshorev1.PruneNetworksRequest{})
				if err != nil {
					return err
				}
				for _, name := range resp.GetNames() {
					if err := a.Print("%s\n", name); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "no effect: network prune does not ask")
	p.define(cmd)
	return cmd
}

// pruneNetworks removes the networks that match the filters and that no container uses.
func (a *app) pruneNetworks(cmd *cobra.Command, c *base.Client, p pruning) error {
	resp, err := c.Networks.ListNetworks(cmd.Context(), &longshorev1.ListNetworksRequest{})
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range resp.GetNetworks() {
		if len(n.GetMembers()) > 0 || !p.fits(n.GetCreated().AsTime(), n.GetLabels()) {
			continue
		}
		_, err := c.Networks.RemoveNetwork(cmd.Context(), &longshorev1.RemoveNetworkRequest{Name: n.GetName()})
		switch status.Code(err) {
		case codes.OK:
			errs = append(errs, a.Print("%s\n", n.GetName()))
		case codes.NotFound, codes.FailedPrecondition: // it was removed, or a container uses it
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func newNetworkConnect(a *app) *cobra.Command {
	n := &longshorev1.NetworkAttachment{}
	var ip, ip6 string
	var opts []string
	cmd := &cobra.Command{
		Use:   "connect NETWORK CONTAINER",
		Short: "Connect a container, running or not, to another network",
		Example: "  longshore network connect back web\n" +
			"  longshore network connect --alias postgres --ip 10.90.0.7 back db\n" +
			"  longshore network connect default worker",
		Args: exactNetwork,
		RunE: func(cmd *cobra.Command, args []string) error {
			n.Network = args[0]
			if err := attachmentOptions(n, opts); err != nil {
				return &base.UsageError{Err: err}
			}
			if ip6 != "" {
				if err := runflags.CheckIP6("ip6", ip6); err != nil {
					return &base.UsageError{Err: fmt.Errorf("--%w", err)}
				}
			}
			for _, addr := range []string{ip, ip6} {
				if addr != "" {
					n.Addresses = append(n.Addresses, addr)
				}
			}
			return a.Call(func(c *base.Client) error {
				_, err := c.Networks.ConnectNetwork(cmd.Context(), &longshorev1.ConnectNetworkRequest{Container: args[1], Attachment: n})
				return err
			})
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&n.Aliases, "alias", nil, "further name on the network")
	fl.StringVar(&ip, "ip", "", "IPv4 address, in the range of the network")
	fl.StringVar(&ip6, "ip6", "", "IPv6 address, in the range of the network")
	fl.StringVar(&n.Mac, "mac-address", "", "hardware address of its interface")
	fl.StringArrayVar(&opts, "driver-opt", nil, "accepts only "+interfaceOption+"=NAME, which is --interface")
	fl.StringVar(&n.Interface, "interface", "", "name of its interface in the container (default: the first ethN that is free)")
	return cmd
}

func newNetworkDisconnect(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "disconnect NETWORK CONTAINER",
		Short: "Disconnect a container from a network",
		Long:  "Disconnect a container from a network, which may be its last one. Its published ports and its default route move to the next of its\nnetworks with a route to the outside.",
		Args:  exactNetwork,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				_, err := c.Networks.DisconnectNetwork(cmd.Context(), &longshorev1.DisconnectNetworkRequest{Container: args[1], Network: args[0]})
				return err
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "no effect")
	return cmd
}

func exactNetwork(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return &base.UsageError{Err: errors.New("a network and a container are needed")}
	}
	return nil
}
