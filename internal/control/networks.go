package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"

	"github.com/longshore/longshore/internal/solo"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo/translate"
)

// networkServer serves the Networks service.
type networkServer struct {
	longshorev1.UnimplementedNetworksServer
	srv *Server
}

var _ longshorev1.NetworksServer = (*networkServer)(nil)

func errNoNetworks() error {
	return fmt.Errorf("this agent cannot create networks: %w", errdefs.ErrNotImplemented)
}

// ListNetworks returns the networks by name, with the containers that are on them.
func (s *networkServer) ListNetworks(ctx context.Context, req *longshorev1.ListNetworksRequest) (*longshorev1.ListNetworksResponse, error) {
	resp := &longshorev1.ListNetworksResponse{}
	if s.srv.o.Networks == nil {
		return resp, nil
	}
	defs := s.srv.o.Networks.Defined()
	if req.GetName() != "" {
		def, err := s.srv.node.Defined(req.GetName())
		if err != nil {
			return nil, err
		}
		defs = []core.NetworkDefinition{def}
	}
	members, err := s.srv.node.Members(ctx)
	if err != nil {
		return nil, err
	}
	for _, def := range defs {
		resp.Networks = append(resp.Networks, toNetwork(def, members[def.Name]))
	}
	return resp, nil
}

// CreateNetwork defines a network.
func (s *networkServer) CreateNetwork(ctx context.Context, req *longshorev1.CreateNetworkRequest) (*longshorev1.CreateNetworkResponse, error) {
	if s.srv.o.Networks == nil {
		return nil, errNoNetworks()
	}
	def := core.NetworkDefinition{Name: req.GetName(), Labels: req.GetLabels(), Internal: req.GetInternal(), MTU: int(req.GetMtu()), IPv6: req.GetIpv6()}
	for _, sub := range req.GetSubnets() {
		r, err := netip.ParsePrefix(sub.GetRange())
		if err != nil {
			return nil, invalid.Errorf("range %q: %v", sub.GetRange(), err)
		}
		subnet := core.Subnet{Range: r}
		if sub.GetGateway() != "" {
			if subnet.Gateway, err = netip.ParseAddr(sub.GetGateway()); err != nil {
				return nil, invalid.Errorf("gateway %q: %v", sub.GetGateway(), err)
			}
		}
		if err := poolOf(&subnet, sub); err != nil {
			return nil, err
		}
		def.Subnets = append(def.Subnets, subnet)
	}
	made, err := s.srv.o.Networks.Define(ctx, def)
	if err != nil {
		return nil, err
	}
	return &longshorev1.CreateNetworkResponse{Network: toNetwork(made, nil)}, nil
}

// maxReserved bounds the reserved addresses of a subnet.
const maxReserved = 256

// poolOf parses the pool and the reserved addresses of a subnet.
func poolOf(subnet *core.Subnet, sub *longshorev1.Subnet) (err error) {
	if sub.GetPool() != "" {
		if subnet.Pool, err = netip.ParsePrefix(sub.GetPool()); err != nil {
			return invalid.Errorf("pool %q: %v", sub.GetPool(), err)
		}
	}
	if len(sub.GetReserved()) > maxReserved {
		return invalid.Errorf("%d reserved addresses, at most %d", len(sub.GetReserved()), maxReserved)
	}
	for name, text := range sub.GetReserved() {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return invalid.Errorf("reserved address %s=%q: %v", name, text, err)
		}
		if subnet.Reserved == nil {
			subnet.Reserved = map[string]netip.Addr{}
		}
		subnet.Reserved[name] = a
	}
	return nil
}

// RemoveNetwork removes a network that no container is on.
func (s *networkServer) RemoveNetwork(ctx context.Context, req *longshorev1.RemoveNetworkRequest) (*longshorev1.RemoveNetworkResponse, error) {
	if _, err := s.srv.node.Defined(req.GetName()); err != nil {
		return nil, err
	}
	return &longshorev1.RemoveNetworkResponse{}, s.srv.o.Networks.Undefine(ctx, req.GetName())
}

