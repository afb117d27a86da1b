package nft

import (
	"cmp"
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
)

// balanceTable is the name of a Balancer's table, in the inet family.
const balanceTable = "longshore-balance"

// The chains of a Balancer's table.
const (
	chainServices      = "services"
	chainRefuse        = "refuse"
	chainRefuseOutput  = "refuse-output"
	chainRefuseForward = "refuse-forward"
)

// Balancer forwards a network namespace's connections to services, its own and forwarded ones, to
// their backends in turn. It is safe for concurrent use.
//
// It has a table of its own in the namespace. A change is one transaction, and leaves the
// connections of those backends that stay. Its state is in memory only: the first Set after a start
// replaces the rules of an earlier process.
type Balancer struct {
	o BalancerOptions

	mu   sync.Mutex // guards have, made
	have map[serviceKey]Service
	made bool
}

// BalancerOptions are the parameters of NewBalancer.
type BalancerOptions struct {
	// Source, unless zero, is the address that backends of its family see in place of the client's.
	// Nobody else may translate addresses in the namespace then.
	Source netip.Addr
	// Ports allows services that are ports of the namespace itself. It costs a lookup for each connection.
	Ports bool
	// First says which backend gets the first connection: clients that have the same backends
	// should not all begin with the same one.
	First  uint32
	Logger *slog.Logger // nil: slog.Default
}

// NewBalancer returns a Balancer without services.
func NewBalancer(o BalancerOptions) *Balancer {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Balancer{o: o, have: map[serviceKey]Service{}}
}

// Set replaces the services. Connections to backends that are not among them any more are cut:
// the next packet of a client goes to another backend, which refuses a connection that it does
// not know. namespace nil is the caller's own.
//
// After an error the services are those before, or, when the error is that of cutting, the new
// ones. Errors are InvalidArgument for a service that cannot be.
func (b *Balancer) Set(namespace *os.File, services []Service) error {
	want, err := checkServices(services)
	if err == nil && !b.o.Ports {
		err = noPorts(want)
	}
	if err != nil {
		return fmt.Errorf("set services: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	first := !b.made
	if b.made {
		if maps.EqualFunc(b.have, want, sameService) {
			return nil
		}
		if err := b.changeLocked(namespace, want); err != nil {
			b.o.Logger.Warn("another program changed our nftables table; rebuilding it", "table", balanceTable, "error", err.Error())
			b.made = false
		}
	}
	if !b.made {
		if err := b.buildLocked(namespace, want); err != nil {
			return fmt.Errorf("set services: %w", err)
		}
		b.made = true
	}
	before := b.have
	b.have = want
	if cut := outdatedServices(before, want, first); len(cut) > 0 {
		if err := cutFlows(namespace, cut); err != nil {
			return fmt.Errorf("cut connections to backends that are gone: %w", err)
		}
	}
	return nil
}

// Withdraw removes the table. Connections of before keep their backends.
func (b *Balancer) Withdraw(namespace *os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := b.table()
	c.AddTable(table) // so that the deletion cannot fail
	c.DelTable(table)
	if err := c.Flush(); err != nil {
		return fmt.Errorf("delete table %s: %w", balanceTable, err)
	}
	b.made, b.have = false, map[serviceKey]Service{}
	return nil
}

func sameService(a, b Service) bool { return slices.Equal(a.Backends, b.Backends) }

// dialIn opens nftables in a namespace, nil for our own. The socket is open during a Flush only:
// an open one would keep the namespace.
func dialIn(namespace *os.File) (*nftables.Conn, error) {
	opts := []nftables.ConnOption{nftables.WithSockOptions(bigBuffers)}
	if namespace != nil {
		opts = append(opts, nftables.WithNetNSFd(int(namespace.Fd())))
	}
	c, err := nftables.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, nil
}

// dialOnce opens a connection for one transaction in a namespace. hangUp closes it behind the caller's back: before that the kernel
// frees the objects of earlier transactions, which takes milliseconds.
func dialOnce(namespace *os.File) (c *nftables.Conn, hangUp func(), err error) {
	c, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(bigBuffers), nftables.WithNetNSFd(int(namespace.Fd())))
	if err != nil {
		return nil, nil, fmt.Errorf("open nftables: %w", err)
	}
	return c, func() { go func() { _ = c.CloseLasting() }() }, nil
}

func (b *Balancer) table() *nftables.Table {
	return &nftables.Table{Name: balanceTable, Family: nftables.TableFamilyINet}
}

// balanceSets are the maps from a service to its chain, the set of services' own addresses, and
// that of backends, each with itself, which may reach themselves through a port of the machine.
type balanceSets struct{ vips, ports, addrs, selves [2]*nftables.Set }

// The index in balanceSets' arrays.
const (
	four = 0
	six  = 1
)

func familyOf(is4 bool) int {
	if is4 {
		return four
	}
	return six
}

func newBalanceSets(table *nftables.Table) (s balanceSets) {
	for i, addr := range []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr} {
		n := []string{"4", "6"}[i]
		s.vips[i] = &nftables.Set{Table: table, Name: "vips" + n, IsMap: true, KeyType: addr, DataType: nftables.TypeVerdict}
		s.ports[i] = &nftables.Set{
			Table: table, Name: "ports" + n, IsMap: true, Concatenation: true, DataType: nftables.TypeVerdict,
			KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService),
		}
		s.addrs[i] = &nftables.Set{Table: table, Name: "addrs" + n, KeyType: addr}
	}
	s.selves[four], s.selves[six] = selfSets(table)
	return s
}

