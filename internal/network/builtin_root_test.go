package network_test

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

type rig struct {
	t    *testing.T
	net  *network.Network
	kv   *networktest.KV
	conf network.Config
}

func newRig(t *testing.T, change func(*network.Config)) *rig {
	t.Helper()
	conf := network.DefaultConfig()
	conf.Mode = network.ModeBuiltin
	if change != nil {
		change(&conf)
	}
	r := &rig{t: t, kv: &networktest.KV{}, conf: conf}
	r.start()
	return r
}

// start is a new process: all that is known comes from the drawer.
func (r *rig) start() {
	r.t.Helper()
	n, err := network.New(network.Options{
		Config: r.conf, Store: r.kv, StateDir: r.t.TempDir(), Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.net = n
	r.t.Cleanup(func() { _ = n.Close() })
}

type box struct {
	ns  *networktest.Namespace
	req core.NetworkRequest
}

func (b box) addr4() netip.Addr {
	i := slices.IndexFunc(b.req.Last.Addrs, netip.Addr.Is4)
	return b.req.Last.Addrs[i]
}

func (r *rig) setup(n int, ports ...core.Port) box {
	r.t.Helper()
	return r.setupIn(newNS(r.t), n, ports...)
}

func newNS(t *testing.T) *networktest.Namespace {
	t.Helper()
	return networktest.NewNamespace(t)
}

func (r *rig) setupIn(ns *networktest.Namespace, n int, ports ...core.Port) box {
	r.t.Helper()
	b := box{ns: ns}
	b.req = core.NetworkRequest{
		Sandbox: networktest.SandboxID(n), Owner: core.OwnerCLI, Namespace: b.ns.Path, Config: core.NetworkConfig{Ports: ports},
	}
	st, err := r.net.Setup(r.t.Context(), b.req)
	if err != nil {
		r.t.Fatal(err)
	}
	b.req.Last = st
	return b
}

// deadline for what should take microseconds.
const patience = 20 * time.Second

// serve answers each line on the port of the box with "from <peer ip>".
func (b box) serve(t *testing.T, proto string, port int) {
	t.Helper()
	b.ns.Do(t, func() error { return listen(t, proto, fmt.Sprintf(":%d", port)) })
}

func listen(t *testing.T, proto, addr string) error {
	if proto == "udp" {
		c, err := net.ListenPacket("udp", addr)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = c.Close() })
		go func() {
			buf := make([]byte, 100)
			for {
				_, from, err := c.ReadFrom(buf)
				if err != nil {
					return
				}
				fmt.Fprintf(writerTo{c, from}, "from %s\n", from.(*net.UDPAddr).IP)
			}
		}()
		return nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprintf(c, "from %s\n", c.RemoteAddr().(*net.TCPAddr).IP)
			_ = c.Close()
		}
	}()
	return nil
}

type writerTo struct {
	c  net.PacketConn
	to net.Addr
}

func (w writerTo) Write(p []byte) (int, error) { return w.c.WriteTo(p, w.to) }

// ask connects and returns the one line that serve answers.
func ask(proto, addr string) (string, error) {
	d := net.Dialer{Timeout: patience}
	c, err := d.Dial(proto, addr)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if proto == "udp" {
		if _, err := c.Write([]byte("hello")); err != nil {
			return "", err
		}
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("read from %s: %w", addr, err)
	}
	return line, nil
}

func (b box) ask(t *testing.T, proto, addr string) string {
	t.Helper()
	var line string
	b.ns.Do(t, func() (err error) {
		line, err = ask(proto, addr)
		return err
	})
	return line
}

func TestBuiltinReaches(t *testing.T) { roottest.Run(t, builtinReaches) }

func builtinReaches(t *testing.T) {
	r := newRig(t, nil)
	ports := []core.Port{
		{Proto: "tcp", Host: 8080, Container: 80},
		{Proto: "udp", Host: 5353, Container: 53},
		{Proto: "tcp", HostIP: netip.MustParseAddr("127.0.0.1"), Host: 8081, Container: 80},
	}
	one, two := r.setup(1, ports...), r.setup(2)
	one.serve(t, "tcp", 80)
	one.serve(t, "udp", 53)
	gw := one.req.Last.Gateways[0].String()

	want := "from " + two.addr4().String() + "\n"
	if got := two.ask(t, "tcp", one.addr4().String()+":80"); got != want {
		t.Errorf("sandbox to sandbox: %q, want %q", got, want)
	}
	if got, err := ask("tcp", one.addr4().String()+":80"); err != nil || got != "from "+gw+"\n" {
		t.Errorf("host to sandbox: %q, %v", got, err)
	}
	for _, tc := range []struct{ proto, addr string }{
		{"tcp", gw + ":8080"}, {"tcp", "127.0.0.1:8080"}, {"tcp", "127.0.0.1:8081"}, {"udp", gw + ":5353"}, {"udp", "127.0.0.1:5353"},
	} {
		if got, err := ask(tc.proto, tc.addr); err != nil || got != "from "+gw+"\n" {
			t.Errorf("host to %s %s: %q, %v", tc.proto, tc.addr, got, err)
		}
	}
	for name, b := range map[string]box{"itself": one, "another": two} {
		for _, tc := range []struct{ proto, addr string }{{"tcp", gw + ":8080"}, {"udp", gw + ":5353"}} {
			if got := b.ask(t, tc.proto, tc.addr); got != "from "+gw+"\n" {
				t.Errorf("%s to host port %s %s: %q", name, tc.proto, tc.addr, got)
			}
		}
	}
	for _, b := range []box{one, two} {
		if err := r.net.Check(t.Context(), b.req); err != nil {
			t.Errorf("check: %v", err)
		}
		if err := r.net.Teardown(t.Context(), b.req); err != nil {
			t.Errorf("teardown: %v", err)
		}
		if err := r.net.Check(t.Context(), b.req); err == nil {
			t.Error("check is content after teardown")
		}
	}
	if ids, err := r.net.Sandboxes(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("left: %v, %v", ids, err)
	}
}
