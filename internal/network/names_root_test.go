package network_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/keepertest"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// ask sends one question from inside of a sandbox, and returns a function that reads the answer to
// it.
func (b box) ask(t *testing.T, name string) (answer func() string) {
	t.Helper()
	var conn *net.UDPConn
	b.ns.Do(t, func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(names.Address(), 53)))
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write(questionOf(t, name)); err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(roottest.Patience())); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatalf("the answer about %s: %v", name, err)
		}
		return addressIn(t, name, buf[:n])
	}
}

func questionOf(t *testing.T, name string) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	question, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return question
}

// addressIn is the one address of an answer.
func addressIn(t *testing.T, name string, answer []byte) string {
	t.Helper()
	var got dnsmessage.Message
	if err := got.Unpack(answer); err != nil || len(got.Answers) != 1 {
		t.Fatalf("the answer about %s: %+v, %v", name, got, err)
	}
	return netip.AddrFrom4(got.Answers[0].Body.(*dnsmessage.AResource).A).String()
}

// nameServer is the child of this process that answers names.
func nameServer(t *testing.T) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.HasPrefix(string(line), "longshore-names\x00") {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("no name server runs")
	return 0
}

// signal sends a signal, and returns when it has had its effect: until then the process answers.
func signal(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
	roottest.Eventually(t, "the signal "+sig.String()+" has its effect", func() bool {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err != nil || sig == syscall.SIGSTOP && strings.HasPrefix(state, "T") || sig == syscall.SIGKILL && strings.HasPrefix(state, "Z")
	})
}

// TestANameServerIsReplacedWithItsSockets: a question while the name server hangs, or after it has
// died, waits for its successor; none is refused, and no sandbox notices.
func TestANameServerIsReplacedWithItsSockets(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.names = &names.Options{
			Dir: filepath.Join(r.dir, "names"), Command: []string{"/proc/self/exe", names.Arg},
			Health: 100 * time.Millisecond, Patience: 2 * time.Second,
		}
		r.start()
		r.define(core.NetworkDefinition{Name: "app"})
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 1)
		req.Config.Name = "app"
		b := r.do(ns, req)
		want := b.addr(true).String()
		if err := r.net.SetNames(t.Context(), "app", map[string][]netip.Addr{"db": b.req.Last.Addrs}, nil); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if said, err := os.ReadFile(filepath.Join(r.dir, "names", "log")); t.Failed() && err == nil {
				t.Logf("the name server's log:\n%s", said)
			}
		})
		asked := func(when string, answer func() string) {
			t.Helper()
			if got := answer(); got != want {
				t.Errorf("%s db is %s, want %s", when, got, want)
			}
		}
		again := func() {
			t.Helper()
			r.start()
			if err := r.net.Recover(t.Context(), []core.NetworkRequest{b.req}); err != nil {
				t.Fatal(err)
			}
			if err := r.net.SetNames(t.Context(), "app", map[string][]netip.Addr{"db": b.req.Last.Addrs}, nil); err != nil {
				t.Fatal(err)
			}
		}
		asked("at first", b.ask(t, "db"))
		for agent, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGKILL} {
			server := nameServer(t)
			signal(t, server, sig)
			asked(fmt.Sprintf("%s, with agent %d", sig, agent), b.ask(t, "db"))
			if now := nameServer(t); now == server {
				t.Errorf("%s, with agent %d: the name server was not replaced", sig, agent)
			}
			again()
			asked("after a restart", b.ask(t, "db"))
		}
		hung := nameServer(t)
		signal(t, hung, syscall.SIGSTOP)
		again()
		asked("after a restart beside a name server that hangs", b.ask(t, "db"))
		roottest.Eventually(t, "the one that hangs has gone", func() bool { return nameServer(t) != hung })
		r.down(b)
	})
}

// askTCP is ask over a connection of its own, which is made before the question.
func (b box) askTCP(t *testing.T, name string) (answer func() string) {
	t.Helper()
	var conn net.Conn
	b.ns.Do(t, func() (err error) {
		d := net.Dialer{Timeout: roottest.Patience()}
		conn, err = d.Dial("tcp4", netip.AddrPortFrom(names.Address(), 53).String())
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	question := questionOf(t, name)
	if _, err := conn.Write(append([]byte{0, byte(len(question))}, question...)); err != nil {
		t.Fatal(err)
	}
	return func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(roottest.Patience())); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := io.ReadAtLeast(conn, buf, 2)
		if err == nil && n < 2+int(buf[1]) {
			var more int
			more, err = io.ReadFull(conn, buf[n:2+int(buf[1])])
			n += more
		}
		if err != nil {
			t.Fatalf("the answer about %s: %v", name, err)
		}
		return addressIn(t, name, buf[2:n])
	}
}

