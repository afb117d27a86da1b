package solo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo/translate"
)

// Defined returns a network that a user has defined.
func (n *Node) Defined(name string) (core.NetworkDefinition, error) {
	if n.networks != nil {
		for _, def := range n.networks.Defined() {
			if def.Name == name {
				return def, nil
			}
		}
	}
	return core.NetworkDefinition{}, fmt.Errorf("network %q does not exist (use network create): %w", name, errdefs.ErrNotFound)
}

// Member is a container on a network.
type Member struct {
	Container core.Container
	Sandbox   core.Sandbox
}

// Running reports whether the member's names resolve.
func (m Member) Running() bool {
	return m.Sandbox.State == core.SandboxReady && m.Container.State.Live()
}

// Addrs returns the member's addresses on a network.
func (m Member) Addrs(network string) (list []netip.Addr) {
	if i := m.Sandbox.Network.On(network); i >= 0 {
		for _, p := range m.Sandbox.Network.Interfaces[i].Addrs {
			list = append(list, p.Addr())
		}
	}
	return list
}

// names returns the names of the member that resolve on a network.
func (m Member) names(network string) []string {
	list := []string{string(m.Container.Key), m.Container.ID.Short()}
	// For other owners the host name is the first name of the container, and a rename replaces that name.
	if h := m.Sandbox.Config.Hostname; h != "" && m.Container.Owner == core.OwnerDocker {
		list = append(list, h)
	}
	if i := m.Sandbox.Config.Network.On(network); i >= 0 {
		list = append(list, m.Sandbox.Config.Network.Attached()[i].Names...)
	}
	for i, n := range list {
		list[i] = strings.ToLower(n)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Members returns the containers with a sandbox each that are on each network, also those of other services.
func (n *Node) Members(ctx context.Context) (map[string][]Member, error) {
	list := map[string][]Member{}
	for _, owner := range owners() {
		if err := membersOf(ctx, n.engine.As(owner), list); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// membersOf adds the containers of one owner to the list of each network.
func membersOf(ctx context.Context, own *engine.Client, list map[string][]Member) error {
	sandboxes, err := own.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	on := map[core.ID]core.Sandbox{}
	for _, sb := range sandboxes {
		if sb.Config.Namespaces.Net.Mode == core.Shared {
			on[sb.ID] = sb
		}
	}
	if len(on) == 0 {
		return nil
	}
	containers, err := own.Containers(ctx, core.Filter{})
	for _, c := range containers {
		if sb, ok := on[c.Sandbox]; ok {
			for _, a := range sb.Config.Network.Attached() {
				name := translate.NetworkName(a.Network)
				list[name] = append(list[name], Member{c, sb})
			}
		}
	}
	return err
}

// Publish sends the names of running containers to the name servers. After a start, the names
// resolve when it returns.
func (n *Node) Publish(ctx context.Context) error {
	if n.networks == nil {
		return nil
	}
	// Serialize reading and publishing, so that an older state does not overwrite a newer one.
	n.publishing.Lock()
	defer n.publishing.Unlock()
	defs := n.networks.Defined()
	if len(defs) == 0 {
		return nil
	}
	members, err := n.Members(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, def := range defs {
		byName, owners := zone(def.Name, members[def.Name])
		errs = append(errs, n.networks.SetNames(ctx, def.Name, byName, owners))
	}
	return errors.Join(errs...)
}

// maxLabel is the length of the longest part of a name between dots.
const maxLabel = 63

// zone returns the records of a network's name server.
func zone(network string, members []Member) (byName map[string][]netip.Addr, owners map[netip.Addr]string) {
	byName, owners = map[string][]netip.Addr{}, map[netip.Addr]string{}
	suffix := "." + strings.ToLower(network)
	for _, m := range members {
		if !m.Running() {
			continue
		}
		addrs := m.Addrs(network)
		for _, name := range m.names(network) {
			if slices.ContainsFunc(strings.Split(name+suffix, "."), func(l string) bool { return l == "" || len(l) > maxLabel }) {
				continue // it is no valid DNS name, so no client can query it
			}
			byName[name] = append(byName[name], addrs...)
			byName[name+suffix] = append(byName[name+suffix], addrs...)
			if name == strings.ToLower(string(m.Container.Key)) {
				for _, a := range addrs {
					owners[a] = name + suffix
				}
			}
		}
	}
	return byName, owners
}

// followNames keeps the name servers up to date, until ctx ends.
func (s *Service) followNames(ctx context.Context) {
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerStarted, core.EventContainerExited, core.EventContainerRemoved, core.EventSandboxStopped},
		List:  s.node.Publish,
		Event: func(ctx context.Context, _ core.Event) error { return s.node.Publish(ctx) },
		Failed: func(err error) {
			s.o.Logger.ErrorContext(ctx, "could not send the running containers to the networks' name servers; will try again", "error", err)
		},
	}
	_ = w.Run(ctx, s.own) // Failed gets every error
}

// followLinks updates the files of containers with links when the other ones get or lose their addresses, until ctx
// ends. It is apart from followNames: the verb on a container that is under way may take long.
func (s *Service) followLinks(ctx context.Context) {
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerStarted, core.EventSandboxStopped},
		List:  func(ctx context.Context) error { return s.own.Attachments.Relink(ctx, s.o.Owner, "") },
		Event: func(ctx context.Context, e core.Event) error {
			return s.own.Attachments.Relink(ctx, s.o.Owner, e.Sandbox)
		},
		Failed: func(err error) {
			s.o.Logger.ErrorContext(ctx, "could not update the links of containers; will try again", "error", err)
		},
	}
	_ = w.Run(ctx, s.own) // Failed gets every error
}

// checkNetwork refuses a network that does not exist, an address that is in use, and ports of networks without a route
// to the outside.
func (s *Service) checkNetwork(ctx context.Context, cfg core.SandboxConfig, publishAll bool) error {
	internal := ""
	out := false
	for _, a := range cfg.Network.Attached() {
		if translate.NetworkName(a.Network) == core.NetworkDefault {
			out = true
			continue
		}
		def, err := s.node.Defined(a.Network)
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
	return s.CheckAddresses(ctx, cfg.Network.Attached()...)
}

// CheckAddresses refuses addresses that a container has, and names the container.
func (s *Service) CheckAddresses(ctx context.Context, list ...core.Attachment) error {
	for _, a := range list {
		if len(a.Addrs) == 0 {
			continue
		}
		members, err := s.node.Members(ctx)
		if err != nil {
			return err
		}
		for _, m := range members[translate.NetworkName(a.Network)] {
			for _, p := range a.Addrs {
				if m.Sandbox.State == core.SandboxReady && slices.Contains(m.Sandbox.Network.Addrs, p.Addr()) {
					return fmt.Errorf("address %s is in use by container %s: %w", p.Addr(), m.Container.Key, errdefs.ErrAlreadyExists)
				}
			}
		}
	}
	return nil
}
