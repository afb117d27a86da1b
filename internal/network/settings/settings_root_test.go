package settings_test

import (
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/settings"
	"github.com/longshore/longshore/internal/roottest"
)

func get(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// TestAFreshNamespaceInheritsNothing sets the values that a hardened and a loosened host hand on, before Fresh.
func TestAFreshNamespaceInheritsNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, inherited := range []map[string]string{
			{"net/ipv4/ip_forward": "1", "net/ipv4/conf/default/proxy_arp": "1", "net/ipv4/conf/all/accept_source_route": "1", "net/ipv6/conf/all/forwarding": "1", "net/ipv6/conf/default/accept_ra": "2"},
			{"net/ipv4/conf/default/rp_filter": "1", "net/ipv4/conf/all/arp_ignore": "8", "net/ipv6/conf/all/disable_ipv6": "1"},
		} {
			networktest.NewNamespace(t).Do(t, func() error {
				for name, value := range inherited {
					if _, err := settings.Set(name, value); err != nil {
						t.Errorf("set %s: %v", name, err)
					}
					if got := get(t, name); got != value {
						t.Errorf("%s stays %s, want %s", name, got, value)
					}
				}
				if err := settings.Fresh(settings.Forward{V6: true}); err != nil {
					return err
				}
				for name := range inherited {
					want := "0"
					if name == "net/ipv6/conf/all/forwarding" {
						want = "1"
					}
					if got := get(t, name); got != want {
						t.Errorf("%s is %s, want %s", name, got, want)
					}
				}
				return nil
			})
		}
	})
}

// TestChangesOfOthersAreFound: the agent's own parameters are set again, and another one is only told.
func TestChangesOfOthersAreFound(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		h := settings.NewHost(slog.New(slog.NewTextHandler(t.Output(), nil)))
		if err := h.Set("net/ipv4/ip_forward", "1"); err != nil {
			t.Fatal(err)
		}
		h.Expect("net/ipv4/conf/lo/rp_filter", get(t, "net/ipv4/conf/lo/rp_filter"), "set it back")
		h.Expect("net/ipv4/conf/gone0/rp_filter", "0", "")
		if d := h.Drifts(); len(d) != 0 {
			t.Errorf("at first: %v", d)
		}
		for name, value := range map[string]string{"net/ipv4/ip_forward": "0", "net/ipv4/conf/lo/rp_filter": "2"} {
			if _, err := settings.Set(name, value); err != nil {
				t.Fatal(err)
			}
		}
		if d := h.Drifts(); len(d) != 2 || d[0].Ours || d[0].Hint != "set it back" || !d[1].Ours || d[1].String() != "net/ipv4/ip_forward is 0 instead of 1" {
			t.Errorf("changed: %v", d)
		}
		mended, others, err := h.Mend()
		if err != nil || len(others) != 1 || others[0].Name != "net/ipv4/conf/lo/rp_filter" || len(mended) != 1 || mended[0].Name != "net/ipv4/ip_forward" || get(t, "net/ipv4/ip_forward") != "1" {
			t.Errorf("mended: %v, %v, %v", mended, others, err)
		}
		if got := get(t, "net/ipv4/conf/lo/rp_filter"); got != "2" {
			t.Errorf("another's setting is %s", got)
		}
	})
}

// TestAnInterfaceThatWasMadeAgain: the parameters of the new interface are read, not those of the one that is gone.
func TestAnInterfaceThatWasMadeAgain(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "again0"}, PeerName: "again1"}
		add := func() {
			if err := netlink.LinkAdd(link); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile("/proc/sys/net/ipv4/conf/default/route_localnet", []byte("0"), 0); err != nil { // the host's default may differ
			t.Fatal(err)
		}
		add()
		h := settings.NewHost(slog.New(slog.NewTextHandler(t.Output(), nil)))
		defer h.Close()
		if err := h.Set("net/ipv4/conf/again0/route_localnet", "1"); err != nil {
			t.Fatal(err)
		}
		if d := h.Drifts(); len(d) != 0 {
			t.Errorf("at first: %v", d)
		}
		if err := netlink.LinkDel(link); err != nil {
			t.Fatal(err)
		}
		if d := h.Drifts(); len(d) != 0 {
			t.Errorf("without the interface: %v", d)
		}
		add()
		if d := h.Drifts(); len(d) != 1 || d[0].Have != "0" {
			t.Errorf("of the new interface: %v", d)
		}
		if _, _, err := h.Mend(); err != nil || get(t, "net/ipv4/conf/again0/route_localnet") != "1" {
			t.Errorf("not mended: %v", err)
		}
	})
}
