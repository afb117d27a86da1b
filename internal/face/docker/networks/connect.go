package networks

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// maxAliases bounds the names of a container on a network.
const maxAliases = 256

// optionSysctls is the driver option of an endpoint for kernel parameters of its interface.
const optionSysctls = "com.docker.network.endpoint.sysctls"

// Attachment translates the settings of a container's place on a network, which may be nil. InvalidArgument names all faults.
// It leaves MacAddress, Links and GwPriority to the caller.
func Attachment(n Network, e *dockertypes.Endpoint) (core.Attachment, error) {
	a := core.Attachment{Network: n.Core}
	if e == nil {
		return a, nil
	}
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	ipam := dockertypes.EndpointIPAM{}
	if e.IPAMConfig != nil {
		ipam = *e.IPAMConfig
	}
	if Predefined(n.Name) {
		if ipam.IPv4Address != "" || ipam.IPv6Address != "" {
			fail("user specified IP address is supported on user defined networks only")
		}
		if len(e.Aliases) > 0 {
			fail("network-scoped alias is supported only for containers in user defined networks")
		}
	}
	for _, one := range []struct {
		text string
		is4  bool
	}{{ipam.IPv4Address, true}, {ipam.IPv6Address, false}} {
		if one.text == "" {
			continue
		}
		addr, err := netip.ParseAddr(one.text)
		switch {
		case err != nil || addr.Is4() != one.is4 || addr.IsUnspecified() || addr.Zone() != "":
			fail("invalid %s address: %s", map[bool]string{true: "IPv4", false: "IPv6"}[one.is4], one.text)
			addr = netip.Addr{}
		default:
			a.Addrs = append(a.Addrs, netip.PrefixFrom(addr, addr.BitLen()))
		}
		if Predefined(n.Name) {
			continue
		}
		own := slices.DeleteFunc(slices.Clone(n.Definition.Subnets), func(s core.Subnet) bool { return s.Chosen || s.Range.Addr().Is4() != one.is4 })
		switch {
		case len(own) == 0:
			fail("user specified IP address is supported only when connecting to networks with user configured subnets")
		case !slices.ContainsFunc(own, func(s core.Subnet) bool { return s.Range.Contains(addr) }):
			fail("no configured subnet or ip-range contain the IP address %s", one.text)
		}
	}
	if len(ipam.LinkLocalIPs) > 0 {
		fail("link-local addresses are not supported")
	}
	if len(e.Aliases) > maxAliases {
		fail("%d aliases, at most %d", len(e.Aliases), maxAliases)
	}
	a.Names, a.Interface = slices.Clone(e.Aliases), e.DriverOpts[dockertypes.EndpointInterface]
	if e.DriverOpts[optionSysctls] != "" {
		fail("%s: kernel parameters of an interface are not supported: set those of the container", optionSysctls)
	}
	if len(errs) > 0 {
		return a, invalid.Plainf("invalid endpoint settings:\n%w", joined(errs))
	}
	return a, nil
}

// connect answers POST /networks/{id}/connect.
func (s *Server) connect(w http.ResponseWriter, r *dockerhttp.Request) error {
	var req struct {
		Container      string
		EndpointConfig *dockertypes.Endpoint
	}
	m, n, err := s.target(r, &req, &req.Container)
	if err != nil {
		return err
	}
	a, err := s.joins(m, n, req.EndpointConfig)
	if err != nil {
		return err
	}
	if m.on(n) {
		if m.running() {
			return errdefs.ErrPermissionDenied.WithMessage(fmt.Sprintf("endpoint with name %s already exists in network %s", m.container.Key, n.Name))
		}
		return dockerhttp.Reply(w, http.StatusOK, nil)
	}
	if err := s.free(r.Context(), n, a); err != nil {
		return err
	}
	if err := s.Engine.Attachments.Attach(r.Context(), m.sandbox.ID, a); err != nil {
		return err
	}
	if err := s.Names(r.Context()); err != nil {
		return err
	}
	if m.running() { // the others' is the start's event
		s.event("connect", n, m.container.ID)
	}
	return dockerhttp.Reply(w, http.StatusOK, nil)
}

