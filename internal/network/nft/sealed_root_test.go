package nft_test

import (
	"cmp"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/roottest"
)

// TestSeal: the kernel takes the rules, tells which networks they are of, and has none of them any
// more when there is no network. Another program's table is as it was.
func TestSeal(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		ns := networktest.NewNamespace(t)
		f, err := os.Open(ns.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		rules := func() string { return networktest.Run(t, "nsenter --net="+ns.Path+" nft list ruleset") }
		networktest.Run(t, "nsenter --net="+ns.Path+" nft add table inet theirs")
		before := rules()
		var want []nft.Sealed
		for vni := range uint32(300) {
			want = append(want, nft.Sealed{Port: 4789 + uint16(vni%2), VNI: 1<<24 - 1 - vni})
		}
		slices.SortFunc(want, func(a, b nft.Sealed) int { return cmp.Compare(a.VNI, b.VNI) })
		for _, list := range [][]nft.Sealed{want, want[:1], want[:2], want[:2]} {
			if err := nft.Seal(f, 0xd0c4e3, list); err != nil {
				t.Fatal(err)
			}
			got, err := nft.SealedNetworks(f)
			slices.SortFunc(got, func(a, b nft.Sealed) int { return cmp.Compare(a.VNI, b.VNI) })
			if err != nil || !slices.Equal(got, list) {
				t.Errorf("%d networks, %v, want %d", len(got), err, len(list))
			}
		}
		for _, line := range []string{"rt ipsec missing", "meta ipsec missing", "type route hook output", "0x00d0c4e3"} {
			if !strings.Contains(rules(), line) {
				t.Errorf("rules without %q:\n%s", line, rules())
			}
		}
		for range 2 {
			if err := nft.Seal(f, 0xd0c4e3, nil); err != nil {
				t.Fatal(err)
			}
			if got, err := nft.SealedNetworks(f); err != nil || len(got) != 0 {
				t.Errorf("left: %v, %v", got, err)
			}
		}
		if got := rules(); got != before {
			t.Errorf("rules are\n%s\nand were\n%s", got, before)
		}
	})
}
