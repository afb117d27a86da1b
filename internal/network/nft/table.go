// Package nft maintains Longshore's nftables table, inet longshore, in-process: one masquerade
// rule for all addresses, host ports as elements of maps, and rules that accept the bridge's
// packets in other programs' forward chains (wall.go).
//
// It knows addresses and ports, and of sandboxes only their ID, as a comment. The intended
// content of the table is kept in memory here; the kernel's table can be rebuilt from it at any
// time (Rebuild). Start at Table.
//
// A Balancer has a table of its own, in any namespace: it leads connections to a service's address
// or port to one of several backends.
package nft

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"

	"github.com/longshore/longshore/internal/core"
)

// TableName is the name of our table, in the inet family. It begins the names of those of further
// bridges.
const TableName = "longshore"

// Forward forwards a port of the host to a sandbox.
type Forward struct {
	Proto  uint8      // IPPROTO_TCP, IPPROTO_UDP or IPPROTO_SCTP
	HostIP netip.Addr // zero: every address of the host, of Target's family
	Port   uint16
	Target netip.AddrPort
	// Sandbox is shown as the element's comment.
	Sandbox core.ID
}

// slot is a host port that can be forwarded only once.
type slot struct {
	proto uint8
	ip    netip.Addr
	is4   bool
	port  uint16
}

func (f Forward) slot() slot {
	return slot{f.Proto, f.HostIP, f.Target.Addr().Is4(), f.Port}
}

// Options are the parameters of New.
type Options struct {
	Bridge     string // the bridge interface
	Masquerade bool   // hide sandboxes behind the host's address
	// Name is that of the table when it is not TableName.
	Name string
	// Others are prefixes of names of interfaces; packets between them and this bridge are dropped.
	Others []string
	// OtherGroup is a group of links, as ip link set group makes one; packets between them and this bridge are
	// dropped. 0 is none.
	OtherGroup uint32
	// Isolated says that packets between sandboxes of this bridge are dropped.
	Isolated bool
	// Internal says that nothing is exchanged with any other interface.
	Internal bool
	// Entry says that only packets of published ports enter the interface, and only answers leave
	// it.
	Entry  bool
	Logger *slog.Logger
}

// Table is our table. It is safe for concurrent use.
type Table struct {
	name       string
	bridge     string
	masquerade bool
	others     []string
	otherGroup uint32
	isolated   bool
	internal   bool
	entry      bool
	log        *slog.Logger

	mu sync.Mutex // guards conn, built, nets, plain, fwds
	// conn stays open: closing a nftables netlink socket takes milliseconds each time, until the
	// kernel has freed the objects of earlier transactions.
	conn  *nftables.Conn
	built bool
	nets  []netip.Prefix
	plain Plain
	fwds  map[slot]Forward
}

// New returns a Table that is not in the kernel yet: SetNets creates it there.
func New(o Options) *Table {
	return &Table{
		name: cmp.Or(o.Name, TableName), bridge: o.Bridge, masquerade: o.Masquerade, others: o.Others, otherGroup: o.OtherGroup, isolated: o.Isolated,
		internal: o.Internal, entry: o.Entry, log: o.Logger, fwds: map[slot]Forward{},
	}
}

// Close closes the netlink socket; the rules stay.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.hangUpLocked()
}

func (t *Table) hangUpLocked() error {
	if t.conn == nil {
		return nil
	}
	err := t.conn.CloseLasting()
	t.conn = nil
	return err
}

func (t *Table) dialLocked() (*nftables.Conn, error) {
	if t.conn != nil {
		return t.conn, nil
	}
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(bigBuffers))
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	t.conn = c
	return c, nil
}