// element is that of a service in the map to its chain, and in addrs.
func (s balanceSets) element(k serviceKey) (in *nftables.Set, e nftables.SetElement) {
	verdict := &expr.Verdict{Kind: expr.VerdictJump, Chain: k.chain()}
	if k.addr.IsValid() {
		return s.vips[familyOf(k.is4)], nftables.SetElement{Key: k.addr.AsSlice(), VerdictData: verdict}
	}
	key := Forward{Proto: k.proto, Port: k.port, Target: netip.AddrPortFrom(netip.IPv4Unspecified(), 0)}.element().Key
	return s.ports[familyOf(k.is4)], nftables.SetElement{Key: key, VerdictData: verdict}
}

// buildLocked replaces the whole table in one transaction, so that there is no moment without it.
func (b *Balancer) buildLocked(namespace *os.File, want map[serviceKey]Service) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := b.table()
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	sets := newBalanceSets(table)
	for _, set := range slices.Concat(sets.vips[:], sets.ports[:], sets.addrs[:], sets.selves[:]) {
		if err := addSet(c, set, nil); err != nil {
			return fmt.Errorf("build table %s: %w", balanceTable, err)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(want), compareKeys) {
		if err := b.add(c, sets, want[k]); err != nil {
			return err
		}
	}
	for _, r := range b.rules(table, sets) {
		c.AddChain(r.chain)
		for _, exprs := range r.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: r.chain, Exprs: exprs})
		}
	}
	if err := changeSelves(c, sets, nil, want); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("build table %s: %w", balanceTable, err)
	}
	return nil
}

// changeLocked changes only the services that differ, so that the turns of the others continue.
func (b *Balancer) changeLocked(namespace *os.File, want map[serviceKey]Service) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := b.table()
	sets := newBalanceSets(table)
	for _, k := range slices.SortedFunc(maps.Keys(b.have), compareKeys) {
		if _, stays := want[k]; stays {
			continue
		}
		in, e := sets.element(k)
		errs := []error{c.SetDeleteElements(in, []nftables.SetElement{e})}
		if k.addr.IsValid() {
			errs = append(errs, c.SetDeleteElements(sets.addrs[familyOf(k.is4)], []nftables.SetElement{{Key: k.addr.AsSlice()}}))
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		chain := &nftables.Chain{Table: table, Name: k.chain()}
		c.FlushChain(chain)
		c.DelChain(chain)
	}
	for _, k := range slices.SortedFunc(maps.Keys(want), compareKeys) {
		old, there := b.have[k]
		switch {
		case !there:
			err = b.add(c, sets, want[k])
		case !sameService(old, want[k]):
			c.FlushChain(&nftables.Chain{Table: table, Name: k.chain()})
			err = b.publish(c, table, want[k])
		}
		if err != nil {
			return err
		}
	}
	if err := changeSelves(c, sets, b.have, want); err != nil {
		return err
	}
	return c.Flush()
}

