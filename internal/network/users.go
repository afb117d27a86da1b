package network

import (
	"cmp"
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
	"github.com/longshore/longshore/internal/network/dns"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/nft"
)

// userPrefix starts the names of the bridges of networks that users have defined.
const userPrefix = "lsu-"

// keyUser starts the keys of definitions in the durable store, and of leases in the other one.
const keyUser = "user/"

// user is a network that a user has defined.
type user struct {
	def    core.NetworkDefinition
	bridge *bridge
	// use is held for reading while a sandbox gets its link, and for writing by the removal.
	use sync.RWMutex // guards gone
	// gone says that the network has been removed.
	gone bool
}

// users are the networks that users have defined.
type users struct {
	define sync.Mutex   // serializes definitions
	mu     sync.RWMutex // guards byName
	byName map[string]*user
}

func (u *users) get(name string) (*user, bool) {
	u.mu.RLock()
	defer u.mu.RUnlock()
	found, ok := u.byName[name]
	return found, ok
}

// all returns the networks by name.
func (u *users) all() []*user {
	u.mu.RLock()
	defer u.mu.RUnlock()
	return slices.SortedFunc(maps.Values(u.byName), func(a, b *user) int { return strings.Compare(a.def.Name, b.def.Name) })
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

// loadUsers reads the definitions. It changes nothing on the host.
func (n *Network) loadUsers() error {
	n.users.mu.Lock()
	defer n.users.mu.Unlock()
	n.users.byName = map[string]*user{}
	for key, raw := range n.store.All(keyUser) {
		var def core.NetworkDefinition
		if err := json.Unmarshal(raw, &def); err != nil {
			return fmt.Errorf("network: stored definition %s: %w: %w", key, err, errdefs.ErrDataLoss)
		}
		u, err := n.open(def)
		if err != nil {
			return fmt.Errorf("network %s: %w", def.Name, err)
		}
		n.users.byName[def.Name] = u
	}
	return nil
}

func (n *Network) open(def core.NetworkDefinition) (*user, error) {
	ranges, err := rangesOf(def)
	if err != nil {
		return nil, err
	}
	leases, err := ipam.Open(ipam.Options{KV: scoped{n.leaseStore, keyUser + def.Name + "/"}, Rest: time.Duration(n.cfg.LeaseRest) * time.Second, Now: n.now})
	if err != nil {
		return nil, err
	}
	leases.SetRanges(ranges)
	cfg := n.cfg
	cfg.Bridge, cfg.MTU, cfg.Masquerade = def.Interface, cmp.Or(def.MTU, n.cfg.MTU), !def.Internal
	b := newBridge(cfg, leases, n.bridge.claims, n.log)
	b.names, b.internal, b.user = []string{def.Name}, def.Internal, true
	b.portsOn = n.bridge.portsOn
	b.plain = func() []netip.Prefix { return nil }
	b.table = nft.New(nft.Options{
		Name: nft.TableName + "-" + def.Interface, Bridge: def.Interface, Masquerade: cfg.Masquerade, Internal: def.Internal, Logger: n.log,
		Others: []string{userPrefix, n.cfg.Bridge},
	})
	return &user{def: def, bridge: b}, nil
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
	}
	return ranges, nil
}

// maxUsers bounds the networks of a node: each has a table of rules, and a watch of others' rules.
const maxUsers = 256

// reserved are names that mean something else where a network is named.
func (n *Network) reserved() []string {
	return append([]string{core.NetworkNone, netconf.StatusHost, "bridge", "container", "ns", "private", "slirp4netns", "pasta", "podman"}, n.bridge.names...)
}

// Define stores a network. It chooses Subnets if there are none. The first sandbox on the network
// creates its bridge. AlreadyExists, InvalidArgument.
func (n *Network) Define(_ context.Context, def core.NetworkDefinition) (core.NetworkDefinition, error) {
	n.users.define.Lock()
	defer n.users.define.Unlock()
	fail := func(err error) (core.NetworkDefinition, error) {
		return core.NetworkDefinition{}, fmt.Errorf("define network %q: %w", def.Name, err)
	}
	if !core.IsName(def.Name, "_.-", maxName) || slices.Contains(n.reserved(), def.Name) {
		return fail(fmt.Errorf("not a name for a network: letters, digits and _.-, at most %d, and none of %s: %w",
			maxName, strings.Join(n.reserved(), " "), errdefs.ErrInvalidArgument))
	}
	if _, ok := n.users.get(def.Name); ok {
		return fail(errdefs.ErrAlreadyExists)
	}
	if def.MTU != 0 && (def.MTU < 68 || def.MTU > 65535) {
		return fail(fmt.Errorf("mtu %d is out of range: %w", def.MTU, errdefs.ErrInvalidArgument))
	}
	all := n.users.all()
	if len(all) >= maxUsers {
		return fail(fmt.Errorf("there are %d already: %w", len(all), errdefs.ErrResourceExhausted))
	}
	def.Interface, def.Created = n.bridgeName(def.Name), time.Now().Round(0).UTC()
	if err := n.chooseSubnets(&def, all); err != nil {
		return fail(err)
	}
	u, err := n.open(def)
	if err != nil {
		return fail(err)
	}
	raw, err := json.Marshal(def)
	if err != nil {
		return fail(err)
	}
	if err := n.store.Put(keyUser+def.Name, raw); err != nil {
		return fail(err)
	}
	n.users.mu.Lock()
	defer n.users.mu.Unlock()
	n.users.byName[def.Name] = u
	return def, nil
}

