package nft

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// SealWatch reports changes of Seal's rules, by us or others.
type SealWatch struct{ conn *netlink.Conn }

// WatchSealed begins to watch a namespace.
func WatchSealed(namespace *os.File) (*SealWatch, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (groupNFTables - 1), NetNS: int(namespace.Fd())})
	if err != nil {
		return nil, fmt.Errorf("watch nftables: %w", err)
	}
	return &SealWatch{conn}, nil
}

// Next waits for a change. It fails when the watch is closed.
func (w *SealWatch) Next() error {
	for {
		msgs, err := w.conn.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			return nil // a lost message may be a change
		}
		if err != nil || slices.ContainsFunc(msgs, ofSealed) {
			return err
		}
	}
}

// Close ends it.
func (w *SealWatch) Close() error { return w.conn.Close() }

// ofSealed reports whether a message is of Seal's table. Its name is attribute 1 of all of them.
func ofSealed(m netlink.Message) bool {
	const header, name = 4, 1
	if uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < header {
		return false
	}
	attrs, err := netlink.NewAttributeDecoder(m.Data[header:])
	if err != nil {
		return false
	}
	for attrs.Next() {
		if attrs.Type() == name {
			return bytes.Equal(bytes.TrimRight(attrs.Bytes(), "\x00"), []byte(sealedTable))
		}
	}
	return false
}

// SealIntact reports whether all of Seal's rules for these networks exist.
func SealIntact(namespace *os.File, list []Sealed) (bool, error) {
	have, err := SealedNetworks(namespace)
	if err != nil {
		return false, err
	}
	there, want := map[Sealed]bool{}, map[Sealed]bool{}
	for _, s := range have {
		there[s] = true
	}
	for _, s := range list {
		want[s] = true
	}
	if !maps.Equal(there, want) {
		return false, nil
	}
	if len(list) == 0 {
		return true, nil
	}
	c, err := dialIn(namespace)
	if err != nil {
		return false, err
	}
	table := &nftables.Table{Name: sealedTable, Family: nftables.TableFamilyINet}
	chains, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list chains: %w", err)
	}
	missing := map[string]int{}
	for _, r := range sealedRules(table, sealedSet(table), 0) {
		missing[r.chain.Name] = len(r.rules)
	}
	for _, chain := range chains {
		if chain.Table.Name != sealedTable {
			continue
		}
		rules, err := c.GetRules(table, chain)
		if err != nil {
			return false, fmt.Errorf("list rules of %s: %w", chain.Name, err)
		}
		if len(rules) == missing[chain.Name] {
			delete(missing, chain.Name)
		}
	}
	return len(missing) == 0, nil
}
