package nft

import (
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// gateTable is the name of the table of Gate, in the inet family.
const gateTable = "longshore-gate"

// Gate closes a namespace that forwards ports of the machine to a network. From outer to inner it
// passes only packets that a Balancer sends to a backend; from inner it passes only answers.
func Gate(namespace *os.File, outer, inner string) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: gateTable, Family: nftables.TableFamilyINet}
	c.AddTable(table)
	c.DelTable(table)
	c.AddTable(table)
	for _, r := range gateRules(table, outer, inner) {
		c.AddChain(r.chain)
		for _, exprs := range r.rules {
			c.AddRule(&nftables.Rule{Table: table, Chain: r.chain, Exprs: exprs})
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("build table %s: %w", gateTable, err)
	}
	return nil
}

// CheckGate returns FailedPrecondition with the missing part of a Gate.
func CheckGate(namespace *os.File, outer, inner string) error {
	c, err := dialIn(namespace)
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: gateTable, Family: nftables.TableFamilyINet}
	return checkChains(c, table, gateRules(table, outer, inner))
}

func gateRules(table *nftables.Table, outer, inner string) []chainRules {
	from, to := expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME
	return []chainRules{
		// After conntrack, which recognizes answers, and before the Balancer.
		{&nftables.Chain{Table: table, Name: chainClosed, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle}, [][]expr.Any{
			seq(ifname(from, inner), answers(), leave()),
			seq(ifname(from, inner), neighbours(), leave()),
			seq(ifname(from, inner), []expr.Any{&expr.Counter{}}, drop()),
		}},
		{&nftables.Chain{Table: table, Name: chainEntry, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter}, [][]expr.Any{
			seq(ifname(from, outer), ifname(to, inner), dnatted(), leave()),
			seq(ifname(from, inner), ifname(to, outer), answers(), leave()),
			seq([]expr.Any{&expr.Counter{}}, drop()),
		}},
		// The kernel refuses packets without a backend. Otherwise it sends only requests for
		// neighbours to the network, which are ARP or have no connection.
		{&nftables.Chain{Table: table, Name: chainOutput, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter}, [][]expr.Any{
			seq(ifname(to, inner), neighbours(), leave()),
			seq(ifname(to, inner), answers(), leave()),
			seq(ifname(to, inner), drop()),
		}},
	}
}
