package enginetest

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// fault lets a test make a port fail.
type fault struct {
	mu   sync.Mutex // guards fail
	fail func(call string) error
}

// Fail sets a function that is called before each call of the port: its error is the call's
// error. nil removes it.
func (f *fault) Fail(fn func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fn
}

func (f *fault) check(ctx context.Context, call string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	fn := f.fail
	f.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(call)
}

// FirstChosenPort is the first of the host ports that a Network chooses from.
const FirstChosenPort = 61000

// Network is a fake core.Network, with addresses in order and exclusive ports.
type Network struct {
	fault
	lock   sync.Mutex // guards held, stats, ranges
	held   map[core.ID]core.NetworkStatus
	stats  map[core.ID][]core.NetStats
	ranges []netip.Prefix
}

var _ core.Network = (*Network)(nil)

func newNetwork() *Network {
	return &Network{held: map[core.ID]core.NetworkStatus{}, stats: map[core.ID][]core.NetStats{}, ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
}

// Setup leases the first free address.
func (n *Network) Setup(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if err := n.check(ctx, "Setup"); err != nil {
		return core.NetworkStatus{}, err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	switch {
	case req.Namespace == "":
		return core.NetworkStatus{Mode: "host"}, nil
	case req.Config.Name == core.NetworkNone:
		return core.NetworkStatus{Mode: core.NetworkNone}, nil
	case req.Config.Name != "" && req.Config.Name != "default":
		return core.NetworkStatus{}, fmt.Errorf("setup network %s: %w", req.Config.Name, errdefs.ErrNotFound)
	}
	if st, ok := n.held[req.Sandbox]; ok {
		return st, nil
	}
	if err := n.freePorts(req.Config.Ports); err != nil {
		return core.NetworkStatus{}, err
	}
	addr, err := n.freeAddr()
	if err != nil {
		return core.NetworkStatus{}, err
	}
	st := core.NetworkStatus{Mode: "builtin", Addrs: []netip.Addr{addr}, Ports: n.choosePorts(req.Config.Ports)}
	n.held[req.Sandbox] = st
	return st, nil
}

// freePorts returns an error when one of ports is in use. Preconditions: lock is held.
func (n *Network) freePorts(ports []core.Port) error {
	for _, p := range ports {
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Proto) {
			return fmt.Errorf("setup network: protocol %q: %w", p.Proto, errdefs.ErrInvalidArgument)
		}
		for _, st := range n.held {
			if slices.ContainsFunc(st.Ports, func(q core.Port) bool { return p.Host != 0 && p.Host == q.Host && p.Proto == q.Proto }) {
				return fmt.Errorf("setup network: host port %d is taken: %w", p.Host, errdefs.ErrFailedPrecondition)
			}
		}
	}
	return nil
}

// choosePorts returns ports with those chosen that are left to the network. Preconditions: lock is
// held.
func (n *Network) choosePorts(ports []core.Port) []core.Port {
	ports = slices.Clone(ports)
	for i, p := range ports {
		for next := uint16(FirstChosenPort); ports[i].Host == 0; next++ {
			if p.Host = next; n.freePorts([]core.Port{p}) == nil && !slices.ContainsFunc(ports, func(q core.Port) bool { return q.Host == next }) {
				ports[i] = p
			}
		}
	}
	return ports
}

// freeAddr returns a free address, but for network, gateway and broadcast. Preconditions: lock is
// held.
func (n *Network) freeAddr() (netip.Addr, error) {
	taken := map[netip.Addr]bool{}
	for _, st := range n.held {
		for _, a := range st.Addrs {
			taken[a] = true
		}
	}
	for _, r := range n.ranges {
		for a := r.Addr().Next().Next(); r.Contains(a.Next()); a = a.Next() {
			if !taken[a] {
				return a, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("setup network: no address left: %w", errdefs.ErrResourceExhausted)
}

// Check reports whether what Setup returned still exists.
func (n *Network) Check(ctx context.Context, req core.NetworkRequest) error {
	if err := n.check(ctx, "Check"); err != nil {
		return err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	if _, ok := n.held[req.Sandbox]; !ok && req.Last.Mode != "host" && req.Last.Mode != core.NetworkNone {
		return fmt.Errorf("check network: %w", errdefs.ErrNotFound)
	}
	return nil
}

// Teardown releases the address.
func (n *Network) Teardown(ctx context.Context, req core.NetworkRequest) error {
	if err := n.check(ctx, "Teardown"); err != nil {
		return err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	delete(n.held, req.Sandbox)
	return nil
}

// Info returns that the network is ready.
func (n *Network) Info(ctx context.Context) (core.NetworkInfo, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	return core.NetworkInfo{Mode: "builtin", Ready: true, Ranges: n.ranges}, n.check(ctx, "Info")
}

// SetRanges sets the ranges.
func (n *Network) SetRanges(ctx context.Context, cidrs []string) error {
	if err := n.check(ctx, "SetRanges"); err != nil {
		return err
	}
	var ranges []netip.Prefix
	for _, c := range cidrs {
		p, err := netip.ParsePrefix(c)
		if err != nil {
			return fmt.Errorf("set ranges: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		if slices.ContainsFunc(ranges, p.Overlaps) {
			return fmt.Errorf("set ranges: %s overlaps another: %w", c, errdefs.ErrInvalidArgument)
		}
		ranges = append(ranges, p.Masked())
	}
	if len(ranges) == 0 {
		return fmt.Errorf("set ranges: none: %w", errdefs.ErrInvalidArgument)
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	n.ranges = ranges
	return nil
}

// Sandboxes returns those that have an address or a port.
func (n *Network) Sandboxes(ctx context.Context) ([]core.ID, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	return slices.Sorted(maps.Keys(n.held)), n.check(ctx, "Sandboxes")
}

// SetStats sets what Stats returns for a sandbox that has an address.
func (n *Network) SetStats(sandbox core.ID, stats ...core.NetStats) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.stats[sandbox] = stats
}

// Stats returns what SetStats has set, or an eth0 without traffic.
func (n *Network) Stats(ctx context.Context, reqs []core.NetworkRequest) (map[core.ID][]core.NetStats, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	out := map[core.ID][]core.NetStats{}
	for _, req := range reqs {
		if _, ok := n.held[req.Sandbox]; !ok {
			continue
		}
		out[req.Sandbox] = []core.NetStats{{Name: "eth0"}}
		if st, ok := n.stats[req.Sandbox]; ok {
			out[req.Sandbox] = st
		}
	}
	return out, n.check(ctx, "Stats")
}

// Pinner is a fake core.Pinner, whose paths do not exist.
type Pinner struct {
	fault
	lock   sync.Mutex // guards pinned
	dir    string
	pinned map[core.ID][]specs.LinuxNamespaceType
}

var _ core.Pinner = (*Pinner)(nil)

// Pin returns a path for each kind.
func (p *Pinner) Pin(ctx context.Context, req core.PinRequest) (map[specs.LinuxNamespaceType]string, error) {
	if err := p.check(ctx, "Pin"); err != nil {
		return nil, err
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	paths := map[specs.LinuxNamespaceType]string{}
	for _, k := range req.Kinds {
		paths[k] = filepath.Join(p.dir, string(req.Sandbox), string(k))
	}
	p.pinned[req.Sandbox] = req.Kinds
	return paths, nil
}

// Unpin forgets a sandbox's paths.
func (p *Pinner) Unpin(ctx context.Context, sandbox core.ID) error {
	if err := p.check(ctx, "Unpin"); err != nil {
		return err
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	delete(p.pinned, sandbox)
	return nil
}

// Pinned returns the sandboxes.
func (p *Pinner) Pinned(ctx context.Context) ([]core.ID, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	return slices.Sorted(maps.Keys(p.pinned)), p.check(ctx, "Pinned")
}

// Reboot drops all pinned namespaces, as a boot does.
func (p *Pinner) Reboot() {
	p.lock.Lock()
	defer p.lock.Unlock()
	clear(p.pinned)
}

// Cgroups is a fake core.Cgroups.
type Cgroups struct {
	fault
	lock   sync.Mutex // guards groups, frozen, stats
	groups map[string]*specs.LinuxResources
	frozen map[string]bool
	stats  map[string]core.Stats
	killed func(path string)
}

var _ core.Cgroups = (*Cgroups)(nil)

func newCgroups() *Cgroups {
	return &Cgroups{groups: map[string]*specs.LinuxResources{}, frozen: map[string]bool{}, stats: map[string]core.Stats{}}
}

// Mode returns v2.
func (c *Cgroups) Mode() core.CgroupMode { return core.CgroupV2 }

// Place places objects below /longshore, below the cgroup above, or below the requested parent.
func (c *Cgroups) Place(parent core.Cgroup, above core.CgroupRef, name string) (core.CgroupRef, error) {
	if len(parent.Adopt) > 0 {
		return core.CgroupRef{Adopted: maps.Clone(parent.Adopt)}, nil
	}
	base := "/longshore"
	if above.Path != "" {
		base = above.Path
	}
	if parent.Parent != "" {
		base = parent.Parent
	}
	return core.CgroupRef{Path: base + "/" + name}, nil
}

// Create makes a group with limits.
func (c *Cgroups) Create(ctx context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	if err := c.check(ctx, "Create"); err != nil {
		return err
	}
	if ref.Path == "" {
		return nil
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if res == nil {
		res = &specs.LinuxResources{}
	}
	c.groups[ref.Path] = res
	return nil
}

// Update changes limits.
func (c *Cgroups) Update(ctx context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	if err := c.check(ctx, "Update"); err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if _, ok := c.groups[ref.Path]; !ok {
		return fmt.Errorf("update cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	if res != nil {
		c.groups[ref.Path] = res
	}
	return nil
}

// Resources returns the limits.
func (c *Cgroups) Resources(ctx context.Context, ref core.CgroupRef) (*specs.LinuxResources, error) {
	if err := c.check(ctx, "Resources"); err != nil {
		return nil, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.groups[ref.Path] == nil {
		return nil, fmt.Errorf("cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	return c.groups[ref.Path], nil
}

// MemoryLimit returns the memory limit.
func (c *Cgroups) MemoryLimit(ctx context.Context, ref core.CgroupRef) (uint64, error) {
	res, err := c.Resources(ctx, ref)
	if err != nil || res.Memory == nil || res.Memory.Limit == nil || *res.Memory.Limit < 0 {
		return 0, err
	}
	return uint64(*res.Memory.Limit), nil
}

// Freeze records the state.
func (c *Cgroups) Freeze(ctx context.Context, ref core.CgroupRef, frozen bool) error {
	if err := c.check(ctx, "Freeze"); err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.frozen[ref.Path] = frozen
	return nil
}

// Kill ends every process launched in or below ref.
func (c *Cgroups) Kill(ctx context.Context, ref core.CgroupRef) error {
	if err := c.check(ctx, "Kill"); err != nil {
		return err
	}
	c.killed(ref.Path)
	return nil
}

// Pids returns none.
func (c *Cgroups) Pids(ctx context.Context, _ core.CgroupRef) ([]int, error) {
	return nil, c.check(ctx, "Pids")
}

// Remove removes ref and what is below it.
func (c *Cgroups) Remove(ctx context.Context, ref core.CgroupRef) error {
	if err := c.check(ctx, "Remove"); err != nil {
		return err
	}
	if ref.Path == "" {
		return nil
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	for path := range c.groups {
		if path == ref.Path || strings.HasPrefix(path, ref.Path+"/") {
			delete(c.groups, path)
			delete(c.frozen, path)
		}
	}
	return nil
}

func (c *Cgroups) reboot() {
	c.lock.Lock()
	defer c.lock.Unlock()
	clear(c.groups)
	clear(c.frozen)
}

// SetStats sets what Stats returns.
func (c *Cgroups) SetStats(ref core.CgroupRef, s core.Stats) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.stats[ref.Path] = s
}

// Stats returns what SetStats has set.
func (c *Cgroups) Stats(ctx context.Context, ref core.CgroupRef, _ core.StatsFields) (core.Stats, error) {
	if err := c.check(ctx, "Stats"); err != nil {
		return core.Stats{}, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if ref.Path != "" && c.groups[ref.Path] == nil {
		return core.Stats{}, fmt.Errorf("stats of cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	s := c.stats[ref.Path]
	if s.At.IsZero() {
		s.At = time.Now()
	}
	return s, nil
}

// OOMLevel returns names of files that do not exist.
func (c *Cgroups) OOMLevel(ref core.CgroupRef) (level core.OOMLevel, peak string) {
	return core.OOMLevel{Path: ref.Path + "/memory.events"}, ref.Path + "/memory.peak"
}

// List returns the groups below /longshore.
func (c *Cgroups) List(ctx context.Context) ([]string, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	var list []string
	for path := range c.groups {
		if strings.HasPrefix(path, "/longshore/") {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	return list, c.check(ctx, "List")
}

// Roots is a fake core.Roots: a mount copies the image's files into the
// directory.
type Roots struct {
	fault
	lock   sync.Mutex // guards mounts
	images *Images
	mounts map[string][]core.Mount
}

var _ core.Roots = (*Roots)(nil)

// Mount copies the files.
func (r *Roots) Mount(ctx context.Context, target string, mounts []core.Mount, _ bool) error {
	if err := r.check(ctx, "Mount"); err != nil {
		return err
	}
	if _, err := os.Stat(target); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.mounts[target] = mounts
	for _, m := range mounts {
		if m.Type != "fake" {
			continue
		}
		for name, content := range r.images.content(core.ID(m.Source)) {
			path := filepath.Join(target, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// Unmount removes them.
func (r *Roots) Unmount(ctx context.Context, target string) error {
	if err := r.check(ctx, "Unmount"); err != nil {
		return err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if _, ok := r.mounts[target]; !ok {
		return nil
	}
	delete(r.mounts, target)
	entries, err := os.ReadDir(target)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(target, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Mounted returns the targets below dir.
func (r *Roots) Mounted(ctx context.Context, dir string) ([]string, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	var list []string
	for t := range r.mounts {
		if dir == "/" || strings.HasPrefix(t, dir+"/") {
			list = append(list, t)
		}
	}
	slices.Sort(list)
	return list, r.check(ctx, "Mounted")
}

// Reboot drops every mount, as a boot does.
func (r *Roots) Reboot() {
	r.lock.Lock()
	defer r.lock.Unlock()
	clear(r.mounts)
}

// OOMLog is a fake core.OOMLog. The zero value cannot read the kernel log.
type OOMLog struct {
	mu      sync.Mutex // guards victims
	victims []core.OOMVictim
}

var _ core.OOMLog = (*OOMLog)(nil)

// Report adds a line to the kernel log.
func (c *OOMLog) Report(v core.OOMVictim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.victims = append(c.victims, v)
}

// Victims returns the lines since a time.
func (c *OOMLog) Victims(_ context.Context, since time.Time) []core.OOMVictim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.victims), func(v core.OOMVictim) bool { return v.At.Before(since) })
}
