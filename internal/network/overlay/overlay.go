// Package overlay is the driver of networks over several nodes. Its data paths are package vxlan's.
//
// Start at Driver.
package overlay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ingress"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/vxlan"
)

// Driver is the driver of networks over several nodes, and of the ingress.
//
// A sandbox on overlays has an interface on each, and a further one on the network that leads out.
// Namespaces with the data paths, interfaces, names and rules outlive the agent. The definitions
// are stored beside the leases, so that Recover of the next agent adopts all of it before the first
// Open.
type Driver struct {
	dir      string // of the data paths' pinned namespaces; "": there can be none
	log      *slog.Logger
	kv       core.KV
	dns      netconf.DNSConfig
	names    *names.Client
	ingress  *ingress.Ingress
	makeRoom func(def core.Overlay, others []core.Overlay) error
	taken    func() map[netip.Prefix]string

	keys *vxlan.Keyring

	served *served
	able   able
	guard  *vxlan.Guard
	define sync.Mutex   // serializes Open, Close and the recovery
	mu     sync.RWMutex // guards byName
	byName map[string]*openOverlay
}

// able remembers that there can be overlays, which never changes back.
type able struct {
	mu  sync.Mutex // guards yes
	yes bool
}

// openOverlay is an overlay that is open.
type openOverlay struct {
	// use is locked for reading while the data path is used, and for writing while it is replaced.
	use sync.RWMutex // guards def, path
	// unseen has the sandboxes that are on it, while the data path could not be adopted.
	unseen sync.Map
	def    core.Overlay
	// path is nil where it could not be adopted, and after Close.
	path *vxlan.Network
}

// keyOverlay starts the keys of overlays' definitions in the store of leases.
const keyOverlay = "overlay/"

// Options are the parameters of New.
type Options struct {
	// Dir is where the namespaces of the data paths are pinned; "": there can be none.
	Dir string
	// KV has the definitions. It lives as long as the namespaces.
	KV      core.KV
	DNS     netconf.DNSConfig
	Names   *names.Client
	Ingress *ingress.Ingress
	// MakeRoom makes networks that can move, which have a range of def, choose another one.
	MakeRoom func(def core.Overlay, others []core.Overlay) error
	// Taken returns the ranges of this node's other networks, and for errors the name of each.
	Taken  func() map[netip.Prefix]string
	Logger *slog.Logger
}

// New reads the definitions. It changes nothing on the host.
func New(opts Options) (*Driver, error) {
	o := &Driver{
		dir: opts.Dir, log: opts.Logger, kv: opts.KV, dns: opts.DNS, names: opts.Names, ingress: opts.Ingress, makeRoom: opts.MakeRoom, taken: opts.Taken,
		byName: map[string]*openOverlay{}, served: newServed(opts.Logger), guard: vxlan.NewGuard(opts.Logger),
	}
	var err error
	if o.keys, err = vxlan.NewKeyring(o.log); err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	for key, raw := range o.kv.All(keyOverlay) {
		var def core.Overlay
		if err := json.Unmarshal(raw, &def); err != nil || keyOverlay+def.Name != key {
			return nil, fmt.Errorf("network: stored definition %s: %w", key, errors.Join(errdefs.ErrDataLoss, err))
		}
		o.byName[def.Name] = &openOverlay{def: def}
	}
	return o, nil
}

// Able returns FailedPrecondition with reason and advice if this machine cannot have overlays.
// Encrypted ones may need more than others.
func (o *Driver) Able(_ context.Context, encrypted bool) error {
	if err := o.possible(); err != nil {
		return fmt.Errorf("networks over several nodes: %w", err)
	}
	if encrypted {
		if err := o.keys.Able(); err != nil {
			return fmt.Errorf("encrypted networks over several nodes: %w", err)
		}
	}
	return nil
}

func (o *Driver) possible() error {
	o.able.mu.Lock()
	defer o.able.mu.Unlock()
	if o.able.yes {
		return nil
	}
	if o.dir == "" {
		return fmt.Errorf("the network has no directory for its state: %w", errdefs.ErrFailedPrecondition)
	}
	if err := vxlan.Able(); err != nil {
		return err
	}
	if err := nft.Able(); err != nil {
		return err
	}
	o.able.yes = true
	return nil
}

// lockedOverlay is an overlay that does not change until done is called.
type lockedOverlay struct {
	def  core.Overlay
	path *vxlan.Network
	done func()
}

