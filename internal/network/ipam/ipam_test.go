package ipam_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/networktest"
)

func TestParseRange(t *testing.T) {
	for _, tc := range []struct{ in, prefix, gateway string }{
		{"10.1.2.3/16", "10.1.0.0/16", "10.1.0.1"}, // host bits are masked
		{" 10.1.2.0/24 ", "10.1.2.0/24", "10.1.2.1"},
		{"10.1.2.0/30", "10.1.2.0/30", "10.1.2.1"},
		{"10.1.2.5/31", "10.1.2.4/31", ""},
		{"10.1.2.5/32", "10.1.2.5/32", ""},
		{"fd00::7/64", "fd00::/64", "fd00::1"},
		{"fd00::7/127", "fd00::6/127", ""},
		{"", "", ""},
		{"10.0.0.0", "", ""},
		{"10.0.0.0/33", "", ""},
		{"10.0.0.0/-1", "", ""},
		{"10.0.0.0/08", "", ""},
		{"0.0.0.0/0", "", ""},
		{"10.0.0.0/7", "", ""},
		{"224.0.0.0/8", "", ""},
		{"127.0.0.0/16", "", ""},
		{"169.254.0.0/16", "", ""},
		{"fe80::/64", "", ""},
		{"::/0", "", ""},
		{"fd00::/8", "", ""},
		{"::ffff:10.0.0.0/112", "", ""},
		{"fe80::1%eth0/64", "", ""},
	} {
		got, err := ipam.ParseRange(tc.in)
		if tc.prefix == "" {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: %v, %v; want it refused", tc.in, got, err)
			}
			continue
		}
		gw := ""
		if got.Gateway.IsValid() {
			gw = got.Gateway.String()
		}
		if err != nil || got.Prefix.String() != tc.prefix || gw != tc.gateway {
			t.Errorf("%q: %v, %v; want %s by %s", tc.in, got, err, tc.prefix, tc.gateway)
		}
	}
}

func TestParseRangesRefusesOverlaps(t *testing.T) {
	if _, err := ipam.ParseRanges([]string{"10.0.0.0/16", "fd00::/64", "10.0.3.0/24"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("overlapping ranges: %v", err)
	}
	if got, err := ipam.ParseRanges([]string{"10.0.0.0/16", "fd00::/64", "10.1.0.0/24"}); err != nil || len(got) != 3 {
		t.Errorf("ranges side by side: %v, %v", got, err)
	}
}

func FuzzParseRange(f *testing.F) {
	for _, s := range []string{"10.1.2.3/16", "fd00::/64", "::ffff:1.2.3.4/120", "1.2.3.4/031", "fe80::1%1/64"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ipam.ParseRange(s)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: %v has another class", s, err)
			}
			return
		}
		if r.Prefix != r.Prefix.Masked() || r.Prefix.Addr().Is4In6() {
			t.Errorf("%q: %v is not masked", s, r.Prefix)
		}
		if r.Gateway.IsValid() && (!r.Prefix.Contains(r.Gateway) || r.Gateway == r.Prefix.Addr()) {
			t.Errorf("%q: gateway %v of %v", s, r.Gateway, r.Prefix)
		}
		again, err := ipam.ParseRange(r.Prefix.String())
		if err != nil || again != r {
			t.Errorf("%q: %v read again is %v, %v", s, r, again, err)
		}
	})
}

