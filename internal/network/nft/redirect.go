package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// redirectTable is the name of the table in a sandbox's own namespace.
const redirectTable = "longshore-names"

// Redirect redirects packets of a network namespace to port 53 of addr, UDP and TCP, to other ports
// of the same address. A second call replaces the first.
func Redirect(namespace *os.File, addr netip.Addr, udp, tcp uint16) error {
	c, hangUp, err := dialOnce(namespace)
	if err != nil {
		return err
	}
	defer hangUp()
	table := &nftables.Table{Name: redirectTable, Family: nftables.TableFamilyIPv4}
	if !absent(c, table) {
		c.AddTable(table)
		c.DelTable(table)
	}
	c.AddTable(table)
	chain := c.AddChain(&nftables.Chain{
		Table: table, Name: chainOutput, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	for proto, port := range map[byte]uint16{unix.IPPROTO_UDP: udp, unix.IPPROTO_TCP: tcp} {
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: seq(
			[]expr.Any{
				load(1, 16, 4),
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: addr.AsSlice()},
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
				&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binary.BigEndian.AppendUint16(nil, 53)},
				// The kernel's redirect would use 127.0.0.1, where the sandbox may listen.
				&expr.Immediate{Register: 1, Data: addr.AsSlice()},
				&expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(port)},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2},
			})})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("make table %s: %w", redirectTable, err)
	}
	return nil
}
