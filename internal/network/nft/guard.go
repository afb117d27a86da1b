package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// guardTable is the name of the table of a Guard, in the inet family.
const guardTable = "longshore-overlay-guard"

// The chains and the sets of the table.
const (
	guardArrives = "arrives"
	guardOverlay = "overlay"
	guardPassed  = "passed"
	guardGossip  = "gossip"
	guardSent    = "sent"

	setNumbers = "numbers"
	setGossip  = "gossip"
)

// GuardItem is one element of a Guard's sets: a network of this node, a node that may send to it, the
// address of another node's data path, or a member of the gossip.
type GuardItem struct {
	set string
	key string
}

// Number is a network of this node, by its VXLAN id and port.
func Number(port uint16, vni uint32) GuardItem {
	return GuardItem{setNumbers, string(numberKey(nil, port, vni))}
}

// Sender is a node that may send packets of a network to this node.
func Sender(node netip.Addr, port uint16, vni uint32) GuardItem {
	return GuardItem{byFamily("senders", node), string(numberKey(node.AsSlice(), port, vni))}
}

// Receiver is the address of another node's data path.
func Receiver(node netip.Addr, port uint16) GuardItem {
	return GuardItem{byFamily("receivers", node), string(portTo(node.AsSlice(), port))}
}

// Member is the address of a member of the gossip.
func Member(node netip.Addr) GuardItem {
	return GuardItem{byFamily("members", node), string(node.AsSlice())}
}

// GossipPort is this node's port for the gossip, for TCP and UDP.
func GossipPort(port uint16) GuardItem {
	return GuardItem{setGossip, string(binary.BigEndian.AppendUint16(nil, port))}
}

func byFamily(name string, a netip.Addr) string {
	if a.Is4() {
		return name + "4"
	}
	return name + "6"
}

// numberKey appends a port and a VXLAN id in the form of the rules' registers: 4 bytes each.
func numberKey(key []byte, port uint16, vni uint32) []byte {
	return binary.BigEndian.AppendUint32(portTo(key, port), vni<<8)
}

func portTo(key []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(key, port), 0, 0)
}

// Guard is a table that restricts the senders of traffic between nodes. It drops a packet of this node's
// overlay networks unless its source is a known node and it arrived by an interface with a route to that node.
// It drops packets that containers and programs of this machine send to the data path of other nodes, and
// packets to the gossip's port that arrive by an interface without the destination's address, unless a known
// member sent them. It is safe for concurrent use.
//
// Items are counted: an item that was added twice must be removed twice.
type Guard struct {
	namespace *os.File // nil: the caller's
	log       *slog.Logger

	mu     sync.Mutex // guards conn, built, paused, items
	conn   *nftables.Conn
	built  bool
	paused bool
	items  map[GuardItem]int
}

// NewGuard returns an empty Guard. The first change creates its table in the kernel.
func NewGuard(namespace *os.File, log *slog.Logger) *Guard {
	return &Guard{namespace: namespace, log: log, items: map[GuardItem]int{}}
}

// Close closes the netlink socket; the rules stay.
func (g *Guard) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hangUpLocked()
}

func (g *Guard) hangUpLocked() error {
	if g.conn == nil {
		return nil
	}
	err := g.conn.CloseLasting()
	g.conn = nil
	return err
}

// Pause leaves the kernel's table unchanged until Resume. The agent pauses the guard while it adopts the
// networks of an earlier process.
func (g *Guard) Pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = true
}

// Resume builds the table from the current items, in one transaction.
func (g *Guard) Resume() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused = false
	return g.rebuildLocked()
}

// Change adds and removes items.
func (g *Guard) Change(add, remove []GuardItem) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	before := len(g.items)
	var come, gone []GuardItem
	for _, i := range add {
		if g.items[i]++; g.items[i] == 1 {
			come = append(come, i)
		}
	}
	for _, i := range remove {
		switch g.items[i] {
		case 0:
		case 1:
			delete(g.items, i)
			gone = append(gone, i)
		default:
			g.items[i]--
		}
	}
	// An item in both lists stays.
	both := func(list []GuardItem) func(GuardItem) bool {
		return func(i GuardItem) bool { return slices.Contains(list, i) }
	}
	if len(come) > 0 && len(gone) > 0 {
		come, gone = slices.DeleteFunc(slices.Clone(come), both(gone)), slices.DeleteFunc(gone, both(come))
	}
	switch {
	case g.paused || len(come)+len(gone) == 0:
		return nil
	case !g.built || before == 0 || len(g.items) == 0:
		return g.rebuildLocked()
	}
	c, err := g.dialLocked()
	if err != nil {
		return err
	}
	sets := newGuardSets()
	if err = errors.Join(sets.each(gone, c.SetDeleteElements), sets.each(come, c.SetAddElements)); err == nil {
		err = c.Flush()
	}
	if err == nil {
		return nil
	}
	g.log.Warn("another program changed our nftables table; rebuilding it", "table", guardTable, "error", err.Error())
	return errors.Join(g.hangUpLocked(), g.rebuildLocked())
}