func TestChoose(t *testing.T) {
	for _, tc := range []struct {
		name   string
		routes []string
		want   string
	}{
		{"nothing", nil, "10.0.0.0/16"},
		{"a default route says nothing", []string{"0.0.0.0/0", "192.168.1.0/24"}, "10.0.0.0/16"},
		{"narrow routes", []string{"10.0.200.7/32", "10.1.0.0/20"}, "10.2.0.0/16"},
		{"a VPN over all of 10", []string{"10.0.0.0/8"}, "172.16.0.0/16"},
		{"and docker", []string{"10.0.0.0/8", "172.16.0.0/15", "172.18.0.0/16"}, "172.19.0.0/16"},
		{"wide routes", []string{"10.0.0.0/8", "172.16.0.0/12"}, "192.168.0.0/16"},
		{"everything", []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.7.0/24"}, ""},
		{"halves of the world", []string{"0.0.0.0/1", "128.0.0.0/1"}, ""},
	} {
		var routes []netip.Prefix
		for _, r := range tc.routes {
			routes = append(routes, netip.MustParsePrefix(r))
		}
		got, err := ipam.Choose(routes)
		if tc.want == "" {
			if !errdefs.IsResourceExhausted(err) {
				t.Errorf("%s: %v, %v", tc.name, got, err)
			}
			continue
		}
		if err != nil || got.Prefix.String() != tc.want || got.Gateway != got.Prefix.Addr().Next() {
			t.Errorf("%s: %v, %v; want %s", tc.name, got, err, tc.want)
		}
	}
}

func TestChooseULA(t *testing.T) {
	one, two := ipam.ChooseULA(), ipam.ChooseULA()
	if one == two || one.Prefix.Bits() != 64 || !one.Prefix.Addr().IsPrivate() || !one.Prefix.Contains(one.Gateway) {
		t.Errorf("%v, %v", one, two)
	}
}

// desk is a Leases with a clock and a store.
type desk struct {
	*ipam.Leases
	kv  *networktest.KV
	now time.Time
}

const rest = 30 * time.Second

func (d *desk) open(t require) {
	l, err := ipam.Open(ipam.Options{KV: d.kv, Rest: rest, Now: func() time.Time { return d.now }})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	d.Leases = l
}

// require is the interface that testing.T and rapid.T share.
type require interface {
	Fatalf(format string, args ...any)
	Errorf(format string, args ...any)
}

func newDesk(t require, cidrs ...string) *desk {
	d := &desk{kv: &networktest.KV{}, now: time.Unix(1_800_000_000, 0)}
	d.open(t)
	d.use(t, cidrs...)
	return d
}

func (d *desk) use(t require, cidrs ...string) {
	r, err := ipam.ParseRanges(cidrs)
	if err != nil {
		t.Fatalf("ranges: %v", err)
	}
	d.SetRanges(r)
}

func (d *desk) lease(t *testing.T, n int) string {
	t.Helper()
	l, _, err := d.Acquire(networktest.SandboxID(n), nil)
	if err != nil {
		t.Fatal(err)
	}
	var s []string
	for _, a := range l.Addrs {
		s = append(s, a.String())
	}
	return strings.Join(s, " ")
}

func (d *desk) free(t *testing.T, n int) {
	t.Helper()
	if err := d.Release(networktest.SandboxID(n)); err != nil {
		t.Fatal(err)
	}
}

func TestNetworkGatewayAndBroadcastAreNotLeased(t *testing.T) {
	for _, tc := range []struct {
		cidr string
		want []string
	}{
		{"10.0.0.0/29", []string{"10.0.0.2/29", "10.0.0.3/29", "10.0.0.4/29", "10.0.0.5/29", "10.0.0.6/29"}},
		{"10.0.0.0/30", []string{"10.0.0.2/30"}},
		{"10.0.0.0/31", []string{"10.0.0.0/31", "10.0.0.1/31"}},
		{"10.0.0.7/32", []string{"10.0.0.7/32"}},
		{"255.255.255.254/31", []string{"255.255.255.254/31", "255.255.255.255/31"}},
		{"fd00::/126", []string{"fd00::2/126", "fd00::3/126"}},
		{"fd00::/127", []string{"fd00::/127", "fd00::1/127"}},
		{"fd00::5/128", []string{"fd00::5/128"}},
	} {
		d := newDesk(t, tc.cidr)
		var got []string
		for n := range len(tc.want) {
			got = append(got, d.lease(t, n))
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s: %s", tc.cidr, diff)
		}
		_, _, err := d.Acquire(networktest.SandboxID(99), nil)
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "address range exhausted") {
			t.Errorf("%s: one too many: %v", tc.cidr, err)
		}
	}
}

func TestEmptyAndExhaustedAreTwoErrors(t *testing.T) {
	d := newDesk(t)
	_, _, err := d.Acquire(networktest.SandboxID(1), nil)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "no address range configured") {
		t.Errorf("no range: %v", err)
	}
	d.use(t, "10.0.0.0/30")
	d.lease(t, 1)
	_, _, err = d.Acquire(networktest.SandboxID(2), nil)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "10.0.0.0/30 is leased") {
		t.Errorf("all leased: %v", err)
	}
	d.free(t, 1)
	_, _, err = d.Acquire(networktest.SandboxID(2), nil)
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "the next is free in 30s") {
		t.Errorf("all resting: %v", err)
	}
}