// target decodes a request about a container and a network, and finds both.
func (s *Server) target(r *dockerhttp.Request, req any, ref *string) (member, Network, error) {
	if err := r.Decode(req); err != nil {
		return member{}, Network{}, err
	}
	if *ref == "" {
		return member{}, Network{}, invalid.Plainf(`invalid name or ID supplied: ""`)
	}
	c, err := s.Container(r.Context(), *ref)
	if err != nil {
		return member{}, Network{}, err
	}
	sb, err := s.Engine.Sandbox(r.Context(), c.Sandbox)
	if err != nil {
		return member{}, Network{}, err
	}
	n, err := s.Find(r.Context(), r.Vars["id"])
	return member{c, sb, true}, n, err
}

// joins checks that a container can be on a further network, and translates its settings. As in dockerd of these versions, a MAC address is
// checked and not used: only a create sets one.
func (s *Server) joins(m member, n Network, e *dockertypes.Endpoint) (core.Attachment, error) {
	switch {
	case n.Name == Host && m.sandbox.Config.Namespaces.Net.Mode != core.Host:
		return core.Attachment{}, invalid.Plainf("cannot connect container to host network - container must be created in host network mode")
	case m.sandbox.Config.Namespaces.Net.Mode != core.Shared:
		return core.Attachment{}, invalid.Plainf("container sharing network namespace with another container or host cannot be connected to any other network")
	case n.Name == None || s.Mode != nil && s.Mode(m.container) == None:
		return core.Attachment{}, invalid.Plainf("container cannot be connected to multiple networks with one of the networks in private (none) mode")
	}
	if e != nil {
		if e.MacAddress != "" {
			if _, err := net.ParseMAC(e.MacAddress); err != nil {
				return core.Attachment{}, invalid.Plainf("invalid MAC address %.80s", e.MacAddress)
			}
		}
		if len(e.Links) > 0 {
			return core.Attachment{}, invalid.Plainf("links cannot be added to a container that exists: use network-scoped aliases")
		}
		if e.GwPriority > 0 {
			return core.Attachment{}, invalid.Plainf("gw-priority %d: the default route stays with the network that the container has joined first", e.GwPriority)
		}
	}
	return Attachment(n, e)
}

// free refuses addresses that a running container has.
func (s *Server) free(ctx context.Context, n Network, a core.Attachment) error {
	if len(a.Addrs) == 0 {
		return nil
	}
	list, err := s.members(ctx)
	if err != nil {
		return err
	}
	for _, m := range active(list, n) {
		for _, p := range a.Addrs {
			if slices.Contains(m.sandbox.Network.Addrs, p.Addr()) {
				return errdefs.ErrPermissionDenied.WithMessage("Address already in use")
			}
		}
	}
	return nil
}

// disconnect answers POST /networks/{id}/disconnect. There are no endpoints without a container, which Force removes in dockerd.
func (s *Server) disconnect(w http.ResponseWriter, r *dockerhttp.Request) error {
	var req struct {
		Container string
		Force     bool
	}
	m, n, err := s.target(r, &req, &req.Container)
	if errdefs.IsNotFound(err) && req.Force {
		if _, err := s.Find(r.Context(), r.Vars["id"]); err != nil {
			return err
		}
		return errdefs.ErrNotFound.WithMessage("endpoint " + req.Container + " not found")
	}
	if err != nil {
		return err
	}
	if n.Name == Host && m.on(n) {
		return invalid.Plainf("cannot disconnect container from host network - container was created in host network mode")
	}
	if !m.on(n) || n.Core == "" { // dockerd has no class for it, and answers 500
		return errors.New("container " + string(m.container.ID) + " is not connected to network " + n.Name)
	}
	if err := s.Engine.Attachments.Detach(r.Context(), m.sandbox.ID, n.Core); err != nil {
		return err
	}
	if err := s.Names(r.Context()); err != nil {
		return err
	}
	if m.running() {
		s.event("disconnect", n, m.container.ID)
	}
	return dockerhttp.Reply(w, http.StatusOK, nil)
}
