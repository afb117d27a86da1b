package nft

import (
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// exposeTable is the name of the table of Expose, in the inet family, in a sandbox's own namespace.
const exposeTable = "longshore-exposed"

// The chains and sets of Expose.
const (
	chainClosed = "closed"
	setExposed  = "exposed"
)

// Exposed is a port at which others reach a sandbox, and the one at which its program listens.
type Exposed struct {
	Proto     uint8
	Published uint16
	Target    uint16
}

// Expose restricts one address of a namespace to published ports, and redirects each to its target
// port. Other packets to that address are dropped, except answers to the sandbox's own connections.
// Its other addresses are not affected. A second call replaces the first, also for another address.
func Expose(namespace *os.File, addr netip.Addr, ports []Exposed) error {
	if err := checkExposed(addr, ports); err != nil {
		return fmt.Errorf("expose ports: %w", err)
	}
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: exposeTable, Family: nftables.TableFamilyINet}
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	maps := portMaps(table)
	targets, open := maps.any4, &nftables.Set{
		Table: table, Name: setExposed, Concatenation: true, KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
	}
	fam, offset := uint32(unix.NFPROTO_IPV4), uint32(16)
	if addr.Is6() {
		targets, fam, offset = maps.any6, unix.NFPROTO_IPV6, 24
	}
	var to, keys []nftables.SetElement
	for _, p := range ports {
		e := Forward{Proto: p.Proto, Port: p.Published, Target: netip.AddrPortFrom(addr, p.Target)}.element()
		to = append(to, nftables.SetElement{Key: e.Key, Val: e.Val})
		keys = append(keys, nftables.SetElement{Key: e.Key})
	}
	for _, filled := range []struct {
		set   *nftables.Set
		elems []nftables.SetElement
	}{{targets, to}, {open, keys}} {
		if err := addSet(c, filled.set, nil); err != nil {
			return fmt.Errorf("build table %s: %w", exposeTable, err)
		}
		for chunk := range slices.Chunk(filled.elems, maxElements) {
			if err := c.SetAddElements(filled.set, chunk); err != nil {
				return fmt.Errorf("build table %s: %w", exposeTable, err)
			}
		}
	}
	ours := seq(family(byte(fam)), []expr.Any{load(1, offset, uint32(len(addr.AsSlice()))), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr.AsSlice()}})
	for _, r := range []chainRules{
		// After conntrack, which recognizes answers, and before the ports are translated.
		{&nftables.Chain{Table: table, Name: chainClosed, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle}, [][]expr.Any{
			seq(ifname(expr.MetaKeyIIFNAME, "lo"), leave()),
			seq(ours, answers(), leave()),
			seq(ours, neighbours(), leave()),
			seq(ours, anyKey(), []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: open.Name, SetID: open.ID}}, leave()),
			seq(ours, []expr.Any{&expr.Counter{}}, drop()),
		}},
		{&nftables.Chain{Table: table, Name: chainPrerouting, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest}, [][]expr.Any{
			seq(ours, anyKey(), dnat(targets, fam)),
		}},
	} {
		c.AddChain(r.chain)
		for _, exprs := range r.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: r.chain, Exprs: exprs})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("build table %s: %w", exposeTable, err)
	}
	return nil
}

// Conceal reverts Expose: all ports of all addresses are open. It is idempotent.
func Conceal(namespace *os.File) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: exposeTable, Family: nftables.TableFamilyINet}
	c.AddTable(table) // so that the deletion cannot fail
	c.DelTable(table)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete table %s: %w", exposeTable, err)
	}
	return nil
}

// neighbours matches IPv6's neighbour discovery, which belongs to no connection: types 133 to 137
// of ICMPv6.
func neighbours() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_ICMPV6}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		&expr.Cmp{Op: expr.CmpOpGte, Register: 1, Data: []byte{133}},
		&expr.Cmp{Op: expr.CmpOpLte, Register: 1, Data: []byte{137}},
	}
}

// answers matches packets of connections that there are, and errors about them.
func answers() []expr.Any {
	states := binaryutil.NativeEndian.PutUint32(expr.CtStateBitESTABLISHED | expr.CtStateBitRELATED)
	zero := binaryutil.NativeEndian.PutUint32(0)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: states, Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}

// checkExposed returns InvalidArgument if an argument is not valid.
func checkExposed(addr netip.Addr, ports []Exposed) error {
	if !routable(addr) {
		return fmt.Errorf("address %s is none that a host may have: %w", addr, errdefs.ErrInvalidArgument)
	}
	seen := map[Exposed]bool{}
	for _, p := range ports {
		one := Exposed{Proto: p.Proto, Published: p.Published}
		switch {
		case p.Published == 0 || p.Target == 0:
			return fmt.Errorf("port %d to %d: a port is zero: %w", p.Published, p.Target, errdefs.ErrInvalidArgument)
		case !slices.Contains([]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}, p.Proto):
			return fmt.Errorf("port %d: protocol %d has no ports: %w", p.Published, p.Proto, errdefs.ErrInvalidArgument)
		case seen[one]:
			return fmt.Errorf("port %d is there twice: %w", p.Published, errdefs.ErrInvalidArgument)
		}
		seen[one] = true
	}
	return nil
}
