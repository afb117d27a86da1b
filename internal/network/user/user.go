// Package user is the driver of the networks that users define. Each has a bridge, address ranges, and names of its
// sandboxes.
//
// Start at Driver.
package user

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
)

// keyUser starts the keys of definitions in the durable store, and of leases in the other one.
const keyUser = "user/"

// user is a network that a user has defined.
type user struct {
	def    core.NetworkDefinition
	bridge *bridge.Bridge
	// use is held for reading while a sandbox gets its link, and for writing by the removal.
	use sync.RWMutex // guards deleted
	// deleted says that the network has been removed.
	deleted bool
}

// Options are the parameters of New.
type Options struct {
	// Bridge has the configuration of the builtin bridge, and the claims of host ports, which all bridges share.
	Bridge bridge.Options
	// Store has the definitions, Leases the addresses; each is durable.
	Store, Leases core.KV
	// Reserved are names that mean something else where a network is named.
	Reserved []string
	// Used returns the ranges of addresses that are in use on this node, and those of Defined.
	Used func() ([]netip.Prefix, error)
	// Avoid are ranges that are chosen only if no other is free.
	Avoid []netip.Prefix
	// Names is the name server.
	Names *names.Client
	Now   func() time.Time // nil: time.Now
}

// Driver has the networks that users have defined.
type Driver struct {
	o      Options
	define sync.Mutex   // serializes definitions
	mu     sync.RWMutex // guards byName
	byName map[string]*user
}

func (d *Driver) get(name string) (*user, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	found, ok := d.byName[name]
	return found, ok
}

// all returns the networks by name.
func (d *Driver) all() []*user {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return slices.SortedFunc(maps.Values(d.byName), func(a, b *user) int { return strings.Compare(a.def.Name, b.def.Name) })
}

// scoped is a part of a store.
type scoped struct {
	core.KV
	prefix string
}

func (s scoped) Get(key string) ([]byte, error)     { return s.KV.Get(s.prefix + key) }
func (s scoped) Put(key string, value []byte) error { return s.KV.Put(s.prefix+key, value) }
func (s scoped) Delete(key string) error            { return s.KV.Delete(s.prefix + key) }
func (s scoped) All(prefix string) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		for key, value := range s.KV.All(s.prefix + prefix) {
			if !yield(strings.TrimPrefix(key, s.prefix), value) {
				return
			}
		}
	}
}

// New reads the definitions. It changes nothing on the host.
func New(o Options) (*Driver, error) {
	d := &Driver{o: o, byName: map[string]*user{}}
	for key, raw := range d.o.Store.All(keyUser) {
		var def core.NetworkDefinition
		if err := json.Unmarshal(raw, &def); err != nil {
			return nil, fmt.Errorf("network: stored definition %s: %w: %w", key, err, errdefs.ErrDataLoss)
		}
		on, err := d.open(def)
		if err != nil {
			return nil, fmt.Errorf("network %s: %w", def.Name, err)
		}
		d.byName[def.Name] = on
	}
	return d, nil
}

func (d *Driver) open(def core.NetworkDefinition) (*user, error) {
	ranges, err := rangesOf(def)
	if err != nil {
		return nil, err
	}
	var reserved []netip.Addr
	for _, s := range def.Subnets {
		reserved = slices.AppendSeq(reserved, maps.Values(s.Reserved))
	}
	o := d.o.Bridge
	o.Leases, err = ipam.Open(ipam.Options{KV: scoped{d.o.Leases, keyUser + def.Name + "/"}, Reserved: reserved, Rest: time.Duration(o.Config.LeaseRest) * time.Second, Now: d.o.Now})
	if err != nil {
		return nil, err
	}
	o.Leases.SetRanges(ranges)
	return &user{def: def, bridge: bridge.NewUser(o, def)}, nil
}

