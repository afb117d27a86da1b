package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Wall gets the bridge's packets through other programs' forward chains. dockerd, firewalld and
// ufw drop forwarded packets that they do not know, and an accept verdict in our table does not
// overrule a drop in theirs. So Wall adds an accept rule for the bridge to the chain that would
// drop: before its first rule that drops or rejects everything, or at its end when its policy
// drops.
//
// Rules with conditions that drop some of our packets stay in force, because the administrator
// wants them. Chains in tables with nftables' owner flag cannot be changed; Trouble then returns
// advice.
type Wall struct {
	table *Table
	log   *slog.Logger

	conn   *netlink.Conn // receives changes
	wake   chan struct{}
	closed chan struct{}
	ended  sync.WaitGroup

	mu      sync.Mutex // guards rules, trouble
	rules   *nftables.Conn
	trouble string
}

// groupNFTables is NFNLGRP_NFTABLES, the multicast group of rule changes.
const groupNFTables = 7

// Watch applies the rules once, and again after every change of rules, by us or others, until
// Close.
func (t *Table) Watch() (*Wall, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (groupNFTables - 1)})
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	rules, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(bigBuffers))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch nftables: %w", err), conn.Close())
	}
	w := &Wall{table: t, log: t.log, conn: conn, rules: rules, wake: make(chan struct{}, 1), closed: make(chan struct{})}
	if err := w.Apply(); err != nil {
		// A concurrent change by another program must not keep a sandbox from starting: it is
		// tried again in the background.
		w.log.Warn("could not read other programs' nftables rules; will try again after their next change", "error", err.Error())
		w.wake <- struct{}{}
	}
	w.ended.Go(w.listen)
	w.ended.Go(w.restore)
	return w, nil
}

// Close ends the watch. Rules that were added to others' chains stay. mu is not needed: all users
// of rules have ended.
func (w *Wall) Close() error {
	close(w.closed)
	err := w.conn.Close()
	w.ended.Wait()
	return errors.Join(err, w.rules.CloseLasting())
}

// Trouble returns which chain drops the sandboxes' traffic and cannot be changed; "" when none
// does.
func (w *Wall) Trouble() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.trouble
}

