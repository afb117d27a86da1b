package nft

import (
	"fmt"
	"os"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// gateTable is the name of the table of Gate, in the inet family.
const gateTable = "longshore-gate"

// Gate closes a namespace that leads ports of the machine to a network. Only what a Balancer has
// given a backend goes in by outer and out by inner; of what comes by inner, nothing but answers
// goes anywhere.
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

// CheckGate says what is missing of a Gate. FailedPrecondition.
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
		// When the kernel knows what is an answer, and before the Balancer.
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
		// What has no backend is refused by the kernel; it sends nothing else to the network but
		// requests for neighbours, which are none of IP's or have no connection.
		{&nftables.Chain{Table: table, Name: chainOutput, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityFilter}, [][]expr.Any{
			seq(ifname(to, inner), neighbours(), leave()),
			seq(ifname(to, inner), answers(), leave()),
			seq(ifname(to, inner), drop()),
		}},
	}
}