func rangesOf(def core.NetworkDefinition) ([]ipam.Range, error) {
	var cidrs []string
	for _, s := range def.Subnets {
		cidrs = append(cidrs, s.Range.String())
	}
	ranges, err := ipam.ParseRanges(cidrs)
	if err != nil {
		return nil, err
	}
	for i, s := range def.Subnets {
		if !ranges[i].Gateway.IsValid() {
			return nil, fmt.Errorf("range %s: it has no room for a gateway and a sandbox: %w", s.Range, errdefs.ErrInvalidArgument)
		}
		if s.Gateway.IsValid() {
			if ranges[i], err = ranges[i].WithGateway(s.Gateway); err != nil {
				return nil, err
			}
		}
		if s.Pool.IsValid() {
			if ranges[i], err = ranges[i].WithPool(s.Pool); err != nil {
				return nil, err
			}
		}
		for name, a := range s.Reserved {
			if !ranges[i].Prefix.Contains(a) || a == ranges[i].Gateway {
				return nil, fmt.Errorf("reserved address %s=%s: it is not in %s, or is the gateway: %w", name, a, s.Range, errdefs.ErrInvalidArgument)
			}
		}
	}
	return ranges, nil
}

// maxUsers bounds the networks of a node: each has a table of rules, and a watch of others' rules.
const maxUsers = 256

// Define stores a network. It chooses Subnets if there are none. The first sandbox on the network
// creates its bridge. AlreadyExists, InvalidArgument.
func (d *Driver) Define(_ context.Context, def core.NetworkDefinition) (core.NetworkDefinition, error) {
	d.define.Lock()
	defer d.define.Unlock()
	fail := func(err error) (core.NetworkDefinition, error) {
		return core.NetworkDefinition{}, fmt.Errorf("define network %q: %w", def.Name, err)
	}
	if !core.IsName(def.Name, "_.-", netconf.MaxName) || slices.Contains(d.o.Reserved, def.Name) {
		return fail(fmt.Errorf("not a name for a network: letters, digits and _.-, at most %d, and none of %s: %w",
			netconf.MaxName, strings.Join(d.o.Reserved, " "), errdefs.ErrInvalidArgument))
	}
	if _, ok := d.get(def.Name); ok {
		return fail(errdefs.ErrAlreadyExists)
	}
	if def.MTU != 0 && (def.MTU < 68 || def.MTU > 65535) {
		return fail(fmt.Errorf("mtu %d is out of range: %w", def.MTU, errdefs.ErrInvalidArgument))
	}
	if def.HostIP.IsValid() && !def.HostIP.Is4() {
		return fail(fmt.Errorf("host ports at %s: not an IPv4 address: %w", def.HostIP, errdefs.ErrInvalidArgument))
	}
	all := d.all()
	if len(all) >= maxUsers {
		return fail(fmt.Errorf("there are %d already: %w", len(all), errdefs.ErrResourceExhausted))
	}
	def.Created = time.Now().Round(0).UTC()
	if def.Interface == "" {
		def.Interface = d.bridgeName(def.Name)
	} else if err := d.checkInterface(def.Interface); err != nil {
		return fail(err)
	}
	if err := d.chooseSubnets(&def, all); err != nil {
		return fail(err)
	}
	u, err := d.open(def)
	if err != nil {
		return fail(err)
	}
	raw, err := json.Marshal(def)
	if err != nil {
		return fail(err)
	}
	if err := d.o.Store.Put(keyUser+def.Name, raw); err != nil {
		return fail(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[def.Name] = u
	return def, nil
}

// bridgeName derives the name of a bridge from that of the network, and of the agent's own bridge:
// another agent of the host may have a network of the same name.
func (d *Driver) bridgeName(name string) string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(d.o.Bridge.Config.Bridge + "/" + name))
	return bridge.UserPrefix + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, sum.Sum64()))[:10]
}

