package heap

import (
	"context"
	"runtime"
	"runtime/debug"
	"testing"
)

var kept []byte //nolint:gochecknoglobals // so that the compiler allocates it

// TestHeapHasRoom: the garbage of a few pods starts no collection, and after a collection there
// is room again.
func TestHeapHasRoom(t *testing.T) {
	old := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(old) })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	again := make(chan struct{}, 8)
	runtime.GC()
	giveRoom()
	onCollection(ctx, func() {
		giveRoom()
		again <- struct{}{}
	})
	count := func() uint32 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.NumGC
	}
	for range 2 {
		before := count()
		for range heapRoom / 2 / 4096 {
			kept = make([]byte, 4096)
		}
		if n := count() - before; n > 0 {
			t.Errorf("%d collections for %d bytes", n, heapRoom/2)
		}
		runtime.GC()
		<-again
	}
}

func TestTheGarbageIsTakenOutWhenLittleStarts(t *testing.T) {
	for _, c := range []struct {
		what                string
		lately, since, live uint64
		want                bool
	}{
		{"nothing happens, and nothing lies", 0, 0, 5 << 20, false},
		{"nothing happens", 1 << 10, 3 << 20, 5 << 20, true},
		{"figures are read", 2 << 20, 4 << 20, 5 << 20, false},
		{"figures are read after much has started", 2 << 20, 24 << 20, 5 << 20, true},
		{"much starts", 20 << 20, 22 << 20, 5 << 20, false},
		{"nothing happens beside much that lives", 1 << 10, 11 << 20, 32 << 20, false},
		{"nothing happens after much has started beside much that lives", 1 << 10, 13 << 20, 32 << 20, true},
	} {
		if got := returnsMemory(c.lately, c.since, c.live); got != c.want {
			t.Errorf("%s: %t", c.what, got)
		}
	}
}
