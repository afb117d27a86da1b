package nft

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// bigBuffers makes room for the acknowledgements of a large transaction.
func bigBuffers(c *netlink.Conn) error {
	const bytes = 4 << 20
	if err := c.SetReadBuffer(bytes); err != nil {
		return err
	}
	return c.SetWriteBuffer(bytes)
}

func (t *Table) kernelTable() *nftables.Table {
	return &nftables.Table{Name: t.name, Family: nftables.TableFamilyINet}
}

// The 4-byte registers for building a concatenation.
const (
	reg0 = unix.NFT_REG32_00
	reg1 = unix.NFT_REG32_01
	reg4 = unix.NFT_REG32_04
	reg5 = unix.NFT_REG32_05
)

// sets are the four maps from a host port to a sandbox's port.
type sets struct{ any4, any6, host4, host6 *nftables.Set }

func (s sets) of(f Forward) *nftables.Set {
	switch is4 := f.Target.Addr().Is4(); {
	case is4 && !f.HostIP.IsValid():
		return s.any4
	case is4:
		return s.host4
	case !f.HostIP.IsValid():
		return s.any6
	default:
		return s.host6
	}
}

func portMaps(table *nftables.Table) sets {
	proto, port := nftables.TypeInetProto, nftables.TypeInetService
	mk := func(name string, addr nftables.SetDatatype, key ...nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{
			Table: table, Name: name, IsMap: true, Concatenation: true,
			KeyType: nftables.MustConcatSetType(key...), DataType: nftables.MustConcatSetType(addr, port),
		}
	}
	ip4, ip6 := nftables.TypeIPAddr, nftables.TypeIP6Addr
	return sets{
		any4:  mk("ports4", ip4, proto, port),
		any6:  mk("ports6", ip6, proto, port),
		host4: mk("hostports4", ip4, ip4, proto, port),
		host6: mk("hostports6", ip6, ip6, proto, port),
	}
}

// element encodes a forward. Every part of a concatenation fills whole 4-byte registers.
func (f Forward) element() nftables.SetElement {
	var key []byte
	if f.HostIP.IsValid() {
		key = append(key, f.HostIP.AsSlice()...)
	}
	key = append(key, f.Proto, 0, 0, 0)
	key = append(binary.BigEndian.AppendUint16(key, f.Port), 0, 0)
	val := f.Target.Addr().AsSlice()
	val = append(binary.BigEndian.AppendUint16(val, f.Target.Port()), 0, 0)
	return nftables.SetElement{Key: key, Val: val, Comment: string(f.Sandbox)}
}

// forwardOf decodes an element for every address of the host.
func forwardOf(e nftables.SetElement) (Forward, bool) {
	n := len(e.Val) - 4
	if len(e.Key) != 8 || n != 4 && n != 16 {
		return Forward{}, false
	}
	addr, _ := netip.AddrFromSlice(e.Val[:n])
	return Forward{
		Proto: e.Key[0], Port: binary.BigEndian.Uint16(e.Key[4:]), Target: netip.AddrPortFrom(addr, binary.BigEndian.Uint16(e.Val[n:])),
	}, true
}

// The chains of our table.
const (
	chainGuard       = "guard"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPorts       = "ports"
	chainPostrouting = "postrouting"
	chainIsolation   = "isolation"
	chainEntry       = "entry"
)

// selfSets returns the sets that hold pairs of an address with itself.
func selfSets(table *nftables.Table) (self4, self6 *nftables.Set) {
	mk := func(name string, addr nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, Concatenation: true, KeyType: nftables.MustConcatSetType(addr, addr)}
	}
	return mk("selves4", nftables.TypeIPAddr), mk("selves6", nftables.TypeIP6Addr)
}

// numbering is held while a set gets its number: the library counts the sets of all connections without a
// lock, and two sets of one transaction with the same number would be taken for each other.
var numbering sync.Mutex // guards the library's counter

// addSet queues a set.
func addSet(c *nftables.Conn, set *nftables.Set, elems []nftables.SetElement) error {
	numbering.Lock()
	defer numbering.Unlock()
	return c.AddSet(set, elems)
}

