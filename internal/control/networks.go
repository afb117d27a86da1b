package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/translate"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// Networks manages the networks that users define.
type Networks interface {
	Define(ctx context.Context, def core.NetworkDefinition) (core.NetworkDefinition, error)
	Defined() []core.NetworkDefinition
	Undefine(ctx context.Context, name string) error
	// SetNames sets the records of a network's name server.
	SetNames(ctx context.Context, network string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error
}

// networkServer serves the Networks service.
type networkServer struct {
	longshorev1.UnimplementedNetworksServer
	srv *Server
}

var _ longshorev1.NetworksServer = (*networkServer)(nil)

// defined returns a network that a user has defined.
func (s *Server) defined(name string) (core.NetworkDefinition, error) {
	if s.o.Networks != nil {
		for _, def := range s.o.Networks.Defined() {
			if def.Name == name {
				return def, nil
			}
		}
	}
	return core.NetworkDefinition{}, fmt.Errorf("network %q does not exist (use network create): %w", name, errdefs.ErrNotFound)
}

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
		def, err := s.srv.defined(req.GetName())
		if err != nil {
			return nil, err
		}
		defs = []core.NetworkDefinition{def}
	}
	members, err := s.srv.members(ctx)
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
	if _, err := s.srv.defined(req.GetName()); err != nil {
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
	members, err := s.srv.members(ctx)
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
		if _, err := s.srv.defined(a.Network); err != nil {
			return nil, err
		}
	}
	if err := s.srv.checkAddresses(ctx, a); err != nil {
		return nil, err
	}
	if err := s.srv.own.Attachments.Attach(ctx, c.Sandbox, a); err != nil {
		return nil, err
	}
	return &longshorev1.ConnectNetworkResponse{}, s.srv.publish(ctx)
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
	return &longshorev1.DisconnectNetworkResponse{}, s.srv.publish(ctx)
}