// add queues a service that is not there yet.
func (b *Balancer) add(c *nftables.Conn, sets balanceSets, s Service) error {
	k, table := s.key(), b.table()
	c.AddChain(&nftables.Chain{Table: table, Name: k.chain()})
	if err := b.publish(c, table, s); err != nil {
		return err
	}
	in, e := sets.element(k)
	if err := c.SetAddElements(in, []nftables.SetElement{e}); err != nil {
		return err
	}
	if !k.addr.IsValid() {
		return nil
	}
	return c.SetAddElements(sets.addrs[familyOf(k.is4)], []nftables.SetElement{{Key: k.addr.AsSlice()}})
}

// publish queues the rule that gives each connection a backend in turn: its number counts, and a map
// of numbers has the backends.
func (b *Balancer) publish(c *nftables.Conn, table *nftables.Table, s Service) error {
	list := s.taking(b.o.First)
	if len(list) == 0 {
		return nil
	}
	k := s.key()
	addr, fam, portReg := nftables.TypeIPAddr, uint32(unix.NFPROTO_IPV4), uint32(reg1)
	if !k.is4 {
		addr, fam, portReg = nftables.TypeIP6Addr, unix.NFPROTO_IPV6, reg4
	}
	turns := &nftables.Set{Table: table, Anonymous: true, Constant: true, IsMap: true, KeyType: nftables.TypeInteger, DataType: addr}
	turns.KeyType.Bytes = 4
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: fam, RegAddrMin: reg0}
	if !k.addr.IsValid() {
		turns.DataType = nftables.MustConcatSetType(addr, nftables.TypeInetService)
		nat.RegProtoMin = portReg
	}
	elems := k.turns(list)
	if err := addSet(c, turns, elems[:min(len(elems), maxElements)]); err != nil {
		return err
	}
	for chunk := range slices.Chunk(elems[min(len(elems), maxElements):], maxElements) {
		if err := c.SetAddElements(turns, chunk); err != nil {
			return err
		}
	}
	c.AddRule(&nftables.Rule{Table: table, Chain: &nftables.Chain{Table: table, Name: k.chain()}, Exprs: []expr.Any{
		&expr.Numgen{Register: reg0, Modulus: uint32(len(list)), Type: unix.NFT_NG_INCREMENTAL},
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: turns.Name, SetID: turns.ID},
		nat,
	}})
	return nil
}

// turns has each backend behind its number.
func (k serviceKey) turns(list []Backend) (elems []nftables.SetElement) {
	for i, to := range list {
		e := nftables.SetElement{Key: binaryutil.NativeEndian.PutUint32(uint32(i)), Val: to.Addr.AsSlice()}
		if !k.addr.IsValid() {
			e.Val = append(e.Val, binaryutil.BigEndian.PutUint16(cmp.Or(to.Port, k.port))...)
			e.Val = append(e.Val, 0, 0)
		}
		elems = append(elems, e)
	}
	return elems
}

// selvesOf are the backends behind ports of the machine.
func selvesOf(services map[serviceKey]Service) map[netip.Addr]bool {
	addrs := map[netip.Addr]bool{}
	for k, s := range services {
		for _, b := range s.Backends {
			if !k.addr.IsValid() {
				addrs[b.Addr] = true
			}
		}
	}
	return addrs
}