// SetNets sets the networks of the sandboxes, and creates the table when it does not exist yet.
func (t *Table) SetNets(nets []netip.Prefix) error {
	nets = slices.Clone(nets)
	slices.SortFunc(nets, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.built && slices.Equal(t.nets, nets) {
		return nil
	}
	t.nets = nets
	return t.rebuildLocked()
}

// Plain says which flows are not masqueraded.
type Plain struct {
	// Nets are the ranges within which nothing is masqueraded.
	Nets []netip.Prefix
	// Bridged says that our rules also see packets from port to port of the bridge. Otherwise the
	// answer to a connection between two sandboxes by an address that is translated on this host
	// would bypass the translation, and such connections must be masqueraded.
	Bridged bool
}

// SetPlain sets which flows are never masqueraded.
func (t *Table) SetPlain(p Plain) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if slices.Equal(t.plain.Nets, p.Nets) && t.plain.Bridged == p.Bridged {
		return nil
	}
	t.plain = Plain{slices.Clone(p.Nets), p.Bridged}
	if !t.built {
		return nil
	}
	return t.rebuildLocked()
}

// Replace sets all forwards at once and rebuilds the table.
func (t *Table) Replace(nets []netip.Prefix, fwds []Forward) error {
	t.mu.Lock()
	t.fwds = map[slot]Forward{}
	for _, f := range fwds {
		t.fwds[f.slot()] = f
	}
	t.built = false
	t.mu.Unlock()
	return t.SetNets(nets)
}

// Rebuild rebuilds the kernel's table from its intended content, in one transaction, so that
// there is no moment without it.
func (t *Table) Rebuild() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.rebuildLocked()
}

func (t *Table) rebuildLocked() error {
	c, err := t.dialLocked()
	if err != nil {
		return err
	}
	table := t.kernelTable()
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	if err := t.layout(c, table); err != nil {
		return fmt.Errorf("build table %s: %w", t.name, err)
	}
	all := slices.Collect(maps.Values(t.fwds))
	if err := errors.Join(t.elements(c, all, c.SetAddElements), t.selves(targets(all), c.SetAddElements)); err != nil {
		return fmt.Errorf("build table %s: %w", t.name, err)
	}
	if err := c.Flush(); err != nil {
		t.built = false
		return errors.Join(fmt.Errorf("build table %s: %w", t.name, err), t.hangUpLocked())
	}
	t.built = true
	return nil
}

// Add forwards ports, all or none of them.
func (t *Table) Add(fwds []Forward) error {
	if len(fwds) == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range fwds {
		t.fwds[f.slot()] = f
	}
	err := t.changeLocked(fwds, true)
	if err != nil {
		for _, f := range fwds {
			delete(t.fwds, f.slot())
		}
	}
	return err
}