func TestAFreedAddressRests(t *testing.T) {
	d := newDesk(t, "10.0.0.0/24", "fd00::/64")
	if got := d.lease(t, 1); got != "10.0.0.2/24 fd00::2/64" {
		t.Errorf("first: %s", got)
	}
	d.free(t, 1)
	d.free(t, 1) // a second release succeeds
	if got := d.lease(t, 2); got != "10.0.0.3/24 fd00::3/64" {
		t.Errorf("while it rests: %s", got)
	}
	d.open(t) // a restart does not end its rest
	d.use(t, "10.0.0.0/24", "fd00::/64")
	if got := d.lease(t, 3); got != "10.0.0.4/24 fd00::4/64" {
		t.Errorf("after a restart: %s", got)
	}
	if got := d.lease(t, 2); got != "10.0.0.3/24 fd00::3/64" {
		t.Errorf("asked again: %s", got)
	}
	d.now = d.now.Add(rest)
	l, stale, err := d.Acquire(networktest.SandboxID(4), nil)
	if err != nil || l.Addrs[0].String() != "10.0.0.2/24" || len(stale) != 1 || stale[0] != networktest.SandboxID(1) {
		t.Errorf("after its rest: %v, stale %v, %v", l, stale, err)
	}
	d.free(t, 4)
	d.now = d.now.Add(-24 * time.Hour) // the clock is set back
	if got := d.lease(t, 5); got != "10.0.0.2/24 fd00::2/64" {
		t.Errorf("with a clock set back: %s", got)
	}
}

func TestAChangedRangeLeavesLeasesAlone(t *testing.T) {
	d := newDesk(t, "10.0.0.0/24")
	d.lease(t, 1)
	d.use(t, "10.5.0.0/24")
	d.lease(t, 2)
	for n, want := range map[int]string{1: "10.0.0.2/24", 2: "10.5.0.2/24"} {
		l, ok := d.Held(networktest.SandboxID(n))
		if !ok || l.Addrs[0].String() != want {
			t.Errorf("sandbox %d holds %v, want %s", n, l, want)
		}
	}
}

func TestSeveralRangesOfAFamilyFillUp(t *testing.T) {
	d := newDesk(t, "10.0.0.0/30", "10.1.0.0/30")
	if got := d.lease(t, 1) + " " + d.lease(t, 2); got != "10.0.0.2/30 10.1.0.2/30" {
		t.Error(got)
	}
}

func TestWantedAddresses(t *testing.T) {
	d := newDesk(t, "10.0.0.0/24")
	for _, tc := range []struct {
		want string
		is   func(error) bool
	}{
		{"10.0.0.9", nil},
		{"10.0.0.9", errdefs.IsAlreadyExists},
		{"10.0.0.1", errdefs.IsInvalidArgument},
		{"10.0.0.0", errdefs.IsInvalidArgument},
		{"10.0.0.255", errdefs.IsInvalidArgument},
		{"10.9.0.1", errdefs.IsInvalidArgument},
		{"fd00::1", errdefs.IsInvalidArgument},
	} {
		id := core.ID("sandbox of " + tc.want)
		if _, ok := d.Held(id); ok {
			id += " again"
		}
		l, _, err := d.Acquire(id, []netip.Addr{netip.MustParseAddr(tc.want)})
		switch {
		case tc.is == nil && (err != nil || l.Addrs[0].Addr().String() != tc.want):
			t.Errorf("%s: %v, %v", tc.want, l, err)
		case tc.is != nil && !tc.is(err):
			t.Errorf("%s: %v", tc.want, err)
		}
	}
}

