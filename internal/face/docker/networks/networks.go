// Package networks is the part of Docker's API that lists, makes and removes networks, and that connects containers with them.
//
// A network of this node has a bridge of its own. The network bridge is the node's default network, and host and none are
// those of containers without a network of their own. Start at Server.
package networks

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/docker/view"
	"github.com/longshore/longshore/internal/invalid"
)

// Networks has the networks that users define.
type Networks interface {
	Define(ctx context.Context, def core.NetworkDefinition) (core.NetworkDefinition, error)
	Defined() []core.NetworkDefinition
	Undefine(ctx context.Context, name string) error
}

// Server answers the requests about networks. All fields but Others, Mode and Default are required.
type Server struct {
	Networks Networks
	// Engine is the engine as the owner of Docker's containers sees it.
	Engine *engine.Client
	// Others are views of other owners. Inspect shows their containers too.
	Others []*engine.Client
	// Container finds a container of Docker's.
	Container func(ctx context.Context, ref string) (core.Container, error)
	// Mode returns the network mode in the create request of a container of Docker's.
	Mode func(core.Container) string
	// Names makes the names of the running containers on all networks resolve.
	Names func(ctx context.Context) error
	// Publish sends an event to clients.
	Publish func(typ, action, id string, attributes map[string]string)
	// Default describes the default network.
	Default Default
	// Began is shown as the time when bridge, host and none were created.
	Began time.Time

	pruning atomic.Bool
}

// Default is the part of the node's configuration about the default network, bridge for clients.
type Default struct {
	Interface  string // the bridge's name
	MTU        int    // 0: that of the link that leads out
	Masquerade bool
}

// Routes adds the routes.
func (s *Server) Routes(m *dockerhttp.Mux) {
	m.Handle("GET", "/networks", s.list)
	m.Handle("GET", "/networks/", s.list)
	m.Handle("GET", "/networks/{id...}", s.inspect)
	m.Handle("POST", "/networks/create", s.create)
	m.HandleSince("1.25", "POST", "/networks/prune", s.prune)
	m.Handle("POST", "/networks/{id...}/connect", s.connect)
	m.Handle("POST", "/networks/{id...}/disconnect", s.disconnect)
	m.Handle("DELETE", "/networks/{id...}", s.remove)
}

// The names of the networks that always exist.
const (
	Bridge = "bridge"
	Host   = "host"
	None   = "none"
)

// Predefined reports whether a network of that name always exists.
func Predefined(name string) bool {
	return name == Bridge || name == Host || name == None || name == "default"
}

// Network is a network as clients know it.
type Network struct {
	Name, ID string
	// Core is its name in the engine's records; "" for host and none.
	Core string
	// Driver is bridge, host or null.
	Driver string
	// Definition has its addresses and options; for host and none only its name.
	Definition core.NetworkDefinition
}

// predefinedID returns the ID of a network that always exists, the same on each node and over boots.
func predefinedID(name string) string {
	sum := sha256.Sum256([]byte("network\x00" + name))
	return hex.EncodeToString(sum[:])
}

// All returns the networks by name, those that always exist first.
func (s *Server) All(ctx context.Context) ([]Network, error) {
	info, err := s.Engine.Network.Info(ctx)
	if err != nil {
		return nil, err
	}
	std := core.NetworkDefinition{Name: Bridge, Created: s.Began, Interface: s.Default.Interface, NoMasquerade: !s.Default.Masquerade}
	for _, r := range info.Ranges {
		std.Subnets = append(std.Subnets, core.Subnet{Range: r, Chosen: true})
	}
	std.MTU = s.Default.MTU
	if link, err := net.InterfaceByName(s.Default.Interface); err == nil {
		std.MTU = link.MTU
	}
	std.Options = map[string]string{
		"com.docker.network.bridge.default_bridge": "true", optionICC: "true", optionMasquerade: strconv.FormatBool(s.Default.Masquerade),
		optionHostIP: "0.0.0.0", optionBridge: s.Default.Interface, optionMTU: strconv.Itoa(cmp.Or(std.MTU, usualMTU)),
	}
	list := []Network{
		{Name: Bridge, ID: predefinedID(Bridge), Core: core.NetworkDefault, Driver: Bridge, Definition: std},
		{Name: Host, ID: predefinedID(Host), Driver: Host, Definition: core.NetworkDefinition{Name: Host, Created: s.Began}},
		{Name: None, ID: predefinedID(None), Driver: "null", Definition: core.NetworkDefinition{Name: None, Created: s.Began}},
	}
	for _, def := range s.Networks.Defined() {
		list = append(list, Network{Name: def.Name, ID: definedID(def), Core: def.Name, Driver: Bridge, Definition: def})
	}
	return list, nil
}

