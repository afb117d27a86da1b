package nft

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Withdraw removes our table, and our accept rules in others' chains, from the kernel. A Wall
// that watches must be closed before, or it puts them back.
func (t *Table) Withdraw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.dialLocked()
	if err != nil {
		return err
	}
	chains, err := c.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	var errs []error
	for _, chain := range chains {
		if forwards(chain) {
			errs = append(errs, t.closeChain(c, chain))
		}
	}
	table := t.kernelTable()
	c.AddTable(table) // so that the deletion cannot fail
	c.DelTable(table)
	if err := c.Flush(); err != nil {
		errs = append(errs, fmt.Errorf("delete table %s: %w", t.name, err))
	}
	t.built = false
	t.fwds = map[slot]Forward{}
	return errors.Join(append(errs, closeLegacy(t.bridge), t.hangUpLocked())...)
}

// closeChain removes our accept rules from somebody else's chain.
func (t *Table) closeChain(c *nftables.Conn, chain *nftables.Chain) error {
	rules, err := c.GetRules(chain.Table, chain)
	if err != nil {
		return fmt.Errorf("list rules of %s: %w", chain.Name, err)
	}
	for _, r := range rules {
		if _, ours := acceptOf(r.Exprs, t.bridge); ours {
			r.Table, r.Chain = chain.Table, chain
			if err := c.DelRule(r); err != nil {
				return err
			}
		}
	}
	if err := c.Flush(); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove our rules from chain %s of table %s: %w", chain.Name, chain.Table.Name, err)
	}
	return nil
}

// closeLegacy does the same in the old filter.
func closeLegacy(bridge string) error {
	if !legacyInUse() {
		return nil
	}
	list, err := iptablesLegacy("-S", "FORWARD")
	if err != nil {
		return nil //nolint:nilerr // without the program we have added nothing there
	}
	for _, flag := range []string{"-i", "-o"} {
		if strings.Contains(string(list), "-A FORWARD "+flag+" "+bridge+" -j ACCEPT\n") {
			if _, err := iptablesLegacy("-D", "FORWARD", flag, bridge, "-j", "ACCEPT"); err != nil {
				return err
			}
		}
	}
	return nil
}