const maxName = 128

// bridgeName derives the name of a bridge from that of the network, and of the agent's own bridge:
// another agent of the host may have a network of the same name.
func (n *Network) bridgeName(name string) string {
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(n.cfg.Bridge + "/" + name))
	return userPrefix + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, sum.Sum64()))[:10]
}

// chooseSubnets refuses ranges that are in use on this node, and chooses one of IPv4 where none is
// named.
func (n *Network) chooseSubnets(def *core.NetworkDefinition, all []*user) error {
	for _, u := range all {
		if u.def.Interface == def.Interface {
			return fmt.Errorf("network %s has the same bridge, choose another name: %w", u.def.Name, errdefs.ErrAlreadyExists)
		}
	}
	taken, err := n.usedRanges()
	if err != nil {
		return err
	}
	has4 := false
	for i, s := range def.Subnets {
		if !s.Range.IsValid() {
			return fmt.Errorf("range %s: %w", s.Range, errdefs.ErrInvalidArgument)
		}
		def.Subnets[i].Range = s.Range.Masked()
		has4 = has4 || s.Range.Addr().Is4()
		for _, t := range taken {
			if t.Bits() > 0 && t.Overlaps(s.Range) {
				return fmt.Errorf("range %s overlaps %s, which is in use on this node: %w", s.Range, t, errdefs.ErrInvalidArgument)
			}
		}
		taken = append(taken, s.Range)
	}
	if has4 {
		return nil
	}
	r, err := ipam.ChooseSmall(append(slices.Clone(taken), n.avoid...))
	if err != nil {
		r, err = ipam.ChooseSmall(taken)
	}
	def.Subnets = append([]core.Subnet{{Range: r.Prefix}}, def.Subnets...)
	return err
}

// usedRanges returns the ranges that are in use on this node.
func (n *Network) usedRanges() ([]netip.Prefix, error) {
	taken, err := kernel.Routes(n.cfg.Bridge)
	if err != nil {
		return nil, err
	}
	for _, r := range n.leases.Ranges() {
		taken = append(taken, r.Prefix)
	}
	for _, u := range n.users.all() {
		for _, s := range u.def.Subnets {
			taken = append(taken, s.Range)
		}
	}
	for _, v := range n.Overlays.List() {
		for _, s := range v.Subnets {
			taken = append(taken, s.Range)
		}
	}
	return taken, nil
}

// Defined returns the networks that users have defined, by name.
func (n *Network) Defined() []core.NetworkDefinition {
	var list []core.NetworkDefinition
	for _, u := range n.users.all() {
		list = append(list, u.def)
	}
	return list
}

// Undefine removes a network with its bridge and rules. FailedPrecondition when sandboxes are on
// it, NotFound.
func (n *Network) Undefine(ctx context.Context, name string) error {
	u, ok := n.users.get(name)
	if !ok {
		return fmt.Errorf("network %q: %w", name, errdefs.ErrNotFound)
	}
	u.use.Lock()
	defer u.use.Unlock()
	if u.gone {
		return fmt.Errorf("network %q: %w", name, errdefs.ErrNotFound)
	}
	if err := u.bridge.Withdraw(ctx); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	// Records of freed addresses would delay their reuse in a later network of this name.
	leases := scoped{n.leaseStore, keyUser + name + "/"}
	for key := range maps.Collect(leases.All("")) {
		if err := leases.Delete(key); err != nil {
			return fmt.Errorf("remove network %s: %w", name, err)
		}
	}
	if err := n.store.Delete(keyUser + name); err != nil {
		return fmt.Errorf("remove network %s: %w", name, err)
	}
	u.gone = true
	n.users.mu.Lock()
	delete(n.users.byName, name)
	n.users.mu.Unlock()
	return errors.Join(n.names.SetZone(ctx, name, nil), u.bridge.Stop())
}

