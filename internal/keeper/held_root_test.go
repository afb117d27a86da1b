package keeper_test

import (
	"net"
	"os"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/keeper/keepertest"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/roottest"
)

// TestHeldFiles: they outlive keepers that are killed, and those that become another program.
func TestHeldFiles(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		t.Run("Killed", func(t *testing.T) {
			keepertest.RunHolder(t, e.c.Held(), func(t *testing.T) {
				t.Helper()
				killAndWait(t, e.status().KeeperPid)
				e.status()
			})
		})
		t.Run("Upgraded", func(t *testing.T) {
			keepertest.RunHolder(t, e.c.Held(), func(t *testing.T) {
				t.Helper()
				if err := e.c.Upgrade(e.ctx(), e.binary); err != nil {
					t.Fatal(err)
				}
			})
		})
		st := e.status()
		fds := [2]int{openFDs(t, st.KeeperPid), openFDs(t, st.NestPid)}
		t.Run("Full", func(t *testing.T) {
			h := e.c.Held()
			keepertest.RunHolderLimits(t, h)
			names, err := h.Names(e.ctx())
			if err != nil {
				t.Fatal(err)
			}
			keepertest.EachHeld(t, len(names), func(i int) error { return h.Drop(e.ctx(), names[i]) })
		})
		// The Go runtime opens two of its own at some time.
		if now := [2]int{openFDs(t, st.KeeperPid), openFDs(t, st.NestPid)}; now[0] > fds[0]+2 || now[1] > fds[1]+2 {
			t.Errorf("descriptors of keeper and nest: %v, were %v", now, fds)
		}
	})
}

// TestAKeeperThatHoldsNothing: one of an earlier release gets no request that it does not know.
func TestAKeeperThatHoldsNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/pair-1", 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Net: "unixpacket", Name: dir + "/pair-1/keeper.sock"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	asked := make(chan wire.Kind, 10)
	go func() {
		c, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer func() { _ = c.Close() }()
		b := make([]byte, wire.MaxFrame)
		for first := true; ; first = false {
			n, err := c.Read(b)
			if err != nil || n == 0 {
				return
			}
			h, _, _ := wire.ParseHeader(b[:n])
			if first {
				_, _ = c.Write(wire.Frame(wire.KindOK, h.ID, &wire.Hello{Magic: wire.Magic, Version: 3, Oldest: 1, Program: "1"}))
				continue
			}
			asked <- h.Kind
		}
	}()
	c, err := keeper.New(t.Context(), keeper.Options{StateDir: dir, Binary: "/nowhere"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	h := c.Held()
	if err := h.Hold(t.Context(), "a", []*os.File{os.Stdin}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("hold: %v", err)
	}
	if _, err := h.Held(t.Context(), "a"); !errdefs.IsNotFound(err) {
		t.Errorf("held: %v", err)
	}
	if err := h.Drop(t.Context(), "a"); err != nil {
		t.Errorf("drop: %v", err)
	}
	if names, err := h.Names(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("names: %q, %v", names, err)
	}
	select {
	case k := <-asked:
		t.Errorf("it was asked kind %d", k)
	default:
	}
}