// checkInterface refuses the name of a bridge that is in use, or that would be taken for another network's.
func (d *Driver) checkInterface(name string) error {
	if !core.IsName(name, "_.-", netconf.MaxLink) || strings.HasPrefix(name, bridge.UserPrefix) || name == d.o.Bridge.Config.Bridge {
		return fmt.Errorf("bridge %q: not a name for a bridge: letters, digits and _.-, at most %d, without %s at the start: %w",
			name, netconf.MaxLink, bridge.UserPrefix, errdefs.ErrInvalidArgument)
	}
	if bridge.Exists(name) {
		return fmt.Errorf("bridge %s: there is a link of that name already, choose another one: %w", name, errdefs.ErrAlreadyExists)
	}
	return nil
}

// chooseSubnets refuses ranges that are in use on this node, and chooses one of IPv4 where none is
// named.
func (d *Driver) chooseSubnets(def *core.NetworkDefinition, all []*user) error {
	for _, u := range all {
		if u.def.Interface == def.Interface {
			return fmt.Errorf("network %s has the same bridge, choose another name: %w", u.def.Name, errdefs.ErrAlreadyExists)
		}
	}
	taken, err := d.o.Used()
	if err != nil {
		return err
	}
	has4, has6 := def.NoIPv4, !def.IPv6
	if def.NoIPv4 && !def.IPv6 && len(def.Subnets) == 0 {
		return fmt.Errorf("neither IPv4 nor IPv6 is wanted: %w", errdefs.ErrInvalidArgument)
	}
	for i, s := range def.Subnets {
		if !s.Range.IsValid() {
			return fmt.Errorf("range %s: %w", s.Range, errdefs.ErrInvalidArgument)
		}
		if def.NoIPv4 && s.Range.Addr().Is4() {
			return fmt.Errorf("range %s is one of IPv4, which is not wanted: %w", s.Range, errdefs.ErrInvalidArgument)
		}
		def.Subnets[i].Range = s.Range.Masked()
		has4, has6 = has4 || s.Range.Addr().Is4(), has6 || s.Range.Addr().Is6()
		for _, t := range taken {
			if t.Bits() > 0 && t.Overlaps(s.Range) {
				return fmt.Errorf("range %s overlaps %s, which is in use on this node: %w", s.Range, t, errdefs.ErrInvalidArgument)
			}
		}
		taken = append(taken, s.Range)
	}
	if !has6 {
		def.Subnets = append(def.Subnets, core.Subnet{Range: ipam.ChooseULA().Prefix, Chosen: true})
	}
	if has4 {
		return nil
	}
	r, err := ipam.ChooseSmall(append(slices.Clone(taken), d.o.Avoid...))
	if err != nil {
		r, err = ipam.ChooseSmall(taken)
	}
	def.Subnets = append([]core.Subnet{{Range: r.Prefix, Chosen: true}}, def.Subnets...)
	return err
}

// Defined returns the networks that users have defined, by name.
func (d *Driver) Defined() []core.NetworkDefinition {
	var list []core.NetworkDefinition
	for _, u := range d.all() {
		list = append(list, u.def)
	}
	return list
}

// Undefine removes a network with its bridge and rules. FailedPrecondition when sandboxes are on
// it, NotFound.
func (d *Driver) Undefine(ctx context.Context, name string) error {
	u, ok := d.get(name)
	if !ok {
		return fmt.Errorf("network %q: %w", name, errdefs.ErrNotFound)
	}
	u.use.Lock()
	defer u.use.Unlock()
	if u.deleted {
		return fmt.Errorf("network %q: %w", name, errdefs.ErrNotFound)
	}
	if err := u.bridge.Withdraw(ctx); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	// Records of freed addresses would delay their reuse in a later network of this name.
	leases := scoped{d.o.Leases, keyUser + name + "/"}
	for key := range maps.Collect(leases.All("")) {
		if err := leases.Delete(key); err != nil {
			return fmt.Errorf("remove network %s: %w", name, err)
		}
	}
	if err := d.o.Store.Delete(keyUser + name); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	u.deleted = true
	d.mu.Lock()
	delete(d.byName, name)
	d.mu.Unlock()
	return errors.Join(d.o.Names.SetZone(ctx, name, nil), u.bridge.Stop())
}