// SetNames sets the records of a network's name server: the addresses of each name, and the name of
// each address.
func (n *Network) SetNames(ctx context.Context, network string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error {
	return n.names.SetZone(ctx, network, &names.Zone{Names: byName, Owners: owners})
}

const dnsPort = 53

// box says how the name server of a sandbox answers.
func (n *Network) box(req core.NetworkRequest, st core.NetworkStatus) names.Box {
	b := names.Box{Sandbox: req.Sandbox, Namespace: req.Namespace}
	out := false
	for _, a := range st.Interfaces {
		if _, ok := core.OverlayName(a.Network); ok {
			// An interface with open ports is on the ingress network, which has no names.
			if len(a.Open) == 0 {
				b.Networks = append(b.Networks, a.Network)
			}
			continue
		}
		u, ok := n.users.get(a.Network)
		if ok {
			b.Networks = append(b.Networks, u.def.Name)
		}
		out = out || !ok || !u.def.Internal
	}
	if !out {
		return b
	}
	for _, s := range dns.Ask(req.Config.DNS, st.DNS, dns.Read()) {
		if a, err := netip.ParseAddr(s); err == nil {
			b.Upstream = append(b.Upstream, netip.AddrPortFrom(a, dnsPort))
		}
	}
	return b
}

// resolver is the name server's step of Teardown.
type resolver struct{ n *Network }

func (r resolver) Release(ctx context.Context, req core.NetworkRequest, _ string) error {
	return r.n.names.Drop(ctx, req.Sandbox)
}

// has reports whether a user has defined the network.
func (u *users) has(network string) (string, bool) {
	_, ok := u.get(network)
	return network, ok
}

// Attach implements Driver. Sandboxes on these networks have a name server.
func (u *users) Attach(ctx context.Context, req core.NetworkRequest, st core.NetworkStatus) (core.NetworkStatus, error) {
	name := req.Config.Name
	gone := fmt.Errorf("network %q: %w", name, errdefs.ErrNotFound)
	if st.Mode != "" {
		gone = fmt.Errorf("there is none of that name: %w", errdefs.ErrNotFound)
	}
	on, ok := u.get(name)
	if !ok {
		return core.NetworkStatus{}, gone
	}
	on.use.RLock()
	defer on.use.RUnlock()
	if on.gone {
		return core.NetworkStatus{}, gone
	}
	st, err := on.bridge.Attach(ctx, req, st)
	if err != nil {
		return st, err
	}
	st.Resolver = names.Address()
	return st, nil
}

// Detach implements Driver.
func (u *users) Detach(ctx context.Context, req core.NetworkRequest, network string) error {
	if on, ok := u.get(network); ok {
		return on.bridge.Detach(ctx, req, network)
	}
	return nil
}

// Release implements Driver.
func (u *users) Release(ctx context.Context, req core.NetworkRequest, network string) error {
	var errs []error
	for _, on := range u.all() {
		if _, held := on.bridge.leases.Held(req.Sandbox); held && (network == "" || network == on.def.Name) {
			errs = append(errs, on.bridge.Release(ctx, req, network))
		}
	}
	return errors.Join(errs...)
}

// Check implements Driver.
func (u *users) Check(ctx context.Context, req core.NetworkRequest) error {
	var errs []error
	for _, a := range req.Last.Interfaces {
		if on, ok := u.get(a.Network); ok {
			errs = append(errs, on.bridge.Check(ctx, req))
		}
	}
	return errors.Join(errs...)
}

// Recover implements Driver.
func (u *users) Recover(ctx context.Context, live []core.NetworkRequest) error {
	return u.each(func(b *bridge) error { return b.Recover(ctx, live) })
}

// Holders implements Driver.
func (u *users) Holders() (ids []core.ID) {
	for _, on := range u.all() {
		ids = append(ids, on.bridge.Holders()...)
	}
	return ids
}

// Withdraw removes the bridges and all rules.
func (u *users) Withdraw(ctx context.Context) error {
	return u.each(func(b *bridge) error { return b.Withdraw(ctx) })
}

// Stop ends the watches of other programs' rules; all else stays.
func (u *users) Stop() error { return u.each((*bridge).Stop) }

func (u *users) bridges() (list []*bridge) {
	for _, on := range u.all() {
		list = append(list, on.bridge)
	}
	return list
}

func (u *users) each(do func(*bridge) error) error {
	var errs []error
	for _, b := range u.bridges() {
		errs = append(errs, do(b))
	}
	return errors.Join(errs...)
}

// Mend restores the bridges where another program has changed them.
func (u *users) Mend(links bool) (all []kernel.Change) {
	for _, on := range u.all() {
		on.use.RLock()
		if !on.gone {
			all = append(all, on.bridge.Mend(links)...)
		}
		on.use.RUnlock()
	}
	return all
}
