package nft

import (
	"encoding/binary"
	"errors"
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

// The chains of the table.
const (
	egressOut    = "out"
	egressOpen   = "open"
	egressRefuse = "refuse"
)

// egressPriority puts the rules behind translations of destinations, and behind the rules of other programs.
var egressPriority = nftables.ChainPriorityRef(10)

// Egress is the content of the table of Restrict.
type Egress struct {
	List    *egress.List
	Cluster []netip.Prefix // the addresses of the preset cluster
	// Learn opens everything and reports it.
	Learn bool
	// Unverified makes CutEgress end the connections to names that egress.VerifySNI is about: it was not in the list before.
	Unverified bool
}

// Restrict makes a namespace refuse new outbound connections that the list does not permit, but for those over its
// loopback. Answers to inbound connections pass. It replaces the rules of an earlier call; the addresses of names are
// empty then. Programs without CAP_NET_ADMIN and CAP_NET_RAW in the namespace cannot evade the rules.
func Restrict(namespace *os.File, e Egress) error {
	if weaken.Off(weaken.EgressRules) {
		e.Learn = true
	}
	if weaken.Off(weaken.EgressVerify) {
		open := *e.List
		open.Verify, e.List = false, &open
	}
	err := restrict(namespace, e, true)
	if errors.Is(err, unix.ENOENT) { // the kernel has no nfnetlink_log
		err = restrict(namespace, e, false)
	}
	return err
}

func restrict(namespace *os.File, e Egress, logs bool) error {
	c, hangUp, err := dialOnce(namespace)
	if err != nil {
		return err
	}
	defer hangUp()
	table := &nftables.Table{Name: egress.Table, Family: nftables.TableFamilyINet}
	if !absent(c, table) {
		c.AddTable(table)
		c.DelTable(table)
	}
	b := egressBuild{Egress: e, c: c, table: c.AddTable(table), logs: logs}
	if err := b.layout(); err != nil {
		return fmt.Errorf("build table %s: %w", egress.Table, err)
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("build table %s: %w", egress.Table, err)
	}
	return nil
}

// Unrestrict removes the rules of Restrict.
func Unrestrict(namespace *os.File) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: egress.Table, Family: nftables.TableFamilyINet}
	c.AddTable(table)
	c.DelTable(table)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove table %s: %w", egress.Table, err)
	}
	return nil
}

// egressBuild builds the table.
type egressBuild struct {
	Egress
	c     *nftables.Conn
	table *nftables.Table
	logs  bool
}

// layout queues sets, chains and rules.
func (b egressBuild) layout() error {
	var special [2]*nftables.Set
	var err error
	if slices.ContainsFunc(b.List.Entries, func(e egress.Entry) bool { return e.Preset == egress.Internet }) {
		if special, err = b.nets("special", egress.Special()); err != nil {
			return err
		}
	}
	metadata, err := b.nets("metadata", b.List.Closed())
	if err != nil {
		return err
	}
	b.add(chainRules{&nftables.Chain{Table: b.table, Name: egressOpen}, append(b.report(egress.Opened), []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})})
	for _, r := range b.services(special, &err) {
		b.add(r)
	}
	if err != nil {
		return err
	}
	b.add(chainRules{&nftables.Chain{Table: b.table, Name: egressRefuse}, slices.Concat([][]expr.Any{{&expr.Counter{}}}, b.report(egress.Refused), [][]expr.Any{
		seq(l4proto(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED}},
	})})
	policy := nftables.ChainPolicyDrop
	b.add(chainRules{
		&nftables.Chain{Table: b.table, Name: egressOut, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: egressPriority, Policy: &policy},
		b.out(metadata),
	})
	return nil
}

func (b egressBuild) add(r chainRules) {
	b.c.AddChain(r.chain)
	for _, exprs := range r.rules {
		b.c.AddRule(&nftables.Rule{Table: b.table, Chain: r.chain, Exprs: exprs})
	}
}

