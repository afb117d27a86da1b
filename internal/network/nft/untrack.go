package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// untrackTable is the name of the table of Untrack, in the inet family, in the namespace that sends
// the packets of networks over several nodes.
const untrackTable = "longshore-untracked"

// Untrack has the kernel not remember, as connections, the packets that others send by UDP to these
// addresses and ports of the machine, and those that it sends from the addresses to the ports at
// others: of these and of no others any more. VXLAN's packets have no answers, and for each
// connection within them a source port of its own at either end: each would cost two entries,
// translated by nobody, that last for half a minute. No rule of a firewall that asks for a
// connection's state as new matches them.
func Untrack(list []netip.AddrPort) error {
	c, err := dialIn(nil)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: untrackTable, Family: nftables.TableFamilyINet}
	if len(list) == 0 && absent(c, table) {
		return nil
	}
	c.AddTable(table)
	c.DelTable(table)
	if len(list) > 0 {
		c.AddTable(table)
		for _, r := range untrackRules(table, list) {
			c.AddChain(r.chain)
			for _, exprs := range r.rules {
				c.AddRule(&nftables.Rule{Table: table, Chain: r.chain, Exprs: exprs})
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("build table %s: %w", untrackTable, err)
	}
	return nil
}

// absent reports whether the kernel certainly has no such table. A lookup is much faster than a
// transaction that removes nothing, because the kernel waits for packets under way at each transaction.
func absent(c *nftables.Conn, table *nftables.Table) bool {
	all, err := c.ListTablesOfFamily(table.Family)
	return err == nil && !slices.ContainsFunc(all, func(t *nftables.Table) bool { return t.Name == table.Name })
}

func untrackRules(table *nftables.Table, list []netip.AddrPort) []chainRules {
	var in, out [][]expr.Any
	for _, at := range list {
		source, dest, proto := uint32(12), uint32(16), byte(unix.NFPROTO_IPV4)
		if at.Addr().Is6() {
			source, dest, proto = 8, 24, unix.NFPROTO_IPV6
		}
		in = append(in, seq(family(proto), udpTo(at, dest), []expr.Any{&expr.Notrack{}}))
		out = append(out, seq(family(proto), udpTo(at, source), []expr.Any{&expr.Notrack{}}))
	}
	return []chainRules{
		{&nftables.Chain{Table: table, Name: chainPrerouting, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw}, in},
		{&nftables.Chain{Table: table, Name: chainOutput, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRaw}, out},
	}
}

// udpTo matches UDP to a port, with an address where the IP header has it at offset.
func udpTo(at netip.AddrPort, offset uint32) []expr.Any {
	addr := at.Addr().AsSlice()
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_UDP}},
		load(1, offset, uint32(len(addr))), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, at.Port())},
	}
}