// usualMTU is the MTU of most links.
const usualMTU = 1500

// Find finds a network by its ID, name, or the unique start of its ID.
func (s *Server) Find(ctx context.Context, ref string) (Network, error) {
	all, err := s.All(ctx)
	if err != nil {
		return Network{}, err
	}
	for _, is := range []func(Network) bool{func(n Network) bool { return n.ID == ref }, func(n Network) bool { return n.Name == ref }} {
		if i := slices.IndexFunc(all, is); i >= 0 {
			return all[i], nil
		}
	}
	all = slices.DeleteFunc(all, func(n Network) bool { return ref == "" || !strings.HasPrefix(n.ID, ref) })
	switch len(all) {
	case 0:
		return Network{}, errdefs.ErrNotFound.WithMessage("network " + ref + " not found")
	case 1:
		return all[0], nil
	}
	return Network{}, invalid.Plainf("network %s is ambiguous (%d matches found based on ID prefix)", ref, len(all))
}

// member is a container with a sandbox.
type member struct {
	container core.Container
	sandbox   core.Sandbox
	own       bool // it is Docker's
}

// running reports whether the member has its addresses.
func (m member) running() bool {
	return m.sandbox.State == core.SandboxReady && m.container.State.Live()
}

// on reports whether the member is on a network.
func (m member) on(n Network) bool {
	mode := m.sandbox.Config.Namespaces.Net.Mode
	if n.Core == "" {
		return n.Name == Host && mode == core.Host
	}
	return mode == core.Shared && m.sandbox.Config.Network.On(n.Core) >= 0
}

// members returns all containers that are shown on networks.
func (s *Server) members(ctx context.Context) (list []member, err error) {
	for i, client := range append([]*engine.Client{s.Engine}, s.Others...) {
		sandboxes, err := client.Sandboxes(ctx, core.Filter{})
		if err != nil {
			return nil, err
		}
		byID := map[core.ID]core.Sandbox{}
		for _, sb := range sandboxes {
			byID[sb.ID] = sb
		}
		containers, err := client.Containers(ctx, core.Filter{})
		if err != nil {
			return nil, err
		}
		for _, c := range containers {
			if sb, ok := byID[c.Sandbox]; ok {
				list = append(list, member{c, sb, i == 0})
			}
		}
	}
	return list, nil
}

// active returns the running ones on a network.
func active(list []member, n Network) (on []member) {
	for _, m := range list {
		if m.running() && m.on(n) {
			on = append(on, m)
		}
	}
	return on
}

// resource returns the document of a member's place on a network.
func resource(m member, n Network) dockertypes.EndpointResource {
	e := dockertypes.EndpointResource{Name: string(m.container.Key), EndpointID: view.EndpointID(m.container.ID, n.Name)}
	i := m.sandbox.Network.On(n.Core)
	if n.Core == "" || i < 0 {
		return e
	}
	e.MacAddress = m.sandbox.Network.Interfaces[i].MAC
	for _, p := range m.sandbox.Network.Interfaces[i].Addrs {
		if p.Addr().Is4() {
			e.IPv4Address = cmp.Or(e.IPv4Address, p.String())
		} else {
			e.IPv6Address = cmp.Or(e.IPv6Address, p.String())
		}
	}
	return e
}