// layout queues everything but the ports. Preconditions: mu is held.
func (t *Table) layout(c *nftables.Conn, table *nftables.Table) error {
	maps := portMaps(table)
	for _, s := range []*nftables.Set{maps.any4, maps.any6, maps.host4, maps.host6} {
		if err := addSet(c, s, nil); err != nil {
			return err
		}
	}
	interval := func(name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: table, Name: name, Interval: true, KeyType: key}
	}
	a := addrSets{
		nets4: interval("nets4", nftables.TypeIPAddr), nets6: interval("nets6", nftables.TypeIP6Addr),
		plain4: interval("plain4", nftables.TypeIPAddr), plain6: interval("plain6", nftables.TypeIP6Addr),
	}
	a.self4, a.self6 = selfSets(table)
	for _, of := range []struct {
		nets      []netip.Prefix
		four, six *nftables.Set
	}{{t.nets, a.nets4, a.nets6}, {t.plain.Nets, a.plain4, a.plain6}, {nil, a.self4, a.self6}} {
		if err := addSet(c, of.four, intervals(of.nets, true)); err != nil {
			return err
		}
		if err := addSet(c, of.six, intervals(of.nets, false)); err != nil {
			return err
		}
	}
	for _, r := range t.rules(table, maps, a) {
		c.AddChain(r.chain)
		for _, exprs := range r.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: r.chain, Exprs: exprs})
		}
	}
	return nil
}

// addrSets are the sets of addresses: the sandboxes' networks, the ranges without masquerading,
// and the sandboxes that may reach themselves through a port of the host.
type addrSets struct{ nets4, nets6, plain4, plain6, self4, self6 *nftables.Set }

// chainRules is one chain with its rules, in order.
type chainRules struct {
	chain *nftables.Chain
	rules [][]expr.Any
}

