package nft_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/roottest"
)

// lan is a bridge with machines on it: 10.9.0.N and fd00:9::N is the machine with number N.
type lan struct {
	t        *testing.T
	machines map[int]*networktest.Namespace
}

func newLAN(t *testing.T, numbers ...int) *lan {
	t.Helper()
	l := &lan{t, map[int]*networktest.Namespace{}}
	networktest.Run(t, "nft flush ruleset") // these tables do not open those of others
	networktest.Run(t, "ip link add lan type bridge")
	networktest.Run(t, "ip link set lan up")
	for _, n := range numbers {
		ns := networktest.NewNamespace(t)
		l.machines[n] = ns
		networktest.Run(t, fmt.Sprintf("ip link add p%d master lan type veth peer name eth0 netns %s", n, ns.Path))
		networktest.Run(t, fmt.Sprintf("ip link set p%d up", n))
		l.ip(n, "link set lo up", fmt.Sprintf("addr add %s/24 dev eth0", at4(n)), fmt.Sprintf("addr add %s/64 dev eth0 nodad", at6(n)), "link set eth0 up")
	}
	return l
}

func at4(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 9, 0, byte(n)}) }
func at6(n int) netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd00:9::%x", n)) }

func (l *lan) ip(n int, lines ...string) {
	l.t.Helper()
	for _, line := range lines {
		networktest.Run(l.t, "nsenter --net="+l.machines[n].Path+" ip "+line)
	}
}

// open opens the namespace of a machine.
func (l *lan) open(n int) *os.File {
	l.t.Helper()
	f, err := os.Open(l.machines[n].Path)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = f.Close() })
	return f
}

// serve has a machine answer connections to a port with its number and the client's address, and
// each line with the same line.
func (l *lan) serve(n int, port uint16) {
	l.t.Helper()
	l.machines[n].Do(l.t, func() error {
		listener, err := new(net.ListenConfig).Listen(l.t.Context(), "tcp", fmt.Sprintf("[::]:%d", port))
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				c, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer func() { _ = c.Close() }()
					from, _ := netip.ParseAddrPort(c.RemoteAddr().String())
					_, _ = fmt.Fprintf(c, "%d %s\n", n, from.Addr().Unmap())
					_, _ = io.Copy(c, c)
				}()
			}
		}()
		return nil
	})
}

// conn is a connection to one of the machines.
type conn struct {
	net.Conn
	r    *bufio.Reader
	to   int    // the machine that answered
	from string // the client, as it saw it
}

func (l *lan) dial(from int, to netip.Addr, port uint16) (c conn, err error) {
	err = l.machines[from].Try(func() error {
		d := net.Dialer{Timeout: roottest.Patience()}
		c.Conn, err = d.DialContext(l.t.Context(), "tcp", netip.AddrPortFrom(to, port).String())
		return err
	})
	if err != nil {
		return c, err
	}
	l.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(roottest.Patience()))
	c.r = bufio.NewReader(c)
	_, err = fmt.Fscanf(c.r, "%d %s\n", &c.to, &c.from)
	return c, err
}

// connect is dial that must succeed.
func (l *lan) connect(from int, to netip.Addr, port uint16) conn {
	l.t.Helper()
	c, err := l.dial(from, to, port)
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

// echo says something on a connection that must be answered.
func (c conn) echo(t *testing.T) {
	t.Helper()
	if _, err := fmt.Fprintln(c, "hello"); err != nil {
		t.Errorf("connection to %d: %v", c.to, err)
	} else if line, err := c.r.ReadString('\n'); err != nil || line != "hello\n" {
		t.Errorf("connection to %d: %q, %v", c.to, line, err)
	}
}

// reset says something on a connection that must have ended.
func (c conn) reset(t *testing.T) {
	t.Helper()
	_, err := fmt.Fprintln(c, "hello")
	if err == nil {
		_, err = c.r.ReadString('\n')
	}
	if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPIPE) {
		t.Errorf("connection to %d, which is gone: %v", c.to, err)
	}
}

// turns connects n times and counts each machine's answers.
func (l *lan) turns(n, from int, to netip.Addr, port uint16) map[int]int {
	l.t.Helper()
	got := map[int]int{}
	for range n {
		c := l.connect(from, to, port)
		if want := at4(from).String(); to.Is4() && c.from != want {
			l.t.Errorf("%d sees %s, want the client, %s", c.to, c.from, want)
		}
		got[c.to]++
	}
	return got
}

