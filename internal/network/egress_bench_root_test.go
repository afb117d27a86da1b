package network_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// median returns the middle one of some durations.
func median(list []time.Duration) time.Duration {
	slices.Sort(list)
	return list[len(list)/2]
}

// aList is an egress list of some names, the world's among them.
func aList(names int) (list []string) {
	for i := range names {
		list = append(list, fmt.Sprintf("host%d.example.com:443", i))
	}
	return append(list, "api.example.com")
}

// TestEgressPace prints the cost of an egress list of 200 names, and asserts nothing about it.
func TestEgressPace(t *testing.T) {
	measures(t)
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t, "93.184.215.1")
		w.Set("api.example.com", "93.184.215.1")
		const names = 200
		for i := range names {
			w.Set(fmt.Sprintf("host%d.example.com", i), fmt.Sprintf("93.184.216.%d", i+1))
		}
		l, err := net.Listen("tcp", "93.184.215.1:7777")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(io.Discard, c)
					_ = c.Close()
				}()
			}
		}()
		r := newRig(t, nil)
		r.start()
		r.define(core.NetworkDefinition{Name: "app"})
		on := func(n int, list []string) box {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, n)
			req.Config.Name, req.Config.Egress, req.Config.DNS.Servers = "app", list, []string{networktest.WorldDNS}
			return r.do(ns, req)
		}
		boxes := map[string]box{"without": on(1, nil), "with": on(2, aList(names))}
		boxes["with"].resolve(t, "api.example.com", dnsmessage.TypeA)

		const rounds, bulk, connections = 21, 256 << 20, 300
		sent, connected := map[string][]time.Duration{}, map[string][]time.Duration{}
		for i := range rounds {
			order := []string{"without", "with"}
			if i%2 == 1 {
				slices.Reverse(order)
			}
			for _, name := range order {
				boxes[name].ns.Do(t, func() error {
					c, err := net.Dial("tcp", "93.184.215.1:7777")
					if err != nil {
						return err
					}
					buf, start := make([]byte, 1<<20), time.Now()
					for range bulk / len(buf) {
						if _, err := c.Write(buf); err != nil {
							return err
						}
					}
					sent[name] = append(sent[name], time.Since(start))
					_ = c.Close()
					start = time.Now()
					for range connections {
						c, err := net.Dial("tcp", "93.184.215.1:7777")
						if err != nil {
							return err
						}
						_ = c.Close()
					}
					connected[name] = append(connected[name], time.Since(start)/connections)
					return nil
				})
			}
		}
		a, b := median(sent["with"]), median(sent["without"])
		t.Logf("%d MiB: with a list %s, without %s: %.3f times", bulk>>20, a, b, float64(a)/float64(b))
		a, b = median(connected["with"]), median(connected["without"])
		t.Logf("a connection: with a list %s, without %s: %s more", a, b, a-b)

		asked := map[string][]time.Duration{}
		for i := range names {
			name := fmt.Sprintf("host%d.example.com", i)
			for _, who := range []string{"without", "with"} {
				for _, turn := range []string{"first", "second"} {
					start := time.Now()
					boxes[who].resolve(t, name, dnsmessage.TypeA)
					asked[who+turn] = append(asked[who+turn], time.Since(start))
				}
			}
		}
		for _, turn := range []string{"first", "second"} {
			a, b := median(asked["with"+turn]), median(asked["without"+turn])
			t.Logf("the %s question of a name: with a list %s, without %s: %s more", turn, a, b, a-b)
		}
	})
}

// TestManyEgressPace prints the cost of 500 sandboxes with 200 names each, and asserts nothing about it.
func TestManyEgressPace(t *testing.T) {
	measures(t)
	roottest.Run(t, func(t *testing.T) {
		networktest.NewWorld(t, "93.184.215.1")
		r := newRig(t, nil)
		r.start()
		const many, names = 500, 200
		list := aList(names)
		var took [2][]time.Duration
		setup := func(n int, list []string) box {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, n)
			req.Config.Egress, req.Config.DNS.Servers = list, []string{networktest.WorldDNS}
			start := time.Now()
			b := r.do(ns, req)
			kind := 0
			if list != nil {
				kind = 1
			}
			took[kind] = append(took[kind], time.Since(start))
			return b
		}
		plain := func(first int) time.Duration {
			took[0] = nil
			for i := range 40 {
				setup(first+i, nil)
			}
			return median(took[0])
		}
		slab := kernelMemory(t)
		alone := plain(10_000)
		t.Logf("memory of a sandbox without a list: %d KiB of the kernel's", (kernelMemory(t)-slab)/40)
		var others []box
		for i := range many {
			others = append(others, setup(30_000+i, nil))
		}
		besideOthers := plain(40_000)
		for _, b := range others {
			r.down(b)
			b.ns.Close()
		}
		setup(1, list)
		server := memoryOf(t, r.net)
		slab = kernelMemory(t)
		for i := range many {
			setup(2+i, list)
		}
		t.Logf("setup with a list of %d names: p50 %s", names, median(took[1]))
		slab, server = kernelMemory(t)-slab, memoryOf(t, r.net)-server
		t.Logf("memory of each of %d sandboxes: %d KiB of the kernel's (with its network), %d KiB of the name server's", many, slab/many, server/many)
		beside := plain(20_000)
		t.Logf("setup without a list: %s alone, beside %d more %s if these have none, and %s if they have lists: %.2f times", alone, many, besideOthers, beside, float64(beside)/float64(besideOthers))
	})
}