// get returns an overlay that is open. NotFound.
func (o *Driver) get(name string) (lockedOverlay, error) {
	o.mu.RLock()
	v, ok := o.byName[name]
	o.mu.RUnlock()
	if !ok {
		return lockedOverlay{}, fmt.Errorf("overlay %.64q: it is not open: %w", name, errdefs.ErrNotFound)
	}
	v.use.RLock()
	if v.path == nil {
		v.use.RUnlock()
		return lockedOverlay{}, fmt.Errorf("overlay %q: it is not open: %w", name, errdefs.ErrNotFound)
	}
	return lockedOverlay{v.def, v.path, v.use.RUnlock}, nil
}

// all returns the overlays by name.
func (o *Driver) all() []*openOverlay {
	o.mu.RLock()
	defer o.mu.RUnlock()
	var list []*openOverlay
	for _, name := range slices.Sorted(maps.Keys(o.byName)) {
		list = append(list, o.byName[name])
	}
	return list
}

// List returns those that are open, also those that an earlier agent has opened, by name.
func (o *Driver) List() []core.Overlay {
	var list []core.Overlay
	for _, v := range o.all() {
		v.use.RLock()
		list = append(list, v.def)
		v.use.RUnlock()
	}
	return list
}

// Open makes an overlay, or adopts an existing one with its sandboxes, peers, names and services.
// InvalidArgument for a definition that is not valid; AlreadyExists if one of its VXLAN ids or ranges
// is in use on this machine; FailedPrecondition as Able.
func (o *Driver) Open(_ context.Context, def core.Overlay) error {
	def.Subnets = slices.Clone(def.Subnets)
	def.Port = cmp.Or(def.Port, vxlan.DefaultPort)
	if err := o.open(def); err != nil {
		return fmt.Errorf("open overlay %.64q: %w", def.Name, err)
	}
	return nil
}

