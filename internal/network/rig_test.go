package network_test

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
)

// rig is a network under test with the store that outlives it.
type rig struct {
	t    *testing.T
	net  *network.Network
	kv   *networktest.KV
	conf netconf.Config
	dir  string
	// names has the name server's options, when not as usual.
	names  *names.Options
	holder core.Holder
	// The clock stands still at now, so that no rest ends on a slow machine, and is advanced by
	// ahead.
	now   time.Time
	ahead time.Duration
}

func newRig(t *testing.T, change func(*netconf.Config)) *rig {
	t.Helper()
	conf := netconf.DefaultConfig()
	conf.Mode = netconf.ModeBuiltin
	if change != nil {
		change(&conf)
	}
	r := &rig{t: t, kv: &networktest.KV{}, conf: conf, dir: t.TempDir(), now: time.Now()}
	r.start()
	return r
}

// start simulates a new process: everything it knows comes from the store.
func (r *rig) start() {
	r.t.Helper()
	if err := r.try(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) try() error {
	if r.net != nil {
		if err := r.net.Close(); err != nil {
			r.t.Error(err)
		}
		r.net = nil
	}
	n, err := network.New(network.Options{
		Config: r.conf, Store: r.kv, StateDir: r.dir, Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
		Now: func() time.Time { return r.now.Add(r.ahead) }, Names: r.names, Holder: r.holder,
	})
	if err != nil {
		return err
	}
	r.net = n
	r.t.Cleanup(func() {
		if r.net == n {
			_ = n.Close()
			r.net = nil
		}
	})
	return nil
}

// box is a sandbox as the engine would make it.
type box struct {
	ns  *networktest.Namespace
	req core.NetworkRequest
}

func (b box) addr(is4 bool) netip.Addr {
	i := slices.IndexFunc(b.req.Last.Addrs, func(a netip.Addr) bool { return a.Is4() == is4 })
	return b.req.Last.Addrs[i]
}

func (r *rig) request(ns *networktest.Namespace, n int, ports ...core.Port) core.NetworkRequest {
	return core.NetworkRequest{
		Sandbox: networktest.SandboxID(n), Owner: core.OwnerCLI, Namespace: ns.Path, Config: core.NetworkConfig{Ports: ports},
	}
}

func (r *rig) setup(n int, ports ...core.Port) box {
	r.t.Helper()
	ns := networktest.NewNamespace(r.t)
	return r.do(ns, r.request(ns, n, ports...))
}

func (r *rig) do(ns *networktest.Namespace, req core.NetworkRequest) box {
	r.t.Helper()
	st, err := r.net.Setup(r.t.Context(), req)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Last = st
	return box{ns, req}
}

func (r *rig) down(b box) {
	r.t.Helper()
	if err := r.net.Teardown(r.t.Context(), b.req); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) check(b box) {
	r.t.Helper()
	if err := r.net.Check(r.t.Context(), b.req); err != nil {
		r.t.Error(err)
	}
}

func port(proto string, host, container uint16) core.Port {
	return core.Port{Proto: proto, Host: host, Container: container}
}

func at(a netip.Addr, p uint16) string { return netip.AddrPortFrom(a, p).String() }

// asker is the client: a box, or nil for the host itself.
func ask(from *networktest.Namespace, proto, to string) (string, error) {
	if from == nil {
		return networktest.Ask(proto, to)
	}
	return from.Ask(proto, to)
}

// wantAnswer checks which address the server sees.
func wantAnswer(t *testing.T, from *networktest.Namespace, proto, to, saw string) {
	t.Helper()
	if got, err := ask(from, proto, to); err != nil || got != saw {
		t.Errorf("%s %s: served as %q, %v; want %q", proto, to, got, err, saw)
	}
}

// outside is another machine: a namespace on a link of its own to the host.
type outside struct {
	ns                *networktest.Namespace
	host4, addr4      netip.Addr
	host6, addr6      netip.Addr
	hostLink, farLink string
}

func newOutside(t *testing.T) outside {
	t.Helper()
	o := outside{
		ns: networktest.NewNamespace(t), hostLink: "up0", farLink: "far0",
		host4: netip.MustParseAddr("192.0.2.1"), addr4: netip.MustParseAddr("192.0.2.2"),
		host6: netip.MustParseAddr("2001:db8::1"), addr6: netip.MustParseAddr("2001:db8::2"),
	}
	networktest.Run(t, "ip link add up0 mtu 1400 type veth peer name far0 mtu 1400")
	networktest.Run(t, "sysctl -q -w net.ipv6.conf.up0.disable_ipv6=0") // the host's default may differ
	networktest.Run(t, "ip addr add 192.0.2.1/24 dev up0")
	networktest.Run(t, "ip addr add 2001:db8::1/64 dev up0 nodad")
	networktest.Run(t, "nsenter --net="+o.ns.Path+" ip link set lo up")
	// the far end is moved with an open descriptor of the namespace
	networktest.Run(t, fmt.Sprintf("ip link set far0 netns %s", o.ns.Path))
	networktest.Run(t, "ip link set up0 up")
	in := "nsenter --net=" + o.ns.Path + " "
	networktest.Run(t, in+"ip addr add 192.0.2.2/24 dev far0")
	networktest.Run(t, in+"ip addr add 2001:db8::2/64 dev far0 nodad")
	networktest.Run(t, in+"ip link set far0 up")
	networktest.Run(t, "ip route add default via 192.0.2.2")
	return o
}