// listen turns change messages into a wake-up; several become one.
func (w *Wall) listen() {
	for {
		msgs, err := w.conn.Receive()
		select {
		case <-w.closed:
			return
		default:
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			w.log.Error("cannot watch nftables any more: rules that another program removes are not restored until the agent restarts", "error", err.Error())
			return
		}
		if err == nil && !slices.ContainsFunc(msgs, structural) {
			continue
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// structural reports whether a message is about tables, chains, rules or sets, and not about
// elements, which change with every sandbox that has ports.
func structural(m netlink.Message) bool {
	if uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES {
		return false
	}
	switch uint16(m.Header.Type) & 0xff {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE, unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN,
		unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE, unix.NFT_MSG_DELSET:
		return true
	default:
		return false
	}
}

// restore applies our rules after each change, until Close.
func (w *Wall) restore() {
	for {
		select {
		case <-w.closed:
			return
		case <-w.wake:
		}
		// The usual error is that lists changed while they were read, and then another change
		// message follows.
		if err := w.Apply(); err != nil {
			w.log.Warn("could not restore our nftables rules; will try again after the next change", "error", err.Error())
		}
	}
}

// Apply restores our table and the accept rules in others' chains, if they are missing.
func (w *Wall) Apply() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	chains, err := w.rules.ListChains()
	if err != nil {
		return fmt.Errorf("list chains: %w", err)
	}
	intact, err := w.intact(chains)
	if err != nil {
		return err
	}
	if !intact {
		w.log.Warn("another program removed our nftables rules; restoring them", "table", w.table.name)
		if err := w.table.Rebuild(); err != nil {
			return err
		}
	}
	has4, has6 := w.table.families()
	var troubles []string
	for _, c := range chains {
		fits := has4 && c.Table.Family != nftables.TableFamilyIPv6 || has6 && c.Table.Family != nftables.TableFamilyIPv4
		if !fits || !forwards(c) || strings.HasPrefix(c.Table.Name, TableName) {
			continue
		}
		if err := w.open(c); err != nil && !errors.Is(err, unix.ENOENT) { // removed meanwhile
			troubles = append(troubles, err.Error())
		}
	}
	if has4 {
		if err := openLegacy(w.table.bridge); err != nil {
			troubles = append(troubles, err.Error())
		}
	}
	trouble := strings.Join(troubles, "; ")
	if trouble != "" && trouble != w.trouble {
		w.log.Warn("another program's rules drop traffic to sandboxes", "reason", trouble)
	}
	w.trouble = trouble
	return nil
}

func (t *Table) families() (has4, has6 bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.nets {
		has4 = has4 || p.Addr().Is4()
		has6 = has6 || p.Addr().Is6()
	}
	return has4, has6
}

// forwards reports whether c sees packets between interfaces.
func forwards(c *nftables.Chain) bool {
	if c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookForward || c.Type != nftables.ChainTypeFilter {
		return false
	}
	fam := c.Table.Family
	return fam == nftables.TableFamilyIPv4 || fam == nftables.TableFamilyIPv6 || fam == nftables.TableFamilyINet
}

// intact reports whether our table has all its chains and rules, or was never made. Preconditions:
// mu is held.
func (w *Wall) intact(chains []*nftables.Chain) (bool, error) {
	w.table.mu.Lock()
	built := w.table.built
	none := &nftables.Set{}
	want := map[string]int{}
	for _, r := range w.table.rules(w.table.kernelTable(), portMaps(w.table.kernelTable()), addrSets{none, none, none, none, none, none}) {
		want[r.chain.Name] = len(r.rules)
	}
	w.table.mu.Unlock()
	if !built {
		return true, nil
	}
	for _, c := range chains {
		if c.Table.Name != w.table.name || c.Table.Family != nftables.TableFamilyINet {
			continue
		}
		rules, err := w.rules.GetRules(c.Table, c)
		if err != nil {
			return false, fmt.Errorf("list rules of %s: %w", c.Name, err)
		}
		if len(rules) == want[c.Name] {
			delete(want, c.Name)
		}
	}
	if len(want) > 0 {
		return false, nil
	}
	found, err := w.rules.GetSets(w.table.kernelTable())
	if err != nil {
		return false, fmt.Errorf("list sets: %w", err)
	}
	const ours = 10
	return len(found) >= ours, nil
}

// open ensures that c lets the bridge through. Preconditions: mu is held.
func (w *Wall) open(c *nftables.Chain) error {
	rules, err := w.rules.GetRules(c.Table, c)
	if err != nil {
		return fmt.Errorf("list rules of %s: %w", c.Name, err)
	}
	end, drops := w.firstEnd(c.Table, rules, map[string]bool{c.Name: true})
	drops = drops || end == len(rules) && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop
	missing := map[expr.MetaKey]bool{expr.MetaKeyIIFNAME: drops, expr.MetaKeyOIFNAME: drops}
	changed := false
	for i, r := range rules {
		key, ours := acceptOf(r.Exprs, w.table.bridge)
		switch {
		case !ours:
		case i < end && missing[key]:
			missing[key] = false
		default: // not needed, duplicate, or after a drop
			r.Table, r.Chain = c.Table, c
			if err := w.rules.DelRule(r); err != nil {
				return err
			}
			changed = true
		}
	}
	for _, key := range []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME} {
		if !missing[key] {
			continue
		}
		rule := &nftables.Rule{Table: c.Table, Chain: c, Exprs: accept(key, w.table.bridge)}
		changed = true
		if end == len(rules) {
			w.rules.AddRule(rule)
			continue
		}
		rule.Position = rules[end].Handle
		w.rules.InsertRule(rule)
	}
	if !changed {
		return nil
	}
	if err := w.rules.Flush(); err != nil {
		what := "let interface " + w.table.bridge + " through there"
		if c.Table.Name == "firewalld" {
			what = "firewall-cmd --permanent --zone=trusted --add-interface=" + w.table.bridge + " && firewall-cmd --reload"
		}
		return fmt.Errorf("chain %s of nftables table %s drops forwarded packets and cannot be changed (%w): %s", c.Name, c.Table.Name, err, what)
	}
	w.log.Info("added rules to a forward chain that let the bridge through", "table", c.Table.Name, "chain", c.Name, "bridge", w.table.bridge, "needed", drops)
	return nil
}

// firstEnd returns the index of the first rule that ends the way of all packets through the
// chain, or len(rules); drops says how it ends. seen prevents endless recursion. Preconditions:
// mu is held.
func (w *Wall) firstEnd(table *nftables.Table, rules []*nftables.Rule, seen map[string]bool) (end int, drops bool) {
	for i, r := range rules {
		kind, chain := always(r.Exprs)
		switch kind {
		case endAccept:
			return i, false
		case endDrop:
			return i, true
		case endJump:
			if seen[chain] {
				continue
			}
			seen[chain] = true
			inner, err := w.rules.GetRules(table, &nftables.Chain{Name: chain, Table: table})
			if err != nil {
				continue
			}
			if at, drops := w.firstEnd(table, inner, seen); at < len(inner) {
				return i, drops
			}
		}
	}
	return len(rules), false
}

type ending int

const (
	endNone ending = iota
	endAccept
	endDrop
	endJump
)

// always returns the verdict of a rule without a condition, and none for a rule with one.
func always(exprs []expr.Any) (ending, string) {
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Counter, *expr.Log:
		case *expr.Match:
			if e.Name != "comment" {
				return endNone, ""
			}
		case *expr.Reject:
			return endDrop, ""
		case *expr.Target:
			if e.Name == "REJECT" || e.Name == "DROP" {
				return endDrop, ""
			}
			if e.Name != "LOG" && e.Name != "NFLOG" {
				return endNone, ""
			}
		case *expr.Verdict:
			switch e.Kind {
			case expr.VerdictDrop:
				return endDrop, ""
			case expr.VerdictAccept:
				return endAccept, ""
			case expr.VerdictJump, expr.VerdictGoto:
				return endJump, e.Chain
			default:
				return endNone, ""
			}
		default:
			return endNone, ""
		}
	}
	return endNone, ""
}

// accept accepts packets that come from (or go to) the bridge. It has the form that iptables
// writes, so that iptables can list the chain.
func accept(key expr.MetaKey, bridge string) []expr.Any {
	return append(ifname(key, bridge), &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept})
}

// acceptOf recognizes a rule of accept, even after iptables has saved and restored it.
func acceptOf(exprs []expr.Any, bridge string) (expr.MetaKey, bool) {
	if len(exprs) != 4 {
		return 0, false
	}
	meta, ok1 := exprs[0].(*expr.Meta)
	cmp, ok2 := exprs[1].(*expr.Cmp)
	_, ok3 := exprs[2].(*expr.Counter)
	verdict, ok4 := exprs[3].(*expr.Verdict)
	if !ok1 || !ok2 || !ok3 || !ok4 || verdict.Kind != expr.VerdictAccept || cmp.Op != expr.CmpOpEq ||
		strings.TrimRight(string(cmp.Data), "\x00") != bridge || !strings.HasSuffix(string(cmp.Data), "\x00") {
		return 0, false
	}
	return meta.Key, meta.Key == expr.MetaKeyIIFNAME || meta.Key == expr.MetaKeyOIFNAME
}