func (o *Driver) open(def core.Overlay) error {
	if err := valid(o, def); err != nil {
		return err
	}
	o.define.Lock()
	defer o.define.Unlock()
	o.mu.RLock()
	v := o.byName[def.Name]
	o.mu.RUnlock()
	if v != nil && v.matches(def) && kernel.Pinned(filepath.Join(o.dir, def.Name)) {
		return nil
	}
	if err := o.makeRoom(def, o.List()); err != nil {
		return err
	}
	if err := collides(o, def); err != nil {
		return err
	}
	if v != nil {
		return o.reopen(v, def)
	}
	if err := o.possible(); err != nil {
		return err
	}
	if err := store(o, def); err != nil {
		return err
	}
	path, err := vxlan.Open(o.dir, o.pathOf(def), o.log)
	if err != nil {
		return errors.Join(err, o.keys.Remove(o.dir, def.Name), o.guard.Leave(o.dir, def.Name), o.kv.Delete(keyOverlay+def.Name))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.byName[def.Name] = &openOverlay{def: def, path: path}
	return nil
}

// reopen applies a new definition to an open overlay. Preconditions: define is held.
func (o *Driver) reopen(v *openOverlay, def core.Overlay) error {
	v.use.Lock()
	defer v.use.Unlock()
	peers := map[string]vxlan.Peer{}
	if v.path != nil {
		peers = v.path.AllPeers()
		if !slices.Equal(v.def.Subnets, def.Subnets) || v.def.MTU != def.MTU {
			if here := v.path.Attached(); len(here) > 0 {
				return fmt.Errorf("it has other subnets, or another mtu, and %d interfaces of this node are on it: %w", len(here), errdefs.ErrAlreadyExists)
			}
			// Nothing of before is of use.
			if err := o.keys.Remove(o.dir, def.Name); err != nil {
				return err
			}
			v.path, peers = nil, nil
		}
	}
	if err := store(o, def); err != nil {
		return err
	}
	path, err := vxlan.Open(o.dir, o.pathOf(def), o.log)
	if err != nil {
		return err // it is tried again by the next call
	}
	adopted := v.path == nil
	v.def, v.path = def, path
	if adopted {
		err = v.tidyLocked(func(id core.ID) bool { _, ok := v.unseen.Load(id); return ok })
	}
	return errors.Join(err, path.SetPeers(peers))
}

// matches reports whether an overlay is open with this definition.
func (v *openOverlay) matches(def core.Overlay) bool {
	v.use.RLock()
	defer v.use.RUnlock()
	return v.path != nil && slices.Equal(v.def.Subnets, def.Subnets) && v.def.Port == def.Port && v.def.MTU == def.MTU && v.def.Local == def.Local && v.def.Encrypted == def.Encrypted
}

func store(o *Driver, def core.Overlay) error {
	raw, err := json.Marshal(def)
	if err != nil {
		return err
	}
	return o.kv.Put(keyOverlay+def.Name, raw)
}

func (o *Driver) pathOf(def core.Overlay) vxlan.Definition {
	d := vxlan.Definition{Name: def.Name, Port: def.Port, MTU: def.MTU, Local: def.Local, Encrypted: def.Encrypted, Keys: o.keys, Guard: o.guard}
	for _, s := range def.Subnets {
		d.Subnets = append(d.Subnets, vxlan.Subnet(s))
	}
	return d
}

// maxOverlayMTU is the size of the longest packet without VXLAN's headers.
const maxOverlayMTU = 65535 - 50

// valid returns InvalidArgument if a value of the definition is not valid.
func valid(o *Driver, def core.Overlay) error {
	invalid := func(format string, args ...any) error {
		return fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	if !core.IsName(def.Name, "_.-", netconf.MaxName) {
		return invalid("not a name for a network: letters, digits and _.-, at most %d", netconf.MaxName)
	}
	if def.MTU > maxOverlayMTU {
		return invalid("mtu %d is out of range", def.MTU)
	}
	for _, s := range def.Subnets {
		if s.Range.Addr().Is6() && def.MTU < 1280 {
			return invalid("mtu %d is too small for IPv6", def.MTU)
		}
	}
	return o.pathOf(def).Check()
}

// collides returns AlreadyExists if the overlay's ranges or VXLAN ids are in use by another network
// of this node. Routes of the host do not count: the overlay hides those addresses from its own
// sandboxes only.
func collides(o *Driver, def core.Overlay) error {
	taken := o.taken()
	for _, v := range o.List() {
		if v.Name == def.Name {
			continue
		}
		for _, s := range v.Subnets {
			taken[s.Range] = "overlay " + v.Name
			for _, mine := range def.Subnets {
				if mine.VNI == s.VNI && v.Port == def.Port {
					return fmt.Errorf("vxlan id %d at port %d is overlay %s's: %w", s.VNI, v.Port, v.Name, errdefs.ErrAlreadyExists)
				}
			}
		}
	}
	for _, s := range def.Subnets {
		for r, whose := range taken {
			if r.Overlaps(s.Range) {
				return fmt.Errorf("range %s overlaps %s, which is that of %s: %w", s.Range, r, whose, errdefs.ErrAlreadyExists)
			}
		}
	}
	return nil
}

// Close removes an overlay. It is idempotent. FailedPrecondition while sandboxes are on it, or the
// Ingress.
func (o *Driver) Close(ctx context.Context, name string) error {
	o.define.Lock()
	defer o.define.Unlock()
	o.mu.RLock()
	v := o.byName[name]
	o.mu.RUnlock()
	if v == nil {
		return nil
	}
	if err := o.close(ctx, v); err != nil {
		return fmt.Errorf("close overlay %q: %w", name, err)
	}
	return nil
}

// close removes an overlay. Preconditions: define is held.
func (o *Driver) close(ctx context.Context, v *openOverlay) error {
	v.use.Lock()
	defer v.use.Unlock()
	name := v.def.Name
	if v.path != nil {
		if here := v.path.Attached(); len(here) > 0 {
			return fmt.Errorf("%d interfaces of this node are on it: %w", len(here), errdefs.ErrFailedPrecondition)
		}
	}
	if err := o.keys.Remove(o.dir, name); err != nil {
		return err
	}
	v.path = nil
	if err := o.guard.Leave(o.dir, name); err != nil {
		return err
	}
	if err := o.kv.Delete(keyOverlay + name); err != nil {
		return err
	}
	o.mu.Lock()
	delete(o.byName, name)
	o.mu.Unlock()
	o.served.forget(name)
	return o.names.SetZone(ctx, core.OverlayNetwork(name), nil)
}

// Withdraw removes the ingress and all overlays. FailedPrecondition when sandboxes are on them.
func (o *Driver) Withdraw(ctx context.Context) error {
	errs := []error{o.CloseIngress(ctx), o.guard.Members(0, nil)}
	for _, def := range o.List() {
		errs = append(errs, o.Close(ctx, def.Name))
	}
	return errors.Join(append(errs, o.keys.Prune())...)
}

// Stop ends the watch of other programs' rules; all else stays.
func (o *Driver) Stop() error {
	return errors.Join(o.keys.Close(), o.guard.Close(), o.ingress.Stop())
}

// SetPeers makes interfaces of other nodes reachable, each in place of the key's former peer, and
// removes the peers of the keys in drop. Two keys may have one address while a task moves. It sets
// all valid peers; the error, InvalidArgument, names the others.
func (o *Driver) SetPeers(_ context.Context, name string, set map[string]core.OverlayPeer, drop []string) error {
	v, err := o.get(name)
	if err != nil {
		return fmt.Errorf("set peers: %w", err)
	}
	defer v.done()
	list := make(map[string]vxlan.Peer, len(set))
	for key, p := range set {
		list[key] = vxlan.Peer(p)
	}
	// Set before dropping, so that an address that moves to another node is known all the time.
	return shortened(v.path.SetPeers(list), v.path.DropPeers(drop))
}

// Prune removes the peers and services of an earlier agent that were not set again. Call it
// when all are set.
func (o *Driver) Prune(_ context.Context, name string) error {
	v, err := o.get(name)
	if err != nil {
		return fmt.Errorf("prune peers: %w", err)
	}
	o.served.set(name, nil, false)
	err = v.path.Prune()
	v.done() // which pruneKeys may need
	return errors.Join(err, o.pruneKeys())
}

// pruneKeys removes the encryption state of nodes that are in no overlay. It does nothing while an
// overlay could not be adopted, because its nodes are not known.
func (o *Driver) pruneKeys() error {
	o.mu.RLock()
	known := len(o.byName)
	o.mu.RUnlock()
	if len(o.paths()) < known {
		return nil
	}
	return o.keys.Prune()
}

// SetNames sets the records of an overlay's name server: the addresses of each name, in lower
// case, and the name of each address.
func (o *Driver) SetNames(ctx context.Context, name string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error {
	v, err := o.get(name)
	if err != nil {
		return fmt.Errorf("set names: %w", err)
	}
	defer v.done()
	return o.names.SetZone(ctx, core.OverlayNetwork(name), &names.Zone{Names: byName, Owners: owners})
}

// SetServices sets the backends of each service address for the sandboxes on an overlay. It cuts
// connections to removed backends. It sets all valid services; the error, InvalidArgument, names the
// others.
func (o *Driver) SetServices(_ context.Context, name string, services []core.OverlayService) error {
	v, err := o.get(name)
	if err != nil {
		return fmt.Errorf("set services: %w", err)
	}
	defer v.done()
	list, odd := servicesOf(v.def, services)
	o.served.set(name, list, true)
	return shortened(odd...)
}

// SetKeys sets the keys of encrypted overlays, the one to send by first. They are kept in memory
// alone: after a start nothing is received from new peers until they are set.
func (o *Driver) SetKeys(_ context.Context, keys []core.OverlayKey) error {
	list := make([]vxlan.Key, len(keys))
	for i, k := range keys {
		list[i] = vxlan.Key(k)
	}
	return o.keys.SetKeys(list)
}

// SetGossip sets this node's TCP and UDP port for the gossip of overlays, and the known members. Packets of
// sandboxes to that port are dropped. Port 0 ends the restriction.
func (o *Driver) SetGossip(_ context.Context, port uint16, members []netip.Addr) error {
	return o.guard.Members(port, members)
}

// paths returns the data paths of all overlays that are open.
func (o *Driver) paths() []*vxlan.Network {
	var list []*vxlan.Network
	for _, v := range o.all() {
		v.use.RLock()
		if v.path != nil {
			list = append(list, v.path)
		}
		v.use.RUnlock()
	}
	return list
}

// OpenIngress gives the node its own interface on an overlay, from which it forwards published
// ports. It is idempotent, and replaces another one.
func (o *Driver) OpenIngress(_ context.Context, in core.Ingress) error {
	others := o.paths()
	v, err := o.get(in.Network)
	if err != nil {
		return fmt.Errorf("open ingress: %w", err)
	}
	defer v.done()
	if err := o.ingress.Open(in, v.path, v.def.Subnets, others); err != nil {
		return fmt.Errorf("open ingress on overlay %q: %w", in.Network, err)
	}
	return nil
}

// CloseIngress removes that interface and all published ports. It is idempotent.
func (o *Driver) CloseIngress(context.Context) error {
	if err := o.ingress.Close(o.paths()); err != nil {
		return fmt.Errorf("close ingress: %w", err)
	}
	return nil
}

// Publish forwards these ports of the host, and no others, to backends on the Ingress' network,
// at each of the host's addresses and on loopback. It returns the ports that a process of the
// host or a sandbox uses; the next call tries them again. FailedPrecondition without an
// Ingress.
func (o *Driver) Publish(_ context.Context, list []core.PublishedPort) ([]core.TakenPort, error) {
	taken, err := o.ingress.Publish(list)
	if err != nil {
		err = fmt.Errorf("publish ports: %w", err)
	}
	return taken, err
}