// nets queues two sets of ranges, one of each family.
func (b egressBuild) nets(name string, list []netip.Prefix) (sets [2]*nftables.Set, err error) {
	list = disjoint(list)
	for i, key := range []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr} {
		sets[i] = &nftables.Set{Table: b.table, Name: name + []string{"4", "6"}[i], Interval: true, KeyType: key}
		if err := addSet(b.c, sets[i], nil); err != nil {
			return sets, err
		}
		for chunk := range slices.Chunk(intervals(list, i == 0), maxElements) {
			if err := b.c.SetAddElements(sets[i], chunk); err != nil {
				return sets, err
			}
		}
	}
	return sets, nil
}

// disjoint removes ranges that lie in others.
func disjoint(list []netip.Prefix) []netip.Prefix {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		if d := a.Addr().Compare(b.Addr()); d != 0 {
			return d
		}
		return a.Bits() - b.Bits()
	})
	var kept []netip.Prefix
	for _, p := range list {
		if n := len(kept); n == 0 || !kept[n-1].Overlaps(p) { // of two that overlap, the first has the second
			kept = append(kept, p)
		}
	}
	return kept
}

// services returns a chain for each service, which accepts its destinations.
func (b egressBuild) services(special [2]*nftables.Set, err *error) (list []chainRules) {
	for i, s := range b.List.Services {
		r := chainRules{chain: b.service(i)}
		var nets []netip.Prefix
		internet := false
		for _, e := range b.List.Entries {
			if !e.Service.Equal(s) {
				continue
			}
			switch {
			case e.Preset == egress.Internet:
				internet = true
			case e.Preset == egress.Cluster:
				nets = append(nets, b.Cluster...)
			case e.Net.IsValid():
				nets = append(nets, e.Net)
			}
		}
		opened := []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: egressOpen}}
		to := func(sets [2]*nftables.Set, invert bool) {
			r.rules = append(r.rules, seq(family(unix.NFPROTO_IPV4), inSet(sets[0], 16, invert), opened), seq(family(unix.NFPROTO_IPV6), inSet(sets[1], 24, invert), opened))
		}
		if b.hasNames(i) {
			sets := b.nameSets(i)
			for _, set := range sets {
				*err = errors.Join(*err, addSet(b.c, set, nil))
			}
			if b.List.Verify {
				named := b.verified(i, s)
				list = append(list, named)
				r.rules = append(r.rules, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: named.chain.Name}})
			} else {
				to(sets, false)
			}
		}
		if len(nets) > 0 {
			sets, e := b.nets(netsOf(i), nets)
			*err = errors.Join(*err, e)
			to(sets, false)
		}
		if internet {
			to(special, true)
		}
		list = append(list, r)
	}
	return list
}

// hasNames reports whether an entry with a name has a service.
func (b egressBuild) hasNames(service int) bool {
	return slices.ContainsFunc(b.List.Entries, func(e egress.Entry) bool { return e.Name != "" && e.Service.Equal(b.List.Services[service]) })
}

func (b egressBuild) nameSets(service int) (sets [2]*nftables.Set) {
	for i, key := range []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr} {
		sets[i] = &nftables.Set{Table: b.table, Name: egress.NamesSet(service, i == 0), HasTimeout: true, KeyType: key}
	}
	return sets
}

func (b egressBuild) service(i int) *nftables.Chain {
	return &nftables.Chain{Table: b.table, Name: "service-" + strconv.Itoa(i)}
}

// report returns the rule that sends the first bytes of packets to nflog, a bounded number in a second.
func (b egressBuild) report(prefix string) [][]expr.Any {
	if !b.logs {
		return nil
	}
	return [][]expr.Any{{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: 100, Unit: expr.LimitTimeSecond, Burst: 200},
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX | 1<<unix.NFTA_LOG_SNAPLEN, Group: egress.Group, Snaplen: 64, Data: []byte(prefix)},
	}}
}

