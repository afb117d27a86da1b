package network_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
)

func TestModeIsDecidedOnce(t *testing.T) {
	confs := t.TempDir()
	conf := netconf.DefaultConfig()
	conf.CNI.ConfDir = confs
	mode := func(kv *networktest.KV) string {
		t.Helper()
		n, err := network.New(network.Options{Config: conf, Store: kv, StateDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = n.Close() }()
		info, err := n.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode
	}
	before, after := &networktest.KV{}, &networktest.KV{}
	if got := mode(before); got != "builtin" {
		t.Errorf("without CNI configurations: %s", got)
	}
	if err := os.WriteFile(filepath.Join(confs, "1.conflist"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := mode(after); got != "cni" {
		t.Errorf("with one: %s", got)
	}
	if got := mode(before); got != "builtin" {
		t.Errorf("decided before it came: %s", got)
	}
	if err := os.Remove(filepath.Join(confs, "1.conflist")); err != nil {
		t.Fatal(err)
	}
	if got := mode(after); got != "cni" {
		t.Errorf("decided before it went: %s", got)
	}
}

func TestRangesOutliveTheProcess(t *testing.T) {
	conf := netconf.DefaultConfig()
	conf.Mode, conf.PodCIDR = netconf.ModeBuiltin, netconf.FromKubelet
	kv := &networktest.KV{}
	with := func(f func(n *network.Network)) {
		t.Helper()
		n, err := network.New(network.Options{Config: conf, Store: kv})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = n.Close() }()
		f(n)
	}
	want := func(n *network.Network, ranges string, ready bool) {
		t.Helper()
		info, err := n.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range info.Ranges {
			got = append(got, r.String())
		}
		if strings.Join(got, " ") != ranges || info.Ready != ready || (info.Reason == "") != ready {
			t.Errorf("%+v; want %q, ready %v", info, ranges, ready)
		}
	}
	with(func(n *network.Network) {
		want(n, "", false)
		if err := n.SetRanges(t.Context(), []string{"10.5.6.7/24", " fd00:5::/64"}); err != nil {
			t.Fatal(err)
		}
		want(n, "10.5.6.0/24 fd00:5::/64", true)
	})
	with(func(n *network.Network) {
		want(n, "10.5.6.0/24 fd00:5::/64", true)
		kv.Fail = errors.New("disk full")
		if err := n.SetRanges(t.Context(), []string{"10.6.0.0/24"}); !errors.Is(err, kv.Fail) {
			t.Errorf("with a full disk: %v", err)
		}
		kv.Fail = nil
		want(n, "10.5.6.0/24 fd00:5::/64", true)
	})
	conf.PodCIDR = "10.8.0.0/16" // the administrator changes it
	with(func(n *network.Network) { want(n, "10.8.0.0/16", true) })
}

func TestConfigCheck(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*netconf.Config)
		ok     bool
	}{
		{"default", func(*netconf.Config) {}, true},
		{"zero", func(c *netconf.Config) { *c = netconf.Config{} }, true},
		{"mode", func(c *netconf.Config) { c.Mode = "flannel" }, false},
		{"long bridge", func(c *netconf.Config) { c.Bridge = "sixteen-letters0" }, false},
		{"path as bridge", func(c *netconf.Config) { c.Bridge = "../all" }, false},
		{"mtu", func(c *netconf.Config) { c.MTU = 67 }, false},
		{"mtu for IPv6", func(c *netconf.Config) { c.MTU, c.IPv6 = 1000, true }, false},
		{"rest", func(c *netconf.Config) { c.LeaseRest = -1 }, false},
		{"ranges", func(c *netconf.Config) { c.PodCIDR = "10.0.0.0/8,fd00::/48" }, true},
		{"bad range", func(c *netconf.Config) { c.PodCIDR = "10.0.0.0/8,10.1.0.0/16" }, false},
		{"kubelet", func(c *netconf.Config) { c.PodCIDR = netconf.FromKubelet }, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := netconf.DefaultConfig()
			tc.change(&c)
			if err := c.Check(); (err == nil) != tc.ok || err != nil && !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v, want ok %v", err, tc.ok)
			}
		})
	}
}

// TestRangesToAvoid: a likely range of networks over several nodes is chosen only when there is no
// other, and an earlier choice of one is dropped; a range that is named is not.
func TestRangesToAvoid(t *testing.T) {
	kv := &networktest.KV{}
	conf := netconf.DefaultConfig()
	conf.Mode = netconf.ModeBuiltin
	chosen := func(avoid ...string) netip.Prefix {
		t.Helper()
		o := network.Options{Config: conf, Store: kv}
		for _, a := range avoid {
			o.Avoid = append(o.Avoid, netip.MustParsePrefix(a))
		}
		n, err := network.New(o)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = n.Close() }()
		info, err := n.Info(t.Context())
		if err != nil || len(info.Ranges) != 1 {
			t.Fatalf("%+v, %v", info, err)
		}
		return info.Ranges[0]
	}
	first := chosen()
	ten := netip.MustParsePrefix("10.0.0.0/8")
	second := chosen(ten.String())
	if ten.Overlaps(second) {
		t.Errorf("%s is chosen", second)
	}
	if got := chosen(ten.String()); got != second {
		t.Errorf("chosen %s, then %s", second, got)
	}
	if all := chosen("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"); all != first {
		t.Errorf("where nothing else is left %s is chosen, and not %s", all, first)
	}
	conf.PodCIDR = "10.9.0.0/16"
	if got := chosen("10.0.0.0/8"); got.String() != conf.PodCIDR {
		t.Errorf("the range that is named is %s", got)
	}
}
