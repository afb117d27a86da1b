package network_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// ask sends one question from inside of a sandbox, and returns what reads the answer to it.
func (b box) ask(t *testing.T, name string) (answer func() string) {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	question, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	var conn *net.UDPConn
	b.ns.Do(t, func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(names.Address(), 53)))
		return err
	})
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write(question); err != nil {
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
		var got dnsmessage.Message
		if err := got.Unpack(buf[:n]); err != nil || len(got.Answers) != 1 {
			t.Fatalf("the answer about %s: %+v, %v", name, got, err)
		}
		return netip.AddrFrom4(got.Answers[0].Body.(*dnsmessage.AResource).A).String()
	}
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

// TestANameServerIsReplacedWithItsSockets: a question that is asked while the name server hangs, or
// after it has died, waits for its successor; none is refused, and no sandbox notices.
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