// rules returns the whole rule set, with chains that are jumped to first. Preconditions: mu is
// held.
func (t *Table) rules(table *nftables.Table, maps sets, a addrSets) []chainRules {
	base := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return &nftables.Chain{Table: table, Name: name, Type: typ, Hooknum: hook, Priority: prio}
	}
	toPorts := seq(
		// fib daddr type local: only packets to this host
		[]expr.Any{
			&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
			&expr.Verdict{Kind: expr.VerdictJump, Chain: chainPorts},
		})
	// Packets to a host port that came over loopback, or from a sandbox to itself, must be
	// answered through us.
	post := [][]expr.Any{
		seq(family(unix.NFPROTO_IPV4), ifname(expr.MetaKeyOIFNAME, t.bridge), source(netip.MustParsePrefix("127.0.0.0/8")), masquerade()),
		seq(family(unix.NFPROTO_IPV4), []expr.Any{load(reg0, 12, 4), load(reg1, 16, 4), &expr.Lookup{SourceRegister: reg0, SetName: a.self4.Name, SetID: a.self4.ID}}, masquerade()),
		seq(family(unix.NFPROTO_IPV6), []expr.Any{load(reg0, 8, 16), load(reg4, 24, 16), &expr.Lookup{SourceRegister: reg0, SetName: a.self6.Name, SetID: a.self6.ID}}, masquerade()),
	}
	plain := [][]expr.Any{
		seq(family(unix.NFPROTO_IPV4), inSet(a.plain4, 12, false), inSet(a.plain4, 16, false), leave()),
		seq(family(unix.NFPROTO_IPV6), inSet(a.plain6, 8, false), inSet(a.plain6, 24, false), leave()),
	}
	// So must packets from one sandbox to another, where these rules do not see the bridge's
	// traffic.
	translated := [][]expr.Any{
		seq(family(unix.NFPROTO_IPV4), inSet(a.nets4, 12, false), inSet(a.nets4, 16, false), dnatted(), masquerade()),
		seq(family(unix.NFPROTO_IPV6), inSet(a.nets6, 8, false), inSet(a.nets6, 24, false), dnatted(), masquerade()),
	}
	if t.plain.Bridged {
		post = slices.Concat(post, plain, translated)
	} else {
		post = slices.Concat(post, translated, plain)
	}
	if t.masquerade {
		post = append(post,
			seq(family(unix.NFPROTO_IPV4), inSet(a.nets4, 12, false), inSet(a.nets4, 16, true), masquerade()),
			seq(family(unix.NFPROTO_IPV6), inSet(a.nets6, 8, false), inSet(a.nets6, 24, true), masquerade()))
	}
	list := []chainRules{
		{&nftables.Chain{Table: table, Name: chainPorts}, [][]expr.Any{
			// A forward for one address takes precedence over one for every address.
			seq(family(unix.NFPROTO_IPV4), hostKey4(), dnat(maps.host4, unix.NFPROTO_IPV4)),
			seq(family(unix.NFPROTO_IPV4), anyKey(), dnat(maps.any4, unix.NFPROTO_IPV4)),
			seq(family(unix.NFPROTO_IPV6), hostKey6(), dnat(maps.host6, unix.NFPROTO_IPV6)),
			seq(family(unix.NFPROTO_IPV6), anyKey(), dnat(maps.any6, unix.NFPROTO_IPV6)),
		}},
		// route_localnet makes host ports work on 127.0.0.1; sandboxes must not reach the host's
		// loopback through it.
		{base(chainGuard, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw), [][]expr.Any{
			seq(family(unix.NFPROTO_IPV4), ifname(expr.MetaKeyIIFNAME, t.bridge), dest(netip.MustParsePrefix("127.0.0.0/8")), drop()),
			seq(family(unix.NFPROTO_IPV4), ifname(expr.MetaKeyIIFNAME, t.bridge), source(netip.MustParsePrefix("127.0.0.0/8")), drop()),
		}},
		// The output chain has translated the host's own packets to its loopback. A packet for 127.0.0.1 from a link
		// comes from a neighbour, which must not reach these ports: the kernel drops it, unless it is translated
		// here.
		{base(chainPrerouting, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest), [][]expr.Any{
			seq(family(unix.NFPROTO_IPV4), dest(netip.MustParsePrefix("127.0.0.0/8")), leave()),
			toPorts,
		}},
		// ::1 cannot be routed (IPv6 has no route_localnet). Without a rule for it, a client that
		// tries localhost is refused at once and continues with 127.0.0.1.
		{base(chainOutput, nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest), [][]expr.Any{
			seq(family(unix.NFPROTO_IPV6), []expr.Any{
				load(1, 24, 16),
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: netip.IPv6Loopback().AsSlice()},
				&expr.Verdict{Kind: expr.VerdictReturn},
			}),
			toPorts,
		}},
		{base(chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource), post},
	}
	if rules := t.isolation(); len(rules) > 0 {
		list = append(list, chainRules{base(chainIsolation, nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter), rules})
	}
	if t.entry { // packets from it for the host itself
		list = append(list, chainRules{base(chainEntry, nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter), [][]expr.Any{
			seq(ifname(expr.MetaKeyIIFNAME, t.bridge), answers(), leave()),
			seq(ifname(expr.MetaKeyIIFNAME, t.bridge), neighbours(), leave()),
			seq(ifname(expr.MetaKeyIIFNAME, t.bridge), drop()),
		}})
	}
	return list
}

// isolation drops packets that are forwarded between this bridge and Others or OtherGroup, except
// those of published ports, and if it is Isolated, all from port to port. It drops all packets that enter or leave an internal bridge, and on an Entry all
// but those of published ports and their answers.
func (t *Table) isolation() (rules [][]expr.Any) {
	if t.entry {
		return [][]expr.Any{
			seq(ifname(expr.MetaKeyOIFNAME, t.bridge), dnatted(), leave()),
			seq(ifname(expr.MetaKeyOIFNAME, t.bridge), drop()),
			seq(ifname(expr.MetaKeyIIFNAME, t.bridge), answers(), leave()),
			seq(ifname(expr.MetaKeyIIFNAME, t.bridge), drop()),
		}
	}
	within := seq(ifname(expr.MetaKeyIIFNAME, t.bridge), ifname(expr.MetaKeyOIFNAME, t.bridge))
	if t.internal {
		if !t.isolated {
			rules = append(rules, seq(within, leave()))
		}
		return append(rules, seq(ifname(expr.MetaKeyIIFNAME, t.bridge), drop()), seq(ifname(expr.MetaKeyOIFNAME, t.bridge), drop()))
	}
	if len(t.others) == 0 {
		return nil
	}
	if t.isolated {
		rules = append(rules, seq(within, drop()), seq(dnatted(), leave()))
	} else {
		rules = append(rules, seq(within, leave()), seq(dnatted(), leave()))
	}
	if t.otherGroup != 0 {
		rules = append(rules,
			seq(ifname(expr.MetaKeyIIFNAME, t.bridge), ifgroup(expr.MetaKeyOIFGROUP, t.otherGroup), drop()),
			seq(ifname(expr.MetaKeyOIFNAME, t.bridge), ifgroup(expr.MetaKeyIIFGROUP, t.otherGroup), drop()))
	}
	for _, other := range t.others {
		rules = append(rules,
			seq(ifname(expr.MetaKeyIIFNAME, t.bridge), ifprefix(expr.MetaKeyOIFNAME, other), drop()),
			seq(ifname(expr.MetaKeyOIFNAME, t.bridge), ifprefix(expr.MetaKeyIIFNAME, other), drop()))
	}
	return rules
}