// document returns a network as clients see it, without its containers.
func document(n Network) dockertypes.Network {
	def := n.Definition
	doc := dockertypes.Network{
		Name: n.Name, ID: n.ID, Created: def.Created, Scope: "local", Driver: n.Driver, EnableIPv4: !def.NoIPv4, EnableIPv6: def.IPv6, Internal: def.Internal,
		IPAM: dockertypes.IPAM{Driver: "default", Options: def.IPAMOptions}, Attachable: def.Attachable, Containers: map[string]dockertypes.EndpointResource{},
		Options: orEmpty(def.Options), Labels: orEmpty(def.Labels),
	}
	for _, sub := range def.Subnets {
		out := dockertypes.IPAMConfig{Subnet: sub.Range.String()}
		if sub.Gateway.IsValid() {
			out.Gateway = sub.Gateway.String()
		} else if sub.Chosen { // dockerd shows the gateway of a range that a client has named only if it named that too
			out.Gateway = sub.Range.Addr().Next().String()
		}
		if sub.Pool.IsValid() {
			out.IPRange = sub.Pool.String()
		}
		for name, a := range sub.Reserved {
			if out.AuxAddress == nil {
				out.AuxAddress = map[string]string{}
			}
			out.AuxAddress[name] = a.String()
		}
		doc.IPAM.Config = append(doc.IPAM.Config, out)
		doc.EnableIPv6 = doc.EnableIPv6 || sub.Range.Addr().Is6()
	}
	return doc
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// list answers GET /networks.
func (s *Server) list(w http.ResponseWriter, r *dockerhttp.Request) error {
	f, err := r.Filters("dangling", "driver", "id", "label", "name", "scope", "type")
	if err != nil {
		return err
	}
	dangling, byUse, err := f.Bool("dangling")
	if err != nil {
		return err
	}
	for _, v := range f.Values("type") {
		if v != "builtin" && v != "custom" {
			return invalid.Plainf("invalid filter: 'type'='%.80s'", v)
		}
	}
	all, err := s.All(r.Context())
	if err != nil {
		return err
	}
	var members []member
	shown := r.API.Before("1.28") // later lists leave the containers out
	if shown || byUse {
		if members, err = s.members(r.Context()); err != nil {
			return err
		}
	}
	docs := []dockertypes.Network{}
	for _, n := range all {
		doc := document(n)
		kind := "custom"
		if Predefined(n.Name) {
			kind = "builtin"
		}
		on := active(members, n)
		free := kind == "custom" && len(on) == 0
		if !f.Exact("driver", n.Driver) || !f.Match("name", n.Name) || !f.Match("id", n.ID) || !f.All("label", n.Definition.Labels) ||
			!f.Exact("scope", doc.Scope) || !f.Exact("type", kind) || byUse && free != dangling {
			continue
		}
		if shown {
			fill(&doc, on, n)
		}
		docs = append(docs, doc)
	}
	return dockerhttp.Reply(w, http.StatusOK, docs)
}

func fill(doc *dockertypes.Network, on []member, n Network) {
	for _, m := range on {
		doc.Containers[string(m.container.ID)] = resource(m, n)
	}
}

// inspect answers GET /networks/{id}.
func (s *Server) inspect(w http.ResponseWriter, r *dockerhttp.Request) error {
	if v := r.Get("verbose"); v != "" {
		if _, err := strconv.ParseBool(v); err != nil {
			return invalid.Plainf("invalid value for verbose: %.80s: %w", v, err)
		}
	}
	n, err := s.Find(r.Context(), r.Vars["id"])
	if err != nil {
		return err
	}
	if scope := r.Get("scope"); scope != "" && scope != "local" {
		return errdefs.ErrNotFound.WithMessage("network " + r.Vars["id"] + " not found")
	}
	members, err := s.members(r.Context())
	if err != nil {
		return err
	}
	doc := document(n)
	fill(&doc, active(members, n), n)
	return dockerhttp.Reply(w, http.StatusOK, doc)
}

// event sends an event about a network.
func (s *Server) event(action string, n Network, container core.ID) {
	attributes := map[string]string{"name": n.Name, "type": n.Driver}
	if container != "" {
		attributes["container"] = string(container)
	}
	s.Publish("network", action, n.ID, attributes)
}

// until is the time of the filter until, zero if there is none: a time, or how long ago that was.
func until(f dockerhttp.Filters, now time.Time) (time.Time, error) {
	values := f.Values("until")
	if len(values) == 0 {
		return time.Time{}, nil
	}
	if len(values) > 1 {
		return time.Time{}, invalid.Plainf("more than one until filter specified")
	}
	if d, err := time.ParseDuration(values[0]); err == nil {
		return now.Add(-d), nil
	}
	return dockerhttp.Moment("until", values[0])
}

// definedID returns the ID of a network that a user has defined, the same as long as the network exists.
func definedID(def core.NetworkDefinition) string {
	sum := sha256.Sum256([]byte(def.Name + "\x00" + def.Created.UTC().Format(time.RFC3339Nano)))
	return hex.EncodeToString(sum[:])
}