// Remove stops forwarding. It is idempotent.
func (t *Table) Remove(fwds []Forward) error {
	if len(fwds) == 0 {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var gone []Forward
	for _, f := range fwds {
		if have, ok := t.fwds[f.slot()]; ok && have == f {
			gone = append(gone, f)
			delete(t.fwds, f.slot())
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return t.changeLocked(gone, false)
}

// changeLocked adds or deletes elements in one transaction. When the kernel's table is not as we
// left it, because someone flushed it, it is rebuilt.
func (t *Table) changeLocked(fwds []Forward, add bool) error {
	if !t.built {
		return t.rebuildLocked()
	}
	c, err := t.dialLocked()
	if err != nil {
		return err
	}
	change := c.SetDeleteElements
	if add {
		change = c.SetAddElements
	}
	addrs := targets(fwds)
	if !add { // those that keep another port stay
		for _, f := range t.fwds {
			delete(addrs, f.Target.Addr())
		}
	}
	if err = errors.Join(t.elements(c, fwds, change), t.selves(addrs, change)); err == nil {
		err = c.Flush()
	}
	if err == nil {
		return nil
	}
	t.log.Warn("another program changed our nftables table; rebuilding it", "table", t.name, "error", err.Error())
	if err := t.hangUpLocked(); err != nil {
		return err
	}
	return t.rebuildLocked()
}

// maxElements is how many elements fit into one message: its attributes have 16 bits of length.
const maxElements = 128

// elements distributes forwards to our maps and applies change to each map.
func (t *Table) elements(_ *nftables.Conn, fwds []Forward, change func(*nftables.Set, []nftables.SetElement) error) error {
	byMap := map[*nftables.Set][]nftables.SetElement{}
	sets := portMaps(t.kernelTable())
	for _, f := range fwds {
		s := sets.of(f)
		byMap[s] = append(byMap[s], f.element())
	}
	for s, elems := range byMap {
		for chunk := range slices.Chunk(elems, maxElements) {
			if err := change(s, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// targets returns the target addresses of forwards.
func targets(fwds []Forward) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for _, f := range fwds {
		addrs[f.Target.Addr()] = true
	}
	return addrs
}

// selves applies change to the sets of sandboxes that may reach themselves through a port of the
// host.
func (t *Table) selves(addrs map[netip.Addr]bool, change func(*nftables.Set, []nftables.SetElement) error) error {
	self4, self6 := selfSets(t.kernelTable())
	for a := range addrs {
		s := self6
		if a.Is4() {
			s = self4
		}
		if err := change(s, []nftables.SetElement{{Key: append(a.AsSlice(), a.AsSlice()...)}}); err != nil {
			return err
		}
	}
	return nil
}

// Missing returns those of the forwards that the kernel does not have.
func (t *Table) Missing(fwds []Forward) ([]Forward, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.dialLocked()
	if err != nil {
		return nil, err
	}
	sets := portMaps(t.kernelTable())
	have := map[*nftables.Set]map[string]string{}
	var missing []Forward
	for _, f := range fwds {
		s := sets.of(f)
		if have[s] == nil {
			elems, err := elementsIn(c, s)
			if err != nil {
				return nil, err
			}
			have[s] = map[string]string{}
			for _, e := range elems {
				have[s][string(e.Key)] = string(e.Val)
			}
		}
		e := f.element()
		if have[s][string(e.Key)] != string(e.Val) {
			missing = append(missing, f)
		}
	}
	return missing, nil
}

// Forwards returns the ports that are forwarded to a sandbox.
func (t *Table) Forwards(id core.ID) []Forward {
	t.mu.Lock()
	defer t.mu.Unlock()
	var fwds []Forward
	for _, f := range t.fwds {
		if f.Sandbox == id {
			fwds = append(fwds, f)
		}
	}
	return fwds
}

// Sandboxes returns the sandboxes that have ports forwarded.
func (t *Table) Sandboxes() []core.ID {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[core.ID]bool{}
	for _, f := range t.fwds {
		seen[f.Sandbox] = true
	}
	return slices.Collect(maps.Keys(seen))
}

// Load takes over the forwards that the kernel has of an earlier process, each as that of sandbox,
// and returns them. SetNets must come after it.
func (t *Table) Load(sandbox core.ID) ([]Forward, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.dialLocked()
	if err != nil {
		return nil, err
	}
	var list []Forward
	sets := portMaps(t.kernelTable())
	for _, s := range []*nftables.Set{sets.any4, sets.any6} {
		elems, err := elementsIn(c, s)
		if err != nil {
			return nil, err
		}
		for _, e := range elems {
			f, ok := forwardOf(e)
			if f.Sandbox = sandbox; ok {
				list = append(list, f)
			}
		}
	}
	for _, f := range list {
		t.fwds[f.slot()] = f
	}
	return list, nil
}

// elementsIn lists the elements of a map; one that the kernel does not have has none.
func elementsIn(c *nftables.Conn, s *nftables.Set) ([]nftables.SetElement, error) {
	// The library hides which error it is when there is no such map.
	tables, err := c.ListTablesOfFamily(s.Table.Family)
	if err != nil {
		return nil, fmt.Errorf("list tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == s.Table.Name }) {
		return nil, nil
	}
	elems, err := c.GetSetElements(s)
	if err != nil {
		return nil, fmt.Errorf("list map %s: %w", s.Name, err)
	}
	return elems, nil
}