func (g *Guard) dialLocked() (*nftables.Conn, error) {
	if g.conn != nil {
		return g.conn, nil
	}
	opts := []nftables.ConnOption{nftables.AsLasting(), nftables.WithSockOptions(bigBuffers)}
	if g.namespace != nil {
		opts = append(opts, nftables.WithNetNSFd(int(g.namespace.Fd())))
	}
	c, err := nftables.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	g.conn = c
	return c, nil
}

// rebuildLocked builds the table in one transaction. Without items it removes the table.
func (g *Guard) rebuildLocked() error {
	if weaken.Off(weaken.OverlaySenders) {
		return nil
	}
	c, err := g.dialLocked()
	if err != nil {
		return err
	}
	sets := newGuardSets()
	if len(g.items) == 0 && absent(c, sets.table) {
		g.built = true
		return nil
	}
	c.AddTable(sets.table)
	c.DelTable(sets.table)
	if len(g.items) > 0 {
		c.AddTable(sets.table)
		for _, name := range slices.Sorted(maps.Keys(sets.byName)) {
			if err := addSet(c, sets.byName[name], nil); err != nil {
				return fmt.Errorf("build table %s: %w", guardTable, err)
			}
		}
		for _, r := range sets.rules() {
			c.AddChain(r.chain)
			for _, exprs := range r.rules {
				c.AddRule(&nftables.Rule{Table: sets.table, Chain: r.chain, Exprs: exprs})
			}
		}
		if err := sets.each(slices.Collect(maps.Keys(g.items)), c.SetAddElements); err != nil {
			return fmt.Errorf("build table %s: %w", guardTable, err)
		}
	}
	if err := c.Flush(); err != nil {
		g.built = false
		return errors.Join(fmt.Errorf("build table %s: %w", guardTable, err), g.hangUpLocked())
	}
	g.built = true
	return nil
}

// Check compares the kernel's table with the items. Its error, FailedPrecondition, names the first difference.
func (g *Guard) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.built || g.paused || len(g.items) == 0 {
		return nil
	}
	c, err := g.dialLocked()
	if err != nil {
		return err
	}
	sets := newGuardSets()
	if err := checkChains(c, sets.table, sets.rules()); err != nil {
		return err
	}
	want := map[string]map[string]string{}
	for i := range g.items {
		if want[i.set] == nil {
			want[i.set] = map[string]string{}
		}
		want[i.set][i.key] = ""
	}
	for name, set := range sets.byName {
		if err := checkElements(c, set, want[name]); err != nil {
			return err
		}
	}
	return nil
}

// Mend rebuilds the table if Check finds a difference, and returns the difference.
func (g *Guard) Mend() (changed string, err error) {
	is := g.Check()
	if is == nil {
		return "", nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return is.Error(), g.rebuildLocked()
}

// guardSets are the table's sets.
type guardSets struct {
	table  *nftables.Table
	byName map[string]*nftables.Set
}

func newGuardSets() guardSets {
	s := guardSets{&nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}, map[string]*nftables.Set{}}
	// Sets have no type for the 24 bits of a VXLAN id. They show it as a mark.
	port, vni := nftables.TypeInetService, nftables.TypeMark
	mk := func(name string, key ...nftables.SetDatatype) {
		s.byName[name] = &nftables.Set{Table: s.table, Name: name, KeyType: key[0]}
		if len(key) > 1 {
			s.byName[name].Concatenation, s.byName[name].KeyType = true, nftables.MustConcatSetType(key...)
		}
	}
	mk(setNumbers, port, vni)
	mk(setGossip, port)
	for name, addr := range map[string]nftables.SetDatatype{"4": nftables.TypeIPAddr, "6": nftables.TypeIP6Addr} {
		mk("senders"+name, addr, port, vni)
		mk("receivers"+name, addr, port)
		mk("members"+name, addr)
	}
	return s
}

