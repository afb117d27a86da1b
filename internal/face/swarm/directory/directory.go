// Package directory holds the endpoints of one overlay network, own and others', and derives from
// them the addresses of each name, the name of each address, and the backends of each service
// address and published port.
//
// It is pure. It must not know the source of the records. Start at Directory.
package directory

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// Network has the managers' facts about the network.
type Network struct {
	// Title is its name for people. Each name resolves also with a dot and the title appended.
	Title    string
	Ranges   []netip.Prefix
	Gateways []netip.Addr
}

// Directory holds the endpoints of one network. It is not safe for concurrent use.
type Directory struct {
	net       Network
	endpoints map[string]gossip.Endpoint     // by key
	addrs     map[netip.Addr]map[string]bool // keys of the endpoints there
	vips      map[netip.Addr]map[string]bool // keys of the endpoints of services there
	called    int                            // how many names all endpoints have together
}

// maxCalled bounds the names of a network. A record of some kilobytes has hundreds of them, and a member
// may flood the network with records.
const maxCalled = 1 << 19

// called is how many names an endpoint has.
func called(e gossip.Endpoint) int {
	n := 1 + len(e.TaskAliases) + len(e.Aliases)
	if e.Service != "" {
		n += 2 + len(e.Aliases) // "tasks." and each of them
	}
	return n
}

// New returns an empty one.
func New(n Network) *Directory {
	return &Directory{net: n, endpoints: map[string]gossip.Endpoint{}, addrs: map[netip.Addr]map[string]bool{}, vips: map[netip.Addr]map[string]bool{}}
}

// Put sets the endpoint of a key. InvalidArgument for one that cannot be on the network,
// ResourceExhausted for one too many: the key has no endpoint then.
func (d *Directory) Put(key string, e gossip.Endpoint) error {
	d.Drop(key)
	for _, a := range []netip.Addr{e.Addr, e.VIP} {
		if err := d.check(a); err != nil && (a == e.Addr || a.IsValid()) {
			return fmt.Errorf("endpoint %.64q: %w", e.Name, err)
		}
	}
	for _, clash := range []struct {
		at     netip.Addr
		others map[string]bool
	}{{e.Addr, d.vips[e.Addr]}, {e.VIP, d.addrs[e.VIP]}} {
		if len(clash.others) > 0 {
			return fmt.Errorf("endpoint %.64q: %s is a service's address and an endpoint's: %w", e.Name, clash.at, errdefs.ErrInvalidArgument)
		}
	}
	if n := d.called + called(e); n > maxCalled {
		return fmt.Errorf("endpoint %.64q: the network has %d names already: %w", e.Name, d.called, errdefs.ErrResourceExhausted)
	}
	d.called += called(e)
	d.endpoints[key] = e
	at(d.addrs, e.Addr, key)
	if e.VIP.IsValid() {
		at(d.vips, e.VIP, key)
	}
	return nil
}

// at notes that the endpoint of a key has an address.
func at(index map[netip.Addr]map[string]bool, a netip.Addr, key string) {
	if index[a] == nil {
		index[a] = map[string]bool{}
	}
	index[a][key] = true
}

// off is its inverse.
func off(index map[netip.Addr]map[string]bool, a netip.Addr, key string) {
	if delete(index[a], key); len(index[a]) == 0 {
		delete(index, a)
	}
}