// Has reports whether a user has defined the network.
func (d *Driver) Has(network string) (string, bool) {
	_, ok := d.get(network)
	return network, ok
}

// Attach implements network.Driver. Sandboxes on these networks have a name server.
func (d *Driver) Attach(ctx context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error) {
	name := req.Config.Name
	notFound := fmt.Errorf("network %q: %w", name, errdefs.ErrNotFound)
	if st.Mode != "" {
		notFound = fmt.Errorf("no network has that name: %w", errdefs.ErrNotFound)
	}
	on, ok := d.get(name)
	if !ok {
		return core.NetworkStatus{}, notFound
	}
	on.use.RLock()
	defer on.use.RUnlock()
	if on.deleted {
		return core.NetworkStatus{}, notFound
	}
	st, err := on.bridge.Attach(ctx, req, st)
	if err != nil {
		return st, err
	}
	st.Resolver = names.Address()
	return st, nil
}

// Detach implements network.Driver.
func (d *Driver) Detach(ctx context.Context, req core.NetworkRequest, network string) error {
	if on, ok := d.get(network); ok {
		return on.bridge.Detach(ctx, req, network)
	}
	return nil
}

// Release implements network.Driver.
func (d *Driver) Release(ctx context.Context, req core.NetworkRequest, network string) error {
	var errs []error
	for _, on := range d.all() {
		if on.bridge.Holds(req.Sandbox) && (network == "" || network == on.def.Name) {
			errs = append(errs, on.bridge.Release(ctx, req, network))
		}
	}
	return errors.Join(errs...)
}

// Check implements network.Driver.
func (d *Driver) Check(ctx context.Context, req core.NetworkRequest) error {
	var errs []error
	for _, a := range req.Last.Interfaces {
		if on, ok := d.get(a.Network); ok {
			errs = append(errs, on.bridge.Check(ctx, req))
		}
	}
	return errors.Join(errs...)
}

// Recover implements network.Driver.
func (d *Driver) Recover(ctx context.Context, live []core.NetworkRequest) error {
	return d.each(func(b *bridge.Bridge) error { return b.Recover(ctx, live) })
}

// Holders implements network.Driver.
func (d *Driver) Holders() (ids []core.ID) {
	for _, on := range d.all() {
		ids = append(ids, on.bridge.Holders()...)
	}
	return ids
}

// Withdraw removes the bridges and all rules.
func (d *Driver) Withdraw(ctx context.Context) error {
	return d.each(func(b *bridge.Bridge) error { return b.Withdraw(ctx) })
}

// Stop ends the watches of other programs' rules; all else stays.
func (d *Driver) Stop() error { return d.each((*bridge.Bridge).Stop) }

// Bridges returns the bridges of all networks, by the names of the networks.
func (d *Driver) Bridges() (list []*bridge.Bridge) {
	for _, on := range d.all() {
		list = append(list, on.bridge)
	}
	return list
}

func (d *Driver) each(do func(*bridge.Bridge) error) error {
	var errs []error
	for _, b := range d.Bridges() {
		errs = append(errs, do(b))
	}
	return errors.Join(errs...)
}

// Mend restores the bridges where another program has changed them.
func (d *Driver) Mend(links bool) (all []kernel.Change) {
	for _, on := range d.all() {
		on.use.RLock()
		if !on.deleted {
			all = append(all, on.bridge.Mend(links)...)
		}
		on.use.RUnlock()
	}
	return all
}

// Bridge returns the bridge of a network.
func (d *Driver) Bridge(network string) (*bridge.Bridge, bool) {
	on, ok := d.get(network)
	if !ok {
		return nil, false
	}
	return on.bridge, true
}