// changeable finds a container and checks that its networks may be changed.
func (s *networkServer) changeable(ctx context.Context, name string) (core.Container, error) {
	c, err := s.srv.container(ctx, name)
	if err == nil && c.Owner != core.OwnerCLI {
		err = fmt.Errorf("change the networks of %s: it belongs to %s, which sets them: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	return c, err
}

// member is a container on a network.
type member struct {
	container core.Container
	sandbox   core.Sandbox
}

// running reports whether the member's names resolve.
func (m member) running() bool {
	return m.sandbox.State == core.SandboxReady && (m.container.State == core.ContainerRunning || m.container.State == core.ContainerPaused)
}

// addrs returns the member's addresses on a network.
func (m member) addrs(network string) (list []netip.Addr) {
	if i := m.sandbox.Network.On(network); i >= 0 {
		for _, p := range m.sandbox.Network.Interfaces[i].Addrs {
			list = append(list, p.Addr())
		}
	}
	return list
}

// names returns the names of the member that resolve on a network.
func (m member) names(network string) []string {
	list := []string{string(m.container.Key), m.container.ID.Short()}
	if i := m.sandbox.Config.Network.On(network); i >= 0 {
		list = append(list, m.sandbox.Config.Network.Attached()[i].Names...)
	}
	for i, n := range list {
		list[i] = strings.ToLower(n)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// members returns the containers on each network.
func (s *Server) members(ctx context.Context) (map[string][]member, error) {
	sandboxes, err := s.own.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	on := map[core.ID]core.Sandbox{}
	for _, sb := range sandboxes {
		if sb.Config.Namespaces.Net.Mode == core.Shared {
			on[sb.ID] = sb
		}
	}
	list := map[string][]member{}
	if len(on) == 0 {
		return list, nil
	}
	containers, err := s.own.Containers(ctx, core.Filter{})
	for _, c := range containers {
		if sb, ok := on[c.Sandbox]; ok {
			for _, a := range sb.Config.Network.Attached() {
				name := translate.NetworkName(a.Network)
				list[name] = append(list[name], member{c, sb})
			}
		}
	}
	return list, err
}

// publish sends the names of running containers to the name servers. After a start, the names
// resolve when it returns.
func (s *Server) publish(ctx context.Context) error {
	if s.o.Networks == nil {
		return nil
	}
	// Serialize reading and publishing, so that an older state does not overwrite a newer one.
	s.publishing.Lock()
	defer s.publishing.Unlock()
	defs := s.o.Networks.Defined()
	if len(defs) == 0 {
		return nil
	}
	members, err := s.members(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, def := range defs {
		byName, owners := zone(def.Name, members[def.Name])
		errs = append(errs, s.o.Networks.SetNames(ctx, def.Name, byName, owners))
	}
	return errors.Join(errs...)
}

// maxLabel is the length of the longest part of a name between dots.
const maxLabel = 63

// zone returns the records of a network's name server.
func zone(network string, members []member) (byName map[string][]netip.Addr, owners map[netip.Addr]string) {
	byName, owners = map[string][]netip.Addr{}, map[netip.Addr]string{}
	suffix := "." + strings.ToLower(network)
	for _, m := range members {
		if !m.running() {
			continue
		}
		addrs := m.addrs(network)
		for _, name := range m.names(network) {
			if slices.ContainsFunc(strings.Split(name+suffix, "."), func(l string) bool { return l == "" || len(l) > maxLabel }) {
				continue // it is no valid DNS name, so no client can query it
			}
			byName[name] = append(byName[name], addrs...)
			byName[name+suffix] = append(byName[name+suffix], addrs...)
			if name == strings.ToLower(string(m.container.Key)) {
				for _, a := range addrs {
					owners[a] = name + suffix
				}
			}
		}
	}
	return byName, owners
}

// followNames keeps the name servers up to date, until ctx ends.
func (s *Server) followNames(ctx context.Context) {
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerStarted, core.EventContainerExited, core.EventContainerRemoved, core.EventSandboxStopped},
		List:  s.publish,
		Event: func(ctx context.Context, _ core.Event) error { return s.publish(ctx) },
		Failed: func(err error) {
			s.o.Logger.ErrorContext(ctx, "could not send the running containers to the networks' name servers; will try again", "error", err)
		},
	}
	_ = w.Run(ctx, s.own) // Failed gets every error
}

// followLinks updates the files of containers with links when the other ones get or lose their addresses, until ctx
// ends. It is apart from followNames: the verb on a container that is under way may take long.
func followLinks(ctx context.Context, s *Server) {
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerStarted, core.EventSandboxStopped},
		List:  func(ctx context.Context) error { return s.own.Attachments.Relink(ctx, core.OwnerCLI, "") },
		Event: func(ctx context.Context, e core.Event) error {
			return s.own.Attachments.Relink(ctx, core.OwnerCLI, e.Sandbox)
		},
		Failed: func(err error) {
			s.o.Logger.ErrorContext(ctx, "could not update the links of containers; will try again", "error", err)
		},
	}
	_ = w.Run(ctx, s.own) // Failed gets every error
}

// linkTime bounds the time of a start for the files of those with a link to the container. followLinks updates the
// others.
const linkTime = 2 * time.Second

// started starts a container. Its names resolve when it returns.
func (s *Server) started(ctx context.Context, view *engine.Client, id core.ID) error {
	if err := view.StartContainer(ctx, id); err != nil {
		return err
	}
	if err := s.publish(ctx); err != nil { // it runs: followNames tries again
		s.o.Logger.WarnContext(ctx, "could not report a running container to the networks' name servers; will try again", "container", string(id), "error", err)
	}
	if c, err := view.Container(ctx, id); err == nil {
		soon, cancel := context.WithTimeout(ctx, linkTime)
		defer cancel()
		_ = s.own.Attachments.Relink(soon, core.OwnerCLI, c.Sandbox) // followLinks reports errors
	}
	return nil
}

func toNetwork(def core.NetworkDefinition, members []member) *longshorev1.Network {
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
		out := &longshorev1.NetworkMember{Container: string(m.container.ID), Name: string(m.container.Key), Running: m.running()}
		if m.sandbox.State == core.SandboxReady {
			for _, a := range m.addrs(def.Name) {
				out.Addresses = append(out.Addresses, a.String())
			}
			if i := m.sandbox.Network.On(def.Name); i >= 0 {
				out.Mac = m.sandbox.Network.Interfaces[i].MAC
			}
		}
		if i := m.sandbox.Config.Network.On(def.Name); i >= 0 {
			out.Aliases = append(out.Aliases, m.sandbox.Config.Network.Attached()[i].Names...)
		}
		n.Members = append(n.Members, out)
	}
	return n
}

// checkNetwork refuses a network that does not exist, an address that is in use, and ports of networks without a route
// to the outside.
func (s *Server) checkNetwork(ctx context.Context, cfg core.SandboxConfig, publishAll bool) error {
	internal := ""
	out := false
	for _, a := range cfg.Network.Attached() {
		if translate.NetworkName(a.Network) == core.NetworkDefault {
			out = true
			continue
		}
		def, err := s.defined(a.Network)
		if err != nil {
			return err
		}
		if out = out || !def.Internal; def.Internal && internal == "" {
			internal = def.Name
		}
	}
	if internal != "" && !out && (publishAll || len(cfg.Network.Ports) > 0) {
		return invalid.Errorf("ports cannot be published from network %s, which is internal", internal)
	}
	return s.checkAddresses(ctx, cfg.Network.Attached()...)
}

// checkAddresses refuses addresses that a container has, and names the container.
func (s *Server) checkAddresses(ctx context.Context, list ...core.Attachment) error {
	for _, a := range list {
		if len(a.Addrs) == 0 {
			continue
		}
		members, err := s.members(ctx)
		if err != nil {
			return err
		}
		for _, m := range members[translate.NetworkName(a.Network)] {
			for _, p := range a.Addrs {
				if m.sandbox.State == core.SandboxReady && slices.Contains(m.sandbox.Network.Addrs, p.Addr()) {
					return fmt.Errorf("address %s is in use by container %s: %w", p.Addr(), m.container.Key, errdefs.ErrAlreadyExists)
				}
			}
		}
	}
	return nil
}
