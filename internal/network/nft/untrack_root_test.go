package nft_test

import (
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/roottest"
)

// TestUntrack: the kernel tracks no packets to an address's port, and none from the address to the
// port; it still tracks all others. Other programs' tables are as they were, and afterwards nothing
// is left.
func TestUntrack(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		own, other := networktest.Own(), networktest.NewNamespace(t)
		networktest.Run(t, "ip link add here type veth peer name there netns "+other.Path)
		networktest.Run(t, "sysctl -q -w net.ipv6.conf.here.disable_ipv6=0") // the host's default may differ
		networktest.Run(t, "ip link set here up")
		networktest.Run(t, "nsenter --net="+other.Path+" ip link set there up")
		for _, a := range []string{"192.0.2.1/24", "192.0.2.2/24", "2001:db8::1/64 nodad"} {
			networktest.Run(t, "ip address add dev here "+a)
		}
		for _, a := range []string{"192.0.2.9/24", "2001:db8::9/64 nodad"} {
			networktest.Run(t, "nsenter --net="+other.Path+" ip address add dev there "+a)
		}
		networktest.Run(t, "nft add table inet theirs")
		for _, hook := range []string{"input", "output"} {
			networktest.Run(t, "nft add chain inet theirs "+hook+" { type filter hook "+hook+" priority 0; }")
			for _, state := range []string{"untracked", "new"} {
				networktest.Run(t, "nft add rule inet theirs "+hook+" meta l4proto udp ct state "+state+" counter")
			}
		}
		rules := func() string { return networktest.Run(t, "nft -s list ruleset") }
		before := rules()
		counted := regexp.MustCompile(`counter packets (\d+)`)
		seen := func(hook string) (n [2]int) { // untracked, new
			for i, m := range counted.FindAllStringSubmatch(networktest.Run(t, "nft list chain inet theirs "+hook), -1) {
				n[i], _ = strconv.Atoi(m[1])
			}
			return n
		}
		list := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:4789"), netip.MustParseAddrPort("[2001:db8::1]:4790")}
		for range 2 {
			if err := nft.Untrack(list); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct {
			hook, from, to string
			untracked      bool
		}{
			{"input", "192.0.2.9", "192.0.2.1:4789", true},
			{"input", "192.0.2.9", "192.0.2.1:4790", false},
			{"input", "192.0.2.9", "192.0.2.2:4789", false},
			{"input", "2001:db8::9", "[2001:db8::1]:4790", true},
			{"input", "2001:db8::9", "[2001:db8::1]:4789", false},
			{"output", "192.0.2.1", "192.0.2.9:4789", true},
			{"output", "192.0.2.1", "192.0.2.9:4790", false},
			{"output", "192.0.2.2", "192.0.2.9:4789", false},
			{"output", "2001:db8::1", "[2001:db8::9]:4790", true},
			{"output", "2001:db8::1", "[2001:db8::9]:4789", false},
		} {
			sender := own
			if c.hook == "input" {
				sender = other
			}
			was := seen(c.hook)
			sender.Do(t, func() error {
				conn, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(c.from)}}).Dial("udp", c.to) //nolint:noctx // nothing is waited for
				if err != nil {
					return err
				}
				_, err = conn.Write([]byte("x"))
				return errors.Join(err, conn.Close())
			})
			want := was
			want[map[bool]int{true: 0, false: 1}[c.untracked]]++
			var now [2]int
			roottest.Eventually(t, "the packet is counted", func() bool { now = seen(c.hook); return now[0]+now[1] == want[0]+want[1] })
			if now != want {
				t.Errorf("from %s to %s, %s: untracked and new are %v, want %v", c.from, c.to, c.hook, now, want)
			}
		}
		for range 2 {
			if err := nft.Untrack(nil); err != nil {
				t.Fatal(err)
			}
		}
		if got := rules(); got != before {
			t.Errorf("rules are\n%s\nand were\n%s", got, before)
		}
	})
}
