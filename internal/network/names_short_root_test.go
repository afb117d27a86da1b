package network_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// openFiles is how many descriptors a process has.
func openFiles(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestAnAgentGetsTheSocketsAfterAShortage: a name server that cannot send descriptors to an agent
// that starts stays, and the agent has them when the shortage is over.
func TestAnAgentGetsTheSocketsAfterAShortage(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.names = &names.Options{Dir: filepath.Join(r.dir, "names"), Command: []string{"/proc/self/exe", names.Arg}, Health: 100 * time.Millisecond}
		r.start()
		r.define(core.NetworkDefinition{Name: "app"})
		ns := networktest.NewNamespace(t)
		req := r.request(ns, 1)
		req.Config.Name = "app"
		b := r.do(ns, req)
		want := b.addr(true).String()
		known := map[string][]netip.Addr{"db": b.req.Last.Addrs}
		if err := r.net.SetNames(t.Context(), "app", known, nil); err != nil {
			t.Fatal(err)
		}
		asked := func(when string, answer func() string) {
			t.Helper()
			if got := answer(); got != want {
				t.Errorf("%s db is %s, want %s", when, got, want)
			}
		}
		asked("at first", b.ask(t, "db"))
		server := nameServer(t)
		same := func(when string) {
			t.Helper()
			asked(when, b.ask(t, "db"))
			if now := nameServer(t); now != server {
				t.Errorf("%s the name server is process %d, and was %d", when, now, server)
				server = now
			}
		}
		// The next agent asks for the sockets, which cannot be sent.
		roottest.InFlight(t, 200)
		restore := roottest.LimitFiles(t, server, 64)
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{b.req}); err != nil {
			t.Fatal(err)
		}
		if err := r.net.SetNames(t.Context(), "app", known, nil); err != nil {
			t.Fatal(err)
		}
		same("while no descriptor can be sent,")
		had := openFiles(t, os.Getpid())
		restore()
		roottest.Eventually(t, "the agent has the sockets", func() bool { return openFiles(t, os.Getpid()) >= had+2 })
		same("afterwards,")

		// An agent with the sockets starts a name server that answers the questions of the time
		// without one.
		signal(t, server, unix.SIGKILL)
		asked("what was asked while it was dead:", b.ask(t, "db"))
		r.down(b)
	})
}