// out returns the rules of the chain that each packet of the namespace's processes passes.
func (b egressBuild) out(metadata [2]*nftables.Set) [][]expr.Any {
	accept := []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	refuse := []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: egressRefuse}}
	rules := [][]expr.Any{
		seq(ifname(expr.MetaKeyOIFNAME, "lo"), accept),
	}
	if b.List.Verify { // packets that Verify has redirected still have the interface of their first destination
		rules = append(rules, toLoopback(accept)...)
	}
	rules = append(rules,
		seq(ctState(expr.CtStateBitESTABLISHED), accept),
		seq(ctState(expr.CtStateBitINVALID), []expr.Any{&expr.Counter{}}, drop()),
		// Errors about connections that there are, from this side.
		seq(l4proto(unix.IPPROTO_ICMP), ctState(expr.CtStateBitRELATED), accept),
		seq(l4proto(unix.IPPROTO_ICMPV6), ctState(expr.CtStateBitRELATED), accept))
	// Neighbours and routers are found by ICMPv6, which the kernel sends.
	for _, r := range [][2]byte{{130, 132}, {133, 136}, {143, 143}} {
		rules = append(rules, seq(l4proto(unix.IPPROTO_ICMPV6), []expr.Any{
			transport(1, 0, 1), &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: []byte{r[0]}, ToData: []byte{r[1]}},
		}, accept))
	}
	rules = append(rules,
		seq(family(unix.NFPROTO_IPV4), inSet(metadata[0], 16, false), refuse),
		seq(family(unix.NFPROTO_IPV6), inSet(metadata[1], 24, false), refuse))
	if b.Learn {
		return append(rules, []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: egressOpen}})
	}
	// A port of DNS is open where an entry names it, not where an entry has all ports.
	for _, all := range []bool{false, true} {
		if all {
			for _, proto := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
				for _, p := range egress.DNSPorts() {
					rules = append(rules, seq(l4proto(proto), portIn(p), refuse))
				}
			}
		}
		for i, s := range b.List.Services {
			if (len(s.Ports) == 0) == all {
				rules = append(rules, toService(s, []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: b.service(i).Name}})...)
			}
		}
	}
	return append(rules, refuse)
}

// toService returns rules that execute a verdict for the packets of a service.
func toService(s egress.Service, verdict []expr.Any) (rules [][]expr.Any) {
	protos := []byte{s.Proto}
	if s.Proto == 0 {
		protos = []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP}
	}
	if s.Proto != egress.ICMP {
		for _, proto := range protos {
			if len(s.Ports) == 0 {
				rules = append(rules, seq(l4proto(proto), verdict))
			}
			for _, p := range s.Ports {
				rules = append(rules, seq(l4proto(proto), portIn(p), verdict))
			}
		}
	}
	if s.Has(egress.ICMP, 0) {
		const echo4, echo6 = 8, 128
		rules = append(rules, seq(l4proto(unix.IPPROTO_ICMP), icmpType(echo4), verdict), seq(l4proto(unix.IPPROTO_ICMPV6), icmpType(echo6), verdict))
	}
	return rules
}

func l4proto(proto byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{proto}}}
}

// icmpType matches the type of a packet of ICMP.
func icmpType(value byte) []expr.Any {
	return []expr.Any{transport(1, 0, 1), &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{value}}}
}

// portIn matches the port of the destination.
func portIn(p egress.Ports) []expr.Any {
	return []expr.Any{
		transport(1, 2, 2), &expr.Range{Op: expr.CmpOpEq, Register: 1, FromData: binary.BigEndian.AppendUint16(nil, p.First), ToData: binary.BigEndian.AppendUint16(nil, p.Last)},
	}
}

func ctState(bits uint32) []expr.Any {
	zero := binaryutil.NativeEndian.PutUint32(0)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: zero},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: zero},
	}
}

// CheckEgress returns FailedPrecondition if another program has changed the chain of Restrict that refuses.
func CheckEgress(namespace *os.File, e Egress) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	b := egressBuild{Egress: e, c: c, table: &nftables.Table{Name: egress.Table, Family: nftables.TableFamilyINet}, logs: true}
	none := [2]*nftables.Set{{KeyType: nftables.TypeIPAddr}, {KeyType: nftables.TypeIP6Addr}}
	return checkChains(c, b.table, []chainRules{{&nftables.Chain{Table: b.table, Name: egressOut}, b.out(none)}})
}
