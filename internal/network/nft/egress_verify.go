package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/weaken"
)

// egressVerify is the chain of Verify.
const egressVerify = "verify"

// Verify redirects the connections to names that egress.VerifySNI is about to ports of addresses of the
// namespace's loopback, one of each family; a port of 0 leaves
// those of its family refused. Without the table of Restrict it does nothing. It replaces the redirections of an earlier call. Packets with
// egress.Mark pass.
func Verify(namespace *os.File, list *egress.List, at [2]netip.Addr, ports [2]uint16) error {
	if weaken.Off(weaken.EgressVerify) {
		return nil
	}
	c, hangUp, err := dialOnce(namespace)
	if err != nil {
		return err
	}
	defer hangUp()
	b := egressBuild{Egress: Egress{List: list}, c: c, table: &nftables.Table{Name: egress.Table, Family: nftables.TableFamilyINet}}
	if absent(c, b.table) {
		return nil
	}
	base := c.AddChain(&nftables.Chain{
		Table: b.table, Name: egressVerify, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityNATDest,
	})
	c.FlushChain(base)
	for _, exprs := range b.redirections(at, ports) {
		c.AddRule(&nftables.Rule{Table: b.table, Chain: base, Exprs: exprs})
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("redirect connections that are verified: %w", err)
	}
	return nil
}

// redirections returns the rules of the chain. A connection that an entry without a name permits is not redirected.
func (b egressBuild) redirections(at [2]netip.Addr, ports [2]uint16) (rules [][]expr.Any) {
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	rules = append(rules, seq(ifname(expr.MetaKeyOIFNAME, "lo"), accept), seq(marked(expr.CmpOpEq), accept))
	families, offsets := [2]byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6}, [2]uint32{16, 24}
	tcp := func(f int, port uint16) []expr.Any {
		return seq(family(families[f]), l4proto(unix.IPPROTO_TCP), portIn(egress.Ports{First: port, Last: port}))
	}
	var named [][]expr.Any
	for i, s := range b.List.Services {
		for _, port := range []uint16{egress.HTTPS, egress.HTTP} {
			if !s.Has(egress.TCP, port) {
				continue
			}
			of := func(match func(egress.Entry) bool) bool {
				return slices.ContainsFunc(b.List.Entries, func(e egress.Entry) bool { return e.Service.Equal(s) && match(e) })
			}
			nets := of(func(e egress.Entry) bool { return e.Net.IsValid() || e.Preset == egress.Cluster })
			internet := of(func(e egress.Entry) bool { return e.Preset == egress.Internet })
			for f := range families {
				if nets {
					rules = append(rules, seq(tcp(f, port), inSet(setOf(netsOf(i), f), offsets[f], false), accept))
				}
				if internet {
					rules = append(rules, seq(tcp(f, port), inSet(setOf("special", f), offsets[f], true), accept))
				}
				if b.hasNames(i) && ports[f] > 0 {
					named = append(named, seq(tcp(f, port), inSet(b.nameSets(i)[f], offsets[f], false), redirect(families[f], at[f], ports[f])))
				}
			}
		}
	}
	return append(rules, named...)
}

// netsOf returns the name of the sets with the ranges of a service, without the number of the family.
func netsOf(service int) string { return "nets-" + strconv.Itoa(service) + "-" }

// setOf returns a set of nets that the kernel has.
func setOf(name string, f int) *nftables.Set {
	return &nftables.Set{Name: name + []string{"4", "6"}[f], KeyType: []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr}[f]}
}

// redirect changes the destination of a connection.
func redirect(family byte, addr netip.Addr, port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: addr.AsSlice()},
		&expr.Immediate{Register: 2, Data: binary.BigEndian.AppendUint16(nil, port)},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(family), RegAddrMin: 1, RegProtoMin: 2},
	}
}

// toLoopback matches packets to addresses of the loopback.
func toLoopback(verdict []expr.Any) [][]expr.Any {
	one := netip.IPv6Loopback()
	return [][]expr.Any{
		seq(family(unix.NFPROTO_IPV4), []expr.Any{load(1, 16, 1), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{127}}}, verdict),
		seq(family(unix.NFPROTO_IPV6), []expr.Any{load(1, 24, 16), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: one.AsSlice()}}, verdict),
	}
}

// marked matches packets with egress.Mark, or with CmpOpNeq those without.
func marked(op expr.CmpOp) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Cmp{Op: op, Register: 1, Data: binaryutil.NativeEndian.PutUint32(egress.Mark)}}
}

// verified returns the chain that accepts the addresses of names of a service under egress.VerifySNI.
func (b egressBuild) verified(i int, s egress.Service) chainRules {
	r := chainRules{chain: &nftables.Chain{Table: b.table, Name: "named-" + strconv.Itoa(i)}}
	for _, port := range []uint16{egress.HTTPS, egress.HTTP} {
		r.rules = append(r.rules, seq(l4proto(unix.IPPROTO_TCP), portIn(egress.Ports{First: port, Last: port}), marked(expr.CmpOpNeq), leave()))
	}
	if s.Proto != egress.UDP {
		r.rules = append(r.rules, seq(l4proto(unix.IPPROTO_UDP), portIn(egress.Ports{First: egress.HTTPS, Last: egress.HTTPS}), leave()))
	}
	for f, proto := range []byte{unix.NFPROTO_IPV4, unix.NFPROTO_IPV6} {
		set := inSet(b.nameSets(i)[f], []uint32{16, 24}[f], false)
		r.rules = append(r.rules,
			// The process that verifies them reports them.
			seq(family(proto), marked(expr.CmpOpEq), set, []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}),
			seq(family(proto), set, []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: egressOpen}}))
	}
	return r
}