// TestQuestionsWaitWhileAgentAndNameServerAreDead: the next ones answer these questions, over UDP
// and TCP, by sockets of the holder; those of sandboxes that went meanwhile are dropped.
func TestQuestionsWaitWhileAgentAndNameServerAreDead(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		holder := keepertest.NewHolder(t)
		r := newRig(t, nil)
		r.names = &names.Options{Dir: filepath.Join(r.dir, "names"), Command: []string{"/proc/self/exe", names.Arg}, Holder: holder}
		r.start()
		r.define(core.NetworkDefinition{Name: "app"})
		in := func(i int) box {
			ns := networktest.NewNamespace(t)
			req := r.request(ns, i)
			req.Config.Name = "app"
			return r.do(ns, req)
		}
		stays, goes := in(1), in(2)
		want := stays.addr(true).String()
		known := map[string][]netip.Addr{"db": stays.req.Last.Addrs}
		if err := r.net.SetNames(t.Context(), "app", known, nil); err != nil {
			t.Fatal(err)
		}
		sandboxes := func(want ...core.ID) {
			t.Helper()
			held, err := holder.Names(t.Context())
			if err != nil || len(held) != len(want) {
				t.Errorf("the holder has %q, %v; want those of %q", held, err, want)
			}
			for i, id := range want {
				if i < len(held) && held[i] != "names/"+string(id) {
					t.Errorf("the holder has %q, want those of %q", held, want)
				}
			}
		}
		sandboxes(stays.req.Sandbox, goes.req.Sandbox)
		if got := stays.ask(t, "db")(); got != want {
			t.Fatalf("db is %s, want %s", got, want)
		}
		for range 2 {
			if err := r.net.Close(); err != nil { // the agent
				t.Fatal(err)
			}
			r.net = nil
			signal(t, nameServer(t), syscall.SIGKILL)
			udp, tcp := stays.ask(t, "db"), stays.askTCP(t, "db")
			r.start()
			if all, err := r.net.Sandboxes(t.Context()); err != nil || !slices.Contains(all, stays.req.Sandbox) {
				t.Errorf("before it has recovered, it knows of %q, %v", all, err)
			}
			// The names come a moment after the sandboxes.
			if err := r.net.Recover(t.Context(), []core.NetworkRequest{stays.req}); err != nil {
				t.Fatal(err)
			}
			if err := r.net.SetNames(t.Context(), "app", known, nil); err != nil {
				t.Fatal(err)
			}
			for what, answer := range map[string]func() string{"UDP": udp, "TCP": tcp} {
				if got := answer(); got != want {
					t.Errorf("over %s db is %s, want %s", what, got, want)
				}
			}
			sandboxes(stays.req.Sandbox)
		}
		// Held sockets of another namespace, under any name, are not used.
		other, err := holder.Held(t.Context(), "names/"+string(stays.req.Sandbox))
		if err != nil {
			t.Fatal(err)
		}
		r.down(stays)
		sandboxes()
		if err := holder.Hold(t.Context(), "names/"+string(stays.req.Sandbox), other); err != nil {
			t.Fatal(err)
		}
		for _, f := range other {
			_ = f.Close()
		}
		if err := r.net.Close(); err != nil {
			t.Fatal(err)
		}
		r.net = nil
		r.start() // it does not know the held sockets yet
		again := in(1)
		known["db"] = again.req.Last.Addrs
		if err := r.net.SetNames(t.Context(), "app", known, nil); err != nil {
			t.Fatal(err)
		}
		if got := again.ask(t, "db")(); got != again.addr(true).String() {
			t.Errorf("db is %s, want %s", got, again.addr(true))
		}
		r.down(again)
		sandboxes()
	})
}

// TestNamesWithAnOldKeeper: sandboxes are answered when the keeper cannot hold their sockets.
func TestNamesWithAnOldKeeper(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		holder := keepertest.NewHolder(t)
		holder.Old = true
		r.names = &names.Options{Dir: filepath.Join(r.dir, "names"), Command: []string{"/proc/self/exe", names.Arg}, Holder: holder}
		r.start()
		r.define(core.NetworkDefinition{Name: "app"})
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 1)
		req.Config.Name = "app"
		b := r.do(ns, req)
		if err := r.net.SetNames(t.Context(), "app", map[string][]netip.Addr{"db": b.req.Last.Addrs}, nil); err != nil {
			t.Fatal(err)
		}
		if got := b.ask(t, "db")(); got != b.addr(true).String() {
			t.Errorf("db is %s", got)
		}
		r.down(b)
	})
}

// TestAnAgentDoesNotWaitForANameServerThatHangs: it must be back before other nodes take it for
// dead.
func TestAnAgentDoesNotWaitForANameServerThatHangs(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.names = &names.Options{
			Dir: filepath.Join(r.dir, "names"), Command: []string{"/proc/self/exe", names.Arg}, Holder: keepertest.NewHolder(t), Patience: time.Hour,
		}
		r.start()
		r.open(anOverlay(1))
		b := r.task(1, on(1, 7))
		if err := r.net.Close(); err != nil {
			t.Fatal(err)
		}
		r.net = nil
		signal(t, nameServer(t), syscall.SIGSTOP)
		r.start()
		r.recover(b)
		if err := r.net.Overlays.SetNames(t.Context(), "net1", map[string][]netip.Addr{"db": {netip.MustParseAddr("10.99.1.7")}}, nil); err != nil {
			t.Fatal(err)
		}
		if got := b.ask(t, "db")(); got != "10.99.1.7" {
			t.Errorf("db is %s", got)
		}
	})
}

// TestWhoseNamesASandboxKnows: not those of a network where only some ports are open, which nobody tells:
// questions would wait for them after a death of agent and name server.
func TestWhoseNamesASandboxKnows(t *testing.T) {
	got := network.Asks(core.NetworkStatus{Interfaces: []core.Attachment{
		{Network: core.OverlayNetwork("ingress"), Open: []core.Port{{Host: 8080, Container: 80}}}, {Network: core.OverlayNetwork("back")}, {Network: core.NetworkDefault},
	}})
	if want := []string{core.OverlayNetwork("back")}; !slices.Equal(got, want) {
		t.Errorf("those of %q, want %q", got, want)
	}
}
