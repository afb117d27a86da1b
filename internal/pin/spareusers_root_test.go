package pin_test

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/roottest"
)

// TestReadyUserNamespaces: the namespaces for the next sandbox, and for one with the ids of the last that ended, are made before they
// are needed, each sandbox has its own, and Close leaves no descriptor.
func TestReadyUserNamespaces(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		made := make(chan uint32, 16)
		type waits struct{} // marks the context of a sandbox, which waits for namespaces that are made with it
		var waited atomic.Int32
		var files []*os.File
		pins, err := pin.New(pin.Options{Dir: "/run/ns", Ready: true, Make: func(ctx context.Context, uids, _ []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) (out []*os.File, err error) {
			if ctx.Value(waits{}) != nil {
				waited.Add(1)
			}
			for range kinds {
				f, err := os.Open("/proc/self/ns/uts") // the test needs no real ones
				if err != nil {
					return nil, err
				}
				out = append(out, f)
			}
			files = append(files, out...)
			made <- uids[0].HostID
			return out, nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		start := func(id core.ID, first uint32) {
			t.Helper()
			req := core.PinRequest{Sandbox: id, Kinds: []specs.LinuxNamespaceType{specs.UserNamespace, specs.UTSNamespace}, UIDs: core.UserRange(first), GIDs: core.UserRange(first)}
			if _, err := pins.Pin(context.WithValue(t.Context(), waits{}, true), req); err != nil {
				t.Fatal(err)
			}
		}
		next := func(want uint32) {
			t.Helper()
			if got := <-made; got != want {
				t.Fatalf("namespaces from id %d are made, want %d", got, want)
			}
		}
		ready := func(n int) {
			t.Helper()
			roottest.Eventually(t, "namespaces are ready", func() bool { return pins.ReadyUsers() == n })
		}
		const a, b, c = 100000, 100000 + core.UserIDs, 100000 + 2*core.UserIDs
		start("a", a)
		next(a)
		next(b)
		ready(1)
		start("b", b)
		if waited.Load() != 1 {
			t.Fatal("the second sandbox waited for namespaces")
		}
		next(c)
		if err := pins.Unpin(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		next(a)
		ready(2)
		start("d", a)
		if waited.Load() != 1 {
			t.Fatal("a sandbox with the ids of one that ended waited for namespaces")
		}
		if err := pins.Close(); err != nil {
			t.Fatal(err)
		}
		start("e", c)
		next(c)
		if waited.Load() != 2 {
			t.Fatal("namespaces were taken after Close")
		}
		if open := slices.ContainsFunc(files, func(f *os.File) bool { return f.Fd() != ^uintptr(0) }); open {
			t.Error("a descriptor of a namespace stays open")
		}
	})
}