func (l *lan) want(got map[int]int, want ...int) {
	l.t.Helper()
	if len(got) != len(want) {
		l.t.Errorf("answered: %v, want %v", got, want)
	}
	for _, n := range want {
		if got[n] == 0 {
			l.t.Errorf("answered: %v, want %v", got, want)
		}
	}
}

func of(at func(int) netip.Addr, numbers ...int) (list []nft.Backend) {
	for _, n := range numbers {
		list = append(list, nft.Backend{Addr: at(n)})
	}
	return list
}

func set(t *testing.T, b *nft.Balancer, ns *os.File, services ...nft.Service) {
	t.Helper()
	if err := b.Set(ns, services); err != nil {
		t.Fatal(err)
	}
	if err := b.Check(ns); err != nil {
		t.Error(err)
	}
}

// TestAnAddressLeadsToBackends: each connection of a machine to a service's address gets another
// backend, which sees the client; one that drains keeps its connections and gets no others, and
// one that is gone loses them.
func TestAnAddressLeadsToBackends(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l := newLAN(t, 1, 2, 3, 4)
		for _, n := range []int{1, 2, 3, 4} {
			l.serve(n, 80)
		}
		ns := l.open(1)
		for _, f := range []struct {
			at  func(int) netip.Addr
			vip netip.Addr
		}{{at4, at4(100)}, {at6, at6(100)}} {
			b := nft.NewBalancer(nft.BalancerOptions{First: 1})
			set(t, b, ns, nft.Service{Addr: f.vip, Backends: of(f.at, 2, 3, 4)})
			first := l.connect(1, f.vip, 80)
			if first.to != 3 {
				t.Errorf("the first connection got %d, want 3", first.to)
			}
			l.want(l.turns(2, 1, f.vip, 80), 4, 2)
			// A change leaves the others' turns, and a service that is not changed alone.
			other := nft.Service{Addr: f.at(101), Backends: of(f.at, 1)}
			draining := append(of(f.at, 2, 4), nft.Backend{Addr: f.at(3), Draining: true})
			set(t, b, ns, other, nft.Service{Addr: f.vip, Backends: draining})
			first.echo(t)
			l.want(l.turns(4, 1, f.vip, 80), 2, 4)
			// A machine that is a backend itself gets its turn.
			l.want(l.turns(1, 1, f.at(101), 80), 1)
			kept := l.connect(1, f.vip, 80)
			gone, stay := kept.to, 6-kept.to
			set(t, b, ns, other, nft.Service{Addr: f.vip, Backends: of(f.at, stay)})
			first.reset(t)
			kept.reset(t)
			l.want(l.turns(2, 1, f.vip, 80), stay)
			// Without a backend clients are refused, and their connections end.
			last := l.connect(1, f.vip, 80)
			set(t, b, ns, other, nft.Service{Addr: f.vip})
			last.reset(t)
			if _, err := l.dial(1, f.vip, 80); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("without a backend: %v", err)
			}
			set(t, b, ns, other, nft.Service{Addr: f.vip, Backends: of(f.at, gone)})
			l.want(l.turns(2, 1, f.vip, 80), gone)
			if err := b.Withdraw(ns); err != nil {
				t.Fatal(err)
			}
			if out := networktest.Run(t, "nsenter --net="+l.machines[1].Path+" nft list tables"); out != "" {
				t.Errorf("left: %s", out)
			}
		}
	})
}

// TestTheNextProcessBalancesOn: an earlier process's table is replaced at once, and only
// connections to backends that went meanwhile are cut. So is a table that somebody has removed.
func TestTheNextProcessBalancesOn(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l := newLAN(t, 1, 2, 3)
		l.serve(2, 80)
		l.serve(3, 80)
		ns, vip := l.open(1), at4(100)
		b := nft.NewBalancer(nft.BalancerOptions{})
		set(t, b, ns, nft.Service{Addr: vip, Backends: of(at4, 2, 3)})
		conns := map[int]conn{}
		for range 2 {
			c := l.connect(1, vip, 80)
			conns[c.to] = c
		}
		next := nft.NewBalancer(nft.BalancerOptions{})
		set(t, next, ns, nft.Service{Addr: vip, Backends: of(at4, 3)})
		conns[3].echo(t)
		conns[2].reset(t)
		l.want(l.turns(2, 1, vip, 80), 3)
		networktest.Run(t, "nsenter --net="+l.machines[1].Path+" nft flush ruleset")
		set(t, next, ns, nft.Service{Addr: vip, Backends: of(at4, 2, 3)})
		l.want(l.turns(2, 1, vip, 80), 2, 3)
		conns[3].echo(t)
	})
}