func seq(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func family(proto byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
	}
}

// ifname matches the whole name: 16 bytes, as nft and iptables write it.
func ifname(key expr.MetaKey, name string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: ifnameData(name)}}
}

// ifprefix matches names that begin so.
func ifprefix(key expr.MetaKey, prefix string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte(prefix)}}
}

// ifgroup matches the links of a group.
func ifgroup(key expr.MetaKey, group uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(group)}}
}

func ifnameData(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// leave returns from the chain.
func leave() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func masquerade() []expr.Any { return []expr.Any{&expr.Masq{}} }

// ctStatusDNAT is IPS_DST_NAT of the kernel's conntrack status.
const ctStatusDNAT = 1 << 5

func dnatted() []expr.Any {
	zero := binaryutil.NativeEndian.PutUint32(0)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(ctStatusDNAT), Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}

// load loads length bytes of the IP header at offset.
func load(reg, offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func addrLen(s *nftables.Set) uint32 { return s.KeyType.Bytes }

func inSet(s *nftables.Set, offset uint32, invert bool) []expr.Any {
	return []expr.Any{
		load(1, offset, addrLen(s)),
		&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID, Invert: invert},
	}
}

func source(p netip.Prefix) []expr.Any { return addrIn(p, 12) }
func dest(p netip.Prefix) []expr.Any   { return addrIn(p, 16) }

// addrIn matches an IPv4 address of the header against a prefix of whole bytes.
func addrIn(p netip.Prefix, offset uint32) []expr.Any {
	n := uint32(p.Bits() / 8)
	return []expr.Any{load(1, offset, n), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Addr().AsSlice()[:n]}}
}

// anyKey builds proto . port; hostKey4 and hostKey6 prepend the address.
func anyKey() []expr.Any { return portKey(reg0, reg1) }

func hostKey4() []expr.Any {
	return append([]expr.Any{load(reg0, 16, 4)}, portKey(reg1, unix.NFT_REG32_02)...)
}
func hostKey6() []expr.Any { return append([]expr.Any{load(reg0, 24, 16)}, portKey(reg4, reg5)...) }

func portKey(proto, port uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		// TCP, UDP and SCTP have the destination port in the same place.
		&expr.Payload{DestRegister: port, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// dnat looks up the key that starts in reg0 and translates to addr . port; a miss ends the rule.
func dnat(s *nftables.Set, fam uint32) []expr.Any {
	portReg := uint32(reg1)
	if fam == unix.NFPROTO_IPV6 {
		portReg = reg4
	}
	return []expr.Any{
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: s.Name, SetID: s.ID},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: fam, RegAddrMin: reg0, RegProtoMin: portReg},
	}
}

// intervals encodes prefixes of one family as the half-open intervals of a set.
func intervals(nets []netip.Prefix, is4 bool) []nftables.SetElement {
	var elems []nftables.SetElement
	for _, p := range nets {
		if p.Addr().Is4() != is4 {
			continue
		}
		elems = append(elems, nftables.SetElement{Key: p.Addr().AsSlice()})
		// An interval that reaches the end of the address space has no end element.
		if end := after(p); end.IsValid() {
			elems = append(elems, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elems
}

// after returns the first address after p, or an invalid one at the end of the address space.
func after(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a.Next()
}
