package broker_test

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/program"
)

// hears returns the message of the server in a client's realm.
func hears(t *testing.T, client *program.Handle) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	c, err := client.Connect(ctx, nil)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = c.Close() }()
	b, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// TestAServerOutlastsAShortageOfDescriptors: while the board cannot send a descriptor, or the agent
// cannot have one, handles, servers and connections are refused. Afterwards all earlier ones work,
// in the same process, and new ones reach them.
func TestAServerOutlastsAShortageOfDescriptors(t *testing.T) {
	n := start(t)
	realm := board.Realm{Owner: "cri"}
	labels := map[string]string{"app": "db"}
	say(n.serve(n.handle("server", realm, board.Serve, labels), nil), "db")
	client := n.handle("client", realm, board.Connect, labels)
	late := n.handle("late", realm, board.Serve|board.Connect, map[string]string{"app": "late"})
	if got := hears(t, client); got != "db" {
		t.Fatal(got)
	}
	before := n.status()
	want := broker.Want{Container: "new", Realm: realm, Rights: board.Connect, Labels: labels}
	same := func() {
		t.Helper()
		// A server that was refused goes when the board has handled the end of its socket.
		roottest.Eventually(t, "the board has the servers from before only", func() bool { return n.status().Servers == before.Servers })
		if s := n.status(); s.PID != before.PID {
			t.Errorf("the board was process %d, and is %d", before.PID, s.PID)
		}
		if got := hears(t, client); got != "db" {
			t.Errorf("a client from before hears %q", got)
		}
		h := n.handle("new", realm, board.Connect, labels)
		if got := hears(t, h); got != "db" {
			t.Errorf("a new client hears %q", got)
		}
		_ = h.Close()
		roottest.Eventually(t, "the board has the handles from before only", func() bool { return n.status().Handles == before.Handles })
	}

	roottest.InFlight(t, 200)
	same() // descriptors in flight alone harm nobody: the limit decides
	restore := roottest.LimitFiles(t, before.PID, 64)
	for range 3 {
		if f, err := n.Handle(t.Context(), want); err == nil || !strings.Contains(err.Error(), unix.ETOOMANYREFS.Error()) {
			t.Errorf("a handle while no descriptor can be sent: %v, %v", f, err)
		}
		if got := hears(t, client); !strings.Contains(got, "busy") && !strings.Contains(got, "full") && !strings.Contains(got, "descriptor") {
			t.Errorf("a client while no descriptor can be sent hears %q", got)
		}
		if s, err := late.Serve(t.Context(), nil); err == nil {
			t.Error("a server started while no descriptor can be sent: ", s)
		}
	}
	restore()
	same()
	say(n.serve(late, nil), "late")
	if got := hears(t, late); got != "late" {
		t.Errorf("the server that was refused before says %q", got)
	}
	before = n.status()

	// The agent has no descriptor left: it can neither connect nor receive.
	for _, connected := range []bool{true, false} {
		if !connected {
			n.Close()
		}
		restore := roottest.LimitFiles(t, os.Getpid(), 3)
		f, err := n.Handle(t.Context(), want)
		restore()
		if err == nil {
			t.Errorf("connected %t: an agent without a descriptor got %v", connected, f)
		}
		same()
	}

	// The board has none left.
	n.Close()
	restore = roottest.LimitFiles(t, before.PID, 3)
	f, err := n.Handle(t.Context(), want)
	restore()
	if err == nil {
		t.Errorf("a board without a descriptor made %v", f)
	}
	same()
}