// each applies a change to the sets of items.
func (s guardSets) each(items []GuardItem, change func(*nftables.Set, []nftables.SetElement) error) error {
	by := map[string][]nftables.SetElement{}
	for _, i := range items {
		by[i.set] = append(by[i.set], nftables.SetElement{Key: []byte(i.key)})
	}
	for name, elems := range by {
		for chunk := range slices.Chunk(elems, maxElements) {
			if err := change(s.byName[name], chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// beforeRouting comes after the reassembly of fragments and the translation of destinations.
var beforeRouting = nftables.ChainPriorityRef(-90)

// rules returns the chains. A chain comes before the jumps to it.
func (s guardSets) rules() []chainRules {
	hooked := func(name string, hook *nftables.ChainHook) *nftables.Chain {
		return &nftables.Chain{Table: s.table, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: beforeRouting}
	}
	var overlay, passed, gossip, arrives, sent [][]expr.Any
	// Packets for this machine, and packets to be forwarded.
	here := daddrIs(expr.CmpOpNeq, unix.RTN_UNICAST, false)
	onward := daddrIs(expr.CmpOpEq, unix.RTN_UNICAST, false)
	onLink := daddrIs(expr.CmpOpEq, unix.RTN_LOCAL, true)
	for _, f := range guardFamilies() {
		overlay = append(overlay,
			seq(f.matches(), s.in("senders"+f.name, f.addr(f.source), portAt(f.next), vniAt(f.next+1)), back(), leave()),
			seq(f.matches(), s.in("senders"+f.name, f.addr(f.source), portAt(f.next), vniAt(f.next+1)), onLink, leave()))
		passed = append(passed, seq(f.matches(), s.in("receivers"+f.name, f.addr(f.source), portAt(f.next)), back(), leave()))
		gossip = append(gossip, seq(f.matches(), s.in("members"+f.name, f.addr(f.source)), back(), leave()))
		arrives = append(arrives, seq(f.matches(), l4(unix.IPPROTO_UDP), s.in("receivers"+f.name, f.addr(f.dest), portAt(f.next)), jump(guardPassed)))
		// The kernel's VXLAN packets belong to no program's socket.
		sent = append(sent, seq(f.matches(), l4(unix.IPPROTO_UDP), s.in("receivers"+f.name, f.addr(f.dest), portAt(f.next)), userSocket(), counted()))
	}
	overlay = append(overlay, seq(onward, leave()), counted())
	passed = append(passed, seq(here, leave()), counted())
	// The rule on connections also makes the kernel reassemble fragments before these chains. The first fragment of a
	// packet may end before its VXLAN id.
	gossip = append(gossip, seq(answers(), leave()),
		seq(onward, leave()), seq(onLink, leave()), seq(ifname(expr.MetaKeyIIFNAME, "lo"), leave()), counted())
	arrives = append(arrives, seq(l4(unix.IPPROTO_UDP), s.in(setNumbers, portAt(reg0), vniAt(reg1)), jump(guardOverlay)))
	for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
		arrives = append(arrives, seq(l4(proto), s.in(setGossip, portAt(reg0)), jump(guardGossip)))
	}
	return []chainRules{
		{&nftables.Chain{Table: s.table, Name: guardOverlay}, overlay},
		{&nftables.Chain{Table: s.table, Name: guardPassed}, passed},
		{&nftables.Chain{Table: s.table, Name: guardGossip}, gossip},
		{hooked(guardArrives, nftables.ChainHookPrerouting), arrives},
		{hooked(guardSent, nftables.ChainHookOutput), sent},
	}
}

// guardFamily has the offsets of a family's addresses, their length, and the first register after one.
type guardFamily struct {
	name                 string
	proto                byte
	source, dest, length uint32
	next                 uint32
}

func guardFamilies() []guardFamily {
	return []guardFamily{{"4", unix.NFPROTO_IPV4, 12, 16, 4, reg1}, {"6", unix.NFPROTO_IPV6, 8, 24, 16, reg4}}
}

func (f guardFamily) matches() []expr.Any { return family(f.proto) }

func (f guardFamily) addr(offset uint32) expr.Any { return load(reg0, offset, f.length) }

func portAt(reg uint32) expr.Any { return transport(reg, 2, 2) }

// vniAt loads the VXLAN id, behind the header of UDP and the flags of VXLAN.
func vniAt(reg uint32) expr.Any { return transport(reg, 12, 3) }

func transport(reg, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: offset, Len: length}
}

// in matches if a set has the value of the loads, which starts in reg0.
func (s guardSets) in(name string, loads ...expr.Any) []expr.Any {
	set := s.byName[name]
	return append(slices.Clone(loads), &expr.Lookup{SourceRegister: reg0, SetName: set.Name, SetID: set.ID})
}

// l4 matches the protocol.
func l4(proto byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}}}
}

// back matches packets that arrived by an interface with a route to their source.
func back() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultOIF: true, FlagSADDR: true, FlagIIF: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

// daddrIs compares the type of the destination's address. With onLink only addresses of the input interface are local.
func daddrIs(op expr.CmpOp, kind uint32, onLink bool) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true, FlagIIF: onLink},
		&expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(kind)},
	}
}

// userSocket matches packets of a program's socket in this namespace. The kernel's own sockets have no owner.
func userSocket() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: 1}}
}

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

// counted drops and counts packets.
func counted() []expr.Any { return seq([]expr.Any{&expr.Counter{}}, drop()) }