// check says why an address cannot be that of an endpoint or a service.
func (d *Directory) check(a netip.Addr) error {
	switch {
	case !slices.ContainsFunc(d.net.Ranges, func(p netip.Prefix) bool { return p.Contains(a) && p.Addr() != a }):
		return fmt.Errorf("address %s is in no range of the network: %w", a, errdefs.ErrInvalidArgument)
	case slices.Contains(d.net.Gateways, a):
		return fmt.Errorf("address %s is the gateway: %w", a, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Drop takes an endpoint out. It is idempotent.
func (d *Directory) Drop(key string) {
	e, there := d.endpoints[key]
	if !there {
		return
	}
	delete(d.endpoints, key)
	d.called -= called(e)
	off(d.addrs, e.Addr, key)
	off(d.vips, e.VIP, key)
}

// Has reports whether a key has an endpoint.
func (d *Directory) Has(key string) bool {
	_, there := d.endpoints[key]
	return there
}

// Serves reports whether an address is a service's.
func (d *Directory) Serves(a netip.Addr) bool { return len(d.vips[a]) > 0 }

// sorted are the endpoints in an order that does not depend on how they came.
func (d *Directory) sorted() []gossip.Endpoint {
	list := make([]gossip.Endpoint, 0, len(d.endpoints))
	for _, e := range d.endpoints {
		list = append(list, e)
	}
	slices.SortFunc(list, func(a, b gossip.Endpoint) int { return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Name, b.Name)) })
	return list
}

// fewAddrs bounds the addresses of a name for a linear search.
const fewAddrs = 32

// Names returns the addresses of every name, in small letters: of a service and its aliases, its own
// address or, without one, those of its tasks; of "tasks." and a service those of its tasks; of a task
// and its own aliases its own. A task that is about to end has no name any more; a service with an
// address of its own has one until the last of its tasks is gone, as with docker, so that clients do not
// get NXDOMAIN meanwhile.
func (d *Directory) Names() map[string][]netip.Addr {
	names, many := map[string][]netip.Addr{}, map[string]map[netip.Addr]bool{}
	add := func(name string, a netip.Addr) {
		name = strings.ToLower(name)
		list := names[name]
		switch {
		case name == "" || len(list) > 0 && list[len(list)-1] == a: // they are in the order of addresses
			return
		case len(list) < fewAddrs:
			if slices.Contains(list, a) {
				return
			}
		case many[name] == nil:
			many[name] = map[netip.Addr]bool{}
			for _, has := range list {
				many[name][has] = true
			}
			fallthrough
		default:
			if many[name][a] {
				return
			}
			many[name][a] = true
		}
		names[name] = append(list, a)
	}
	for _, e := range d.sorted() {
		own := e.VIP
		if !own.IsValid() {
			own = e.Addr
		}
		if !e.Disabled || e.VIP.IsValid() {
			if e.Service != "" {
				add(e.Service, own)
			}
			for _, alias := range e.Aliases {
				add(alias, own)
			}
		}
		if e.Disabled {
			continue
		}
		add(e.Name, e.Addr)
		for _, alias := range e.TaskAliases {
			add(alias, e.Addr)
		}
		if e.Service != "" {
			for _, name := range append([]string{e.Service}, e.Aliases...) {
				add("tasks."+name, e.Addr)
			}
		}
	}
	if d.net.Title != "" {
		for name, addrs := range maps.Clone(names) {
			if long := strings.ToLower(d.qualified(name)); names[long] == nil { // else somebody is called so
				names[long] = addrs
			}
		}
	}
	return names
}

// qualified is a name with the network's behind it.
func (d *Directory) qualified(name string) string {
	if name == "" || d.net.Title == "" {
		return name
	}
	return name + "." + d.net.Title
}

// Reverse returns the name of an address, "" for none: that of its task or service.
func (d *Directory) Reverse(a netip.Addr) string {
	service := ""
	for _, e := range d.sorted() {
		switch {
		case e.Addr == a:
			return d.qualified(e.Name)
		case e.VIP == a && service == "":
			service = e.Service
		}
	}
	return d.qualified(service)
}

// Owners returns the name of every address, as Reverse.
func (d *Directory) Owners() map[netip.Addr]string {
	owners, services := map[netip.Addr]string{}, map[netip.Addr]string{}
	for _, e := range d.sorted() {
		if owners[e.Addr] == "" {
			owners[e.Addr] = d.qualified(e.Name)
		}
		if e.VIP.IsValid() && services[e.VIP] == "" {
			services[e.VIP] = d.qualified(e.Service)
		}
	}
	for a, name := range services {
		if owners[a] == "" && name != "" {
			owners[a] = name
		}
	}
	return owners
}

// Backend answers for a service.
type Backend struct {
	Addr     netip.Addr
	Draining bool // it is about to end: it keeps the connections that it has
}

// Services returns the backends of each service's address. Those that have an address together are
// of one service: the first by its id, so that nobody takes another's.
func (d *Directory) Services() map[netip.Addr][]Backend {
	owner := map[netip.Addr]string{}
	for _, e := range d.endpoints {
		if have, there := owner[e.VIP]; e.VIP.IsValid() && (!there || e.ServiceID < have) {
			owner[e.VIP] = e.ServiceID
		}
	}
	all := map[netip.Addr][]Backend{}
	for _, e := range d.sorted() {
		if e.VIP.IsValid() && owner[e.VIP] == e.ServiceID {
			all[e.VIP] = join(all[e.VIP], e)
		}
	}
	return all
}

// Port is one that is published on every node.
type Port struct {
	Proto  string
	Number uint16
}

// Ports returns the backends of each published port. They answer at the same port. While a
// service's ports are changed some of its tasks have one port and some another. A port of two
// services is that of the first by its id.
func (d *Directory) Ports() map[Port][]Backend {
	owner := map[Port]string{}
	for _, e := range d.endpoints {
		for _, p := range e.Ports {
			at := Port{p.Proto, p.Published}
			if have, there := owner[at]; !there || e.ServiceID < have {
				owner[at] = e.ServiceID
			}
		}
	}
	all := map[Port][]Backend{}
	for _, e := range d.sorted() {
		for _, p := range e.Ports {
			if at := (Port{p.Proto, p.Published}); owner[at] == e.ServiceID {
				all[at] = join(all[at], e)
			}
		}
	}
	return all
}

// join adds an endpoint to backends. While a task moves two records may tell of its address: it
// drains when both say so.
func join(list []Backend, e gossip.Endpoint) []Backend {
	if n := len(list); n > 0 && list[n-1].Addr == e.Addr { // they are in the order of addresses
		list[n-1].Draining = list[n-1].Draining && e.Disabled
		return list
	}
	return append(list, Backend{e.Addr, e.Disabled})
}