// PruneNetworks removes the networks that no container, running or not, names.
func (s *networkServer) PruneNetworks(ctx context.Context, _ *longshorev1.PruneNetworksRequest) (*longshorev1.PruneNetworksResponse, error) {
	resp := &longshorev1.PruneNetworksResponse{}
	if s.srv.o.Networks == nil {
		return resp, nil
	}
	members, err := s.srv.node.Members(ctx)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, def := range s.srv.o.Networks.Defined() {
		if len(members[def.Name]) > 0 {
			continue
		}
		switch err := s.srv.o.Networks.Undefine(ctx, def.Name); {
		case err == nil:
			resp.Names = append(resp.Names, def.Name)
		case !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err): // a container uses it now, or another call removed it
			errs = append(errs, err)
		}
	}
	return resp, errors.Join(errs...)
}

// ConnectNetwork puts a container of ours on a further network.
func (s *networkServer) ConnectNetwork(ctx context.Context, req *longshorev1.ConnectNetworkRequest) (*longshorev1.ConnectNetworkResponse, error) {
	c, err := s.changeable(ctx, req.GetContainer())
	if err != nil {
		return nil, err
	}
	a, err := translate.Attachment(req.GetAttachment())
	if err != nil {
		return nil, err
	}
	if a.Network != core.NetworkDefault {
		if _, err := s.srv.node.Defined(a.Network); err != nil {
			return nil, err
		}
	}
	if err := s.srv.solo.CheckAddresses(ctx, a); err != nil {
		return nil, err
	}
	if err := s.srv.own.Attachments.Attach(ctx, c.Sandbox, a); err != nil {
		return nil, err
	}
	return &longshorev1.ConnectNetworkResponse{}, s.srv.node.Publish(ctx)
}

// DisconnectNetwork takes a container of ours off a network.
func (s *networkServer) DisconnectNetwork(ctx context.Context, req *longshorev1.DisconnectNetworkRequest) (*longshorev1.DisconnectNetworkResponse, error) {
	c, err := s.changeable(ctx, req.GetContainer())
	if err != nil {
		return nil, err
	}
	if err := s.srv.own.Attachments.Detach(ctx, c.Sandbox, translate.NetworkName(req.GetNetwork())); err != nil {
		return nil, err
	}
	return &longshorev1.DisconnectNetworkResponse{}, s.srv.node.Publish(ctx)
}

// changeable finds a container and checks that its networks may be changed.
func (s *networkServer) changeable(ctx context.Context, name string) (core.Container, error) {
	c, err := s.srv.container(ctx, name)
	if err == nil && c.Owner != core.OwnerCLI {
		err = fmt.Errorf("change the networks of %s: it belongs to %s, which sets them: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	return c, err
}

func toNetwork(def core.NetworkDefinition, members []solo.Member) *longshorev1.Network {
	n := &longshorev1.Network{
		Name: def.Name, Internal: def.Internal, Mtu: int32(def.MTU), Labels: maps.Clone(def.Labels), Interface: def.Interface, Created: view.Time(def.Created),
	}
	for _, sub := range def.Subnets {
		gateway := sub.Gateway
		if !gateway.IsValid() {
			gateway = sub.Range.Addr().Next()
		}
		out := &longshorev1.Subnet{Range: sub.Range.String(), Gateway: gateway.String()}
		if sub.Pool.IsValid() {
			out.Pool = sub.Pool.String()
		}
		for name, a := range sub.Reserved {
			if out.GetReserved() == nil {
				out.Reserved = map[string]string{}
			}
			out.Reserved[name] = a.String()
		}
		n.Subnets = append(n.Subnets, out)
	}
	for _, m := range members {
		out := &longshorev1.NetworkMember{Container: string(m.Container.ID), Name: string(m.Container.Key), Running: m.Running()}
		if m.Sandbox.State == core.SandboxReady {
			for _, a := range m.Addrs(def.Name) {
				out.Addresses = append(out.Addresses, a.String())
			}
			if i := m.Sandbox.Network.On(def.Name); i >= 0 {
				out.Mac = m.Sandbox.Network.Interfaces[i].MAC
			}
		}
		if i := m.Sandbox.Config.Network.On(def.Name); i >= 0 {
			out.Aliases = append(out.Aliases, m.Sandbox.Config.Network.Attached()[i].Names...)
		}
		n.Members = append(n.Members, out)
	}
	return n
}