// kernelMemory returns the KiB of the kernel's objects.
func kernelMemory(t *testing.T) int { return field(t, "/proc/meminfo", "SUnreclaim:") }

// memoryOf returns the KiB of the name server.
func memoryOf(t *testing.T, n *network.Network) int {
	return field(t, fmt.Sprintf("/proc/%d/status", n.NamesPid()), "VmRSS:")
}

func field(t *testing.T, path, name string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", path, name)
	return 0
}

// TestMetadataPace prints the cost of closed metadata addresses at the setup of a sandbox, and asserts nothing about it.
func TestMetadataPace(t *testing.T) {
	measures(t)
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.start()
		took := map[bool][]time.Duration{}
		for i := range 400 {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, 1+i)
			req.Config.Metadata = i%2 == 0
			start := time.Now()
			b := r.do(ns, req)
			took[req.Config.Metadata] = append(took[req.Config.Metadata], time.Since(start))
			r.down(b)
			ns.Close()
		}
		closed, open := median(took[false]), median(took[true])
		t.Logf("setup with closed metadata addresses %s, with open ones %s: %.3f times", closed, open, float64(closed)/float64(open))
	})
}

// TestVerifyPace prints the cost of verify=sni, and asserts nothing about it.
func TestVerifyPace(t *testing.T) {
	measures(t)
	roottest.Run(t, func(t *testing.T) {
		w := networktest.NewWorld(t)
		networktest.Run(t, "ip addr add 93.184.215.1 dev world")
		w.Set("api.example.com", "93.184.215.1")
		l, err := net.Listen("tcp", "93.184.215.1:443")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(io.Discard, c)
					_, _ = c.Write([]byte("x"))
					_ = c.Close()
				}()
			}
		}()
		r := newRig(t, nil)
		r.start()
		boxes := map[bool]box{true: r.restricted(1, "api.example.com:443", "verify=sni"), false: r.restricted(2, "api.example.com:443")}
		for _, b := range boxes {
			b.resolve(t, "api.example.com", dnsmessage.TypeA)
		}
		hello := clientHello(t, "api.example.com")
		send := func(size int) error {
			c, err := net.Dial("tcp", "93.184.215.1:443")
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if _, err := c.Write(hello); err != nil {
				return err
			}
			buf := make([]byte, 1<<20)
			for range size / len(buf) {
				if _, err := c.Write(buf); err != nil {
					return err
				}
			}
			if tcp, ok := c.(*net.TCPConn); ok {
				err = tcp.CloseWrite()
			}
			if err == nil {
				_, err = io.ReadFull(c, buf[:1])
			}
			return err
		}
		const rounds, bulk, connections = 15, 256 << 20, 200
		sent, connected := map[bool][]time.Duration{}, map[bool][]time.Duration{}
		for i := range rounds {
			for _, verified := range []bool{i%2 == 0, i%2 == 1} {
				boxes[verified].ns.Do(t, func() error {
					start := time.Now()
					if err := send(bulk); err != nil {
						return err
					}
					sent[verified] = append(sent[verified], time.Since(start))
					start = time.Now()
					for range connections {
						if err := send(0); err != nil {
							return err
						}
					}
					connected[verified] = append(connected[verified], time.Since(start)/connections)
					return nil
				})
			}
		}
		a, b := median(sent[true]), median(sent[false])
		t.Logf("%d MiB: verified %s, not verified %s: %.3f times", bulk>>20, a, b, float64(a)/float64(b))
		a, b = median(connected[true]), median(connected[false])
		t.Logf("a connection with a request: verified %s, not verified %s: %s more", a, b, a-b)
	})
}