// TestDatagramsFollow: a client that keeps sending from one socket comes to another backend when
// its own is gone, and stays while that drains.
func TestDatagramsFollow(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l := newLAN(t, 1, 2, 3)
		ns, vip := l.open(1), at4(100)
		b := nft.NewBalancer(nft.BalancerOptions{})
		set(t, b, ns, nft.Service{Addr: vip, Backends: of(at4, 2)})
		l.machines[2].Serve(t, "udp", 53)
		var c *networktest.Client
		ask := func() {
			t.Helper()
			if got, err := c.Ask(); err != nil || got != at4(1).String() {
				t.Errorf("%q, %v", got, err)
			}
		}
		l.machines[1].Do(t, func() (err error) {
			c, err = networktest.NewClient(t, netip.AddrPortFrom(vip, 53).String())
			return err
		})
		ask()
		// 3 serves nothing: its clients are refused.
		set(t, b, ns, nft.Service{Addr: vip, Backends: append(of(at4, 3), nft.Backend{Addr: at4(2), Draining: true})})
		ask()
		l.machines[3].Serve(t, "udp", 53)
		l.ip(2, "link set eth0 down")
		set(t, b, ns, nft.Service{Addr: vip, Backends: of(at4, 3)})
		ask()
	})
}

// TestAGatewayBalances: a machine leads others' traffic through it, and traffic to its own ports,
// to the backends, which answer through it.
func TestAGatewayBalances(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l := newLAN(t, 1, 2, 3)
		for _, n := range []int{2, 3} {
			l.serve(n, 80)
			l.serve(n, 8080)
		}
		far := networktest.NewNamespace(t)
		l.machines[9] = far
		networktest.Run(t, fmt.Sprintf("ip link add name far netns %s type veth peer name eth0 netns %s", l.machines[1].Path, far.Path))
		l.ip(9, "addr add 192.0.2.9/24 dev eth0", "link set eth0 up", "route add default via 192.0.2.1")
		l.ip(1, "addr add 192.0.2.1/24 dev far", "link set far up")
		l.machines[1].Do(t, func() error {
			return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o600)
		})
		b := nft.NewBalancer(nft.BalancerOptions{Source: at4(1), Ports: true})
		ns, vip := l.open(1), at4(100)
		set(t, b, ns, nft.Service{Addr: vip, Backends: of(at4, 2, 3)},
			nft.Service{Proto: unix.IPPROTO_TCP, Port: 8080, Backends: of(at4, 2, 3)},
			nft.Service{Proto: unix.IPPROTO_TCP, Port: 81, Backends: []nft.Backend{{Addr: at4(2), Port: 80}, {Addr: at4(2), Port: 8080}}})
		for _, to := range []struct {
			addr string
			port uint16
			want []int
		}{{vip.String(), 80, []int{2, 3}}, {"192.0.2.1", 8080, []int{2, 3}}, {"192.0.2.1", 81, []int{2}}} {
			got := map[int]int{}
			for range 2 {
				c := l.connect(9, netip.MustParseAddr(to.addr), to.port)
				if c.from != at4(1).String() {
					t.Errorf("%s: %d sees %s, want the gateway", to.addr, c.to, c.from)
				}
				got[c.to]++
			}
			l.want(got, to.want...)
		}
		if _, err := l.dial(9, netip.MustParseAddr("192.0.2.1"), 80); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a port that leads nowhere: %v", err)
		}
		if rules := networktest.Run(t, "nsenter --net="+l.machines[1].Path+" nft list table inet longshore-balance"); strings.Count(rules, "numgen inc mod 2") != 3 {
			t.Errorf("rules:\n%s", rules)
		}
	})
}