// changeSelves queues the change of the backends that may reach themselves.
func changeSelves(c *nftables.Conn, sets balanceSets, before, after map[serviceKey]Service) error {
	had, has := selvesOf(before), selvesOf(after)
	change := func(from, less map[netip.Addr]bool, apply func(*nftables.Set, []nftables.SetElement) error) error {
		for _, a := range slices.SortedFunc(maps.Keys(from), netip.Addr.Compare) {
			if less[a] {
				continue
			}
			if err := apply(sets.selves[familyOf(a.Is4())], []nftables.SetElement{{Key: append(a.AsSlice(), a.AsSlice()...)}}); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(change(had, has, c.SetDeleteElements), change(has, had, c.SetAddElements))
}

// rules returns the chains that do not depend on the services, those that are jumped to first.
func (b *Balancer) rules(table *nftables.Table, sets balanceSets) []chainRules {
	base := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority) *nftables.Chain {
		return &nftables.Chain{Table: table, Name: name, Type: typ, Hooknum: hook, Priority: prio}
	}
	jump := func(set *nftables.Set) []expr.Any {
		return []expr.Any{&expr.Lookup{SourceRegister: reg0, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: set.Name, SetID: set.ID}}
	}
	local := []expr.Any{
		&expr.Fib{Register: 1, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
	}
	// IPv6 cannot route ::1 out of the machine.
	notLoopback6 := []expr.Any{load(1, 24, 16), &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: netip.IPv6Loopback().AsSlice()}}
	toServices := []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chainServices}}
	services := [][]expr.Any{
		seq(family(unix.NFPROTO_IPV4), []expr.Any{load(reg0, 16, 4)}, jump(sets.vips[four])),
		seq(family(unix.NFPROTO_IPV6), []expr.Any{load(reg0, 24, 16)}, jump(sets.vips[six])),
	}
	if b.o.Ports {
		services = append(services,
			seq(family(unix.NFPROTO_IPV4), local, anyKey(), jump(sets.ports[four])),
			seq(family(unix.NFPROTO_IPV6), local, notLoopback6, anyKey(), jump(sets.ports[six])))
	}
	// Each packet passes these: one look for it.
	refuse := [][]expr.Any{
		seq(family(unix.NFPROTO_IPV4), inSet(sets.addrs[four], 16, false), []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chainRefuse}}),
		seq(family(unix.NFPROTO_IPV6), inSet(sets.addrs[six], 24, false), []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chainRefuse}}),
	}
	tcp := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}}}
	return []chainRules{
		{&nftables.Chain{Table: table, Name: chainServices}, services},
		{&nftables.Chain{Table: table, Name: chainRefuse}, [][]expr.Any{
			seq(tcp, []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
			{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}},
		}},
		{base(chainPrerouting, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest), [][]expr.Any{toServices}},
		{base(chainOutput, nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest), [][]expr.Any{toServices}},
		{base(chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource), b.sources(sets)},
		// A packet that still has a service's address as its destination has no backend.
		{base(chainRefuseOutput, nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityFilter), refuse},
		{base(chainRefuseForward, nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter), refuse},
	}
}

// sources translates the source of connections that must be answered through us.
func (b *Balancer) sources(sets balanceSets) [][]expr.Any {
	rules := [][]expr.Any{
		seq(family(unix.NFPROTO_IPV4), []expr.Any{load(reg0, 12, 4), load(reg1, 16, 4), &expr.Lookup{SourceRegister: reg0, SetName: sets.selves[four].Name, SetID: sets.selves[four].ID}}, masquerade()),
		seq(family(unix.NFPROTO_IPV6), []expr.Any{load(reg0, 8, 16), load(reg4, 24, 16), &expr.Lookup{SourceRegister: reg0, SetName: sets.selves[six].Name, SetID: sets.selves[six].ID}}, masquerade()),
	}
	if !b.o.Ports {
		rules = nil // not needed: no client is a backend
	}
	if !b.o.Source.IsValid() {
		return rules
	}
	fam := uint32(unix.NFPROTO_IPV6)
	if b.o.Source.Is4() {
		fam = unix.NFPROTO_IPV4
	}
	return [][]expr.Any{seq(family(byte(fam)), dnatted(), []expr.Any{
		&expr.Immediate{Register: reg0, Data: b.o.Source.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: fam, RegAddrMin: reg0},
	})}
}
