package vxlan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestNetworksThatCannotBe: a definition is checked before anything is made.
func TestNetworksThatCannotBe(t *testing.T) {
	good := func() Definition {
		return Definition{Name: "app", MTU: 1450, Local: netip.MustParseAddr("192.0.2.1"), Subnets: []Subnet{
			{netip.MustParsePrefix("10.0.1.0/24"), netip.MustParseAddr("10.0.1.1"), 4097}, {netip.MustParsePrefix("10.0.2.0/24"), netip.MustParseAddr("10.0.2.1"), 4098},
		}}
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Definition){
		"no name": func(d *Definition) { d.Name = "" }, "two levels": func(d *Definition) { d.Name = "a/b" }, "above": func(d *Definition) { d.Name = ".." }, "hidden": func(d *Definition) { d.Name = ".a" },
		"long name": func(d *Definition) { d.Name = strings.Repeat("n", 200) }, "no subnet": func(d *Definition) { d.Subnets = nil }, "no mtu": func(d *Definition) { d.MTU = 0 }, "mtu": func(d *Definition) { d.MTU = 70000 },
		"no address": func(d *Definition) { d.Local = netip.Addr{} }, "loopback": func(d *Definition) { d.Local = netip.MustParseAddr("127.0.0.1") }, "every address": func(d *Definition) { d.Local = netip.IPv4Unspecified() },
		"range": func(d *Definition) { d.Subnets[0].Range = netip.MustParsePrefix("10.0.1.7/24") }, "no range": func(d *Definition) { d.Subnets[0].Range = netip.Prefix{} },
		"gateway elsewhere": func(d *Definition) { d.Subnets[0].Gateway = netip.MustParseAddr("10.0.2.1") }, "no gateway": func(d *Definition) { d.Subnets[0].Gateway = netip.Addr{} }, "gateway is the range": func(d *Definition) { d.Subnets[0].Gateway = netip.MustParseAddr("10.0.1.0") },
		"id 0": func(d *Definition) { d.Subnets[1].VNI = 0 }, "id": func(d *Definition) { d.Subnets[1].VNI = 1 << 24 }, "no keys": func(d *Definition) { d.Encrypted = true },
		"one id": func(d *Definition) { d.Subnets[1].VNI = 4097 },
		"one range": func(d *Definition) {
			d.Subnets[1].Range, d.Subnets[1].Gateway = netip.MustParsePrefix("10.0.0.0/16"), netip.MustParseAddr("10.0.0.1")
		},
	} {
		d := good()
		change(&d)
		if err := d.Check(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := Open(t.TempDir(), d, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