// TestPoolsAndReservedAddresses checks that addresses are chosen from the pool, and that nobody gets a reserved one.
func TestPoolsAndReservedAddresses(t *testing.T) {
	r, err := ipam.ParseRange("10.1.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	for pool, valid := range map[string]bool{
		"10.1.5.0/24": true, "10.1.0.0/16": true, "10.1.0.2/32": true, "10.1.0.0/30": true,
		"10.1.0.1/32": false, "10.1.0.0/32": false, "10.1.0.0/31": false, "10.1.255.255/32": false, "10.0.0.0/8": false, "10.2.0.0/24": false, "fd00::/64": false,
	} {
		if _, err := r.WithPool(netip.MustParsePrefix(pool)); (err == nil) != valid || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v, want valid=%v", pool, err, valid)
		}
	}
	if r, err = r.WithPool(netip.MustParsePrefix("10.1.5.8/30")); err != nil {
		t.Fatal(err)
	}
	l, err := ipam.Open(ipam.Options{KV: &networktest.KV{}, Reserved: []netip.Addr{netip.MustParseAddr("10.1.5.9"), netip.MustParseAddr("10.1.7.7")}})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRanges([]ipam.Range{r})
	var got []string
	for _, id := range []core.ID{"a", "b", "c"} {
		lease, _, err := l.Acquire(id, nil)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, lease.Addrs[0].String())
	}
	if want := []string{"10.1.5.8/16", "10.1.5.10/16", "10.1.5.11/16"}; !cmp.Equal(got, want) {
		t.Errorf("leased %v, want %v", got, want)
	}
	if _, _, err := l.Acquire("d", nil); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "10.1.5.8/30") {
		t.Errorf("a full pool: %v", err)
	}
	if _, _, err := l.Acquire("d", []netip.Addr{netip.MustParseAddr("10.1.7.7")}); !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("a reserved address: %v", err)
	}
	if lease, _, err := l.Acquire("d", []netip.Addr{netip.MustParseAddr("10.1.9.9")}); err != nil || lease.Addrs[0].String() != "10.1.9.9/16" {
		t.Errorf("an address outside of the pool: %v, %v", lease, err)
	}
}

func TestAFailedWriteLeasesNothing(t *testing.T) {
	d := newDesk(t, "10.0.0.0/30")
	d.kv.Fail = errors.New("disk full")
	if _, _, err := d.Acquire(networktest.SandboxID(1), nil); !errors.Is(err, d.kv.Fail) {
		t.Errorf("acquire: %v", err)
	}
	d.kv.Fail = nil
	d.lease(t, 2)
	d.kv.Fail = errors.New("disk full")
	if err := d.Release(networktest.SandboxID(2)); !errors.Is(err, d.kv.Fail) {
		t.Errorf("release: %v", err)
	}
	if _, ok := d.Held(networktest.SandboxID(2)); !ok {
		t.Error("released although it could not be written")
	}
}

func TestABrokenRecordIsToldNotSkipped(t *testing.T) {
	for _, bad := range []string{"{", "{}", `{"sandbox":"a","addrs":["10.0.0.2/24"]}`} {
		kv := &networktest.KV{}
		if err := kv.Put("lease/10.0.0.2", []byte(bad)); err != nil {
			t.Fatal(err)
		}
		if _, err := ipam.Open(ipam.Options{KV: kv}); !errdefs.IsDataLoss(err) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestLeasesProperty: after any steps, no address has two holders, none is leased before its rest
// is over, and a restart changes nothing.
func TestLeasesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := newDesk(t, "10.0.0.0/29", "fd00::/125")
		freed := map[netip.Addr]time.Time{}
		holders := map[netip.Addr]core.ID{}
		ids := rapid.Custom(func(t *rapid.T) core.ID { return networktest.SandboxID(rapid.IntRange(1, 8).Draw(t, "sandbox")) })
		t.Repeat(map[string]func(*rapid.T){
			"acquire": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				_, had := d.Held(id)
				l, _, err := d.Acquire(id, nil)
				if err != nil {
					if !errdefs.IsResourceExhausted(err) {
						t.Errorf("acquire: %v", err)
					}
					return
				}
				if had {
					return
				}
				for _, a := range l.Addrs {
					if holder, ok := holders[a.Addr()]; ok {
						t.Errorf("%s of %s given to %s", a, holder, id)
					}
					if f, ok := freed[a.Addr()]; ok && d.now.Before(f.Add(rest)) {
						t.Errorf("%s given away %s after it was freed", a, d.now.Sub(f))
					}
					holders[a.Addr()] = id
				}
			},
			"release": func(t *rapid.T) {
				id := ids.Draw(t, "id")
				if err := d.Release(id); err != nil {
					t.Errorf("release: %v", err)
				}
				for a, holder := range holders {
					if holder == id {
						delete(holders, a)
						freed[a] = d.now
					}
				}
			},
			"wait": func(t *rapid.T) {
				d.now = d.now.Add(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			},
			"restart": func(t *rapid.T) {
				d.open(t)
				d.use(t, "10.0.0.0/29", "fd00::/125")
			},
			"": func(t *rapid.T) {
				held := map[netip.Addr]core.ID{}
				for _, l := range d.All() {
					for _, a := range l.Addrs {
						held[a.Addr()] = l.Sandbox
					}
				}
				if diff := cmp.Diff(holders, held, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					t.Errorf("held: %s", diff)
				}
			},
		})
	})
}
