package nft

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Check returns FailedPrecondition with the first difference between the namespace's table and the
// last Set, which another program has made.
func (b *Balancer) Check(namespace *os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.made {
		return nil
	}
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := b.table()
	sets := newBalanceSets(table)
	if err := checkChains(c, table, b.rules(table, sets)); err != nil {
		return err
	}
	keys := map[*nftables.Set]map[string]string{}
	for _, s := range slices.Concat(sets.vips[:], sets.ports[:], sets.addrs[:], sets.selves[:]) {
		keys[s] = map[string]string{}
	}
	for k := range b.have {
		in, e := sets.element(k)
		keys[in][string(e.Key)] = ""
		if k.addr.IsValid() {
			keys[sets.addrs[familyOf(k.is4)]][string(k.addr.AsSlice())] = ""
		}
	}
	for a := range selvesOf(b.have) {
		keys[sets.selves[familyOf(a.Is4())]][string(append(a.AsSlice(), a.AsSlice()...))] = ""
	}
	for s, want := range keys {
		if err := checkElements(c, s, want); err != nil {
			return err
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(b.have), compareKeys) {
		if err := b.checkTurnsLocked(c, table, b.have[k]); err != nil {
			return err
		}
	}
	return nil
}

// checkTurnsLocked checks that a service's chain leads to its backends. Preconditions: mu is held.
func (b *Balancer) checkTurnsLocked(c *nftables.Conn, table *nftables.Table, s Service) error {
	k, list := s.key(), s.taking(b.o.First)
	chain := &nftables.Chain{Table: table, Name: k.chain()}
	rules, err := rulesOf(c, chain)
	if err != nil {
		return err
	}
	if len(list) == 0 && len(rules) == 0 {
		return nil
	}
	if len(list) > 0 && len(rules) == 1 {
		want := map[string]string{}
		for _, e := range k.turns(list) {
			want[string(e.Key)] = string(e.Val)
		}
		for _, e := range rules[0].Exprs {
			if l, is := e.(*expr.Lookup); is {
				return checkElements(c, &nftables.Set{Table: table, Name: l.SetName}, want)
			}
		}
	}
	return changed(table, "%s does not lead to its %d backends", s, len(list))
}

// changed is the error for a table that another program has changed.
func changed(table *nftables.Table, format string, args ...any) error {
	return fmt.Errorf("table %s: "+format+": %w", append(append([]any{table.Name}, args...), errdefs.ErrFailedPrecondition)...)
}

// rulesOf lists the rules of a chain; one that the kernel does not have has none.
func rulesOf(c *nftables.Conn, chain *nftables.Chain) ([]*nftables.Rule, error) {
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return nil, fmt.Errorf("list rules of chain %s: %w", chain.Name, err)
	}
	return rules, nil
}

// checkChains checks that a table exists and that its chains have the right number of rules.
func checkChains(c *nftables.Conn, table *nftables.Table, want []chainRules) error {
	tables, err := c.ListTablesOfFamily(table.Family)
	if err != nil {
		return fmt.Errorf("list tables: %w", err)
	}
	if !slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == table.Name }) {
		return changed(table, "it is gone")
	}
	for _, w := range want {
		rules, err := rulesOf(c, w.chain)
		if err != nil {
			return err
		}
		if len(rules) != len(w.rules) {
			return changed(table, "chain %s has %d rules instead of %d", w.chain.Name, len(rules), len(w.rules))
		}
	}
	return nil
}

// checkElements checks that a set or map has these elements and no others. A value "" is any.
func checkElements(c *nftables.Conn, s *nftables.Set, want map[string]string) error {
	elems, err := c.GetSetElements(s)
	if err != nil { // the library hides which error it is when there is no such set
		return changed(s.Table, "list set %s: %v", s.Name, err)
	}
	same := len(elems) == len(want)
	for _, e := range elems {
		val, there := want[string(e.Key)]
		same = same && there && (val == "" || val == string(e.Val))
	}
	if !same {
		return changed(s.Table, "set %s has other elements than the %d that it was given", s.Name, len(want))
	}
	return nil
}
