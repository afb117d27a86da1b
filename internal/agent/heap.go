package agent

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// An agent lives on a few megabytes and throws away more than that with every
// few pods: collecting at twice what lives, as Go does by itself, took a seventh
// of its time, just when pods were to start. It is given room instead, and takes
// the garbage out when nothing starts.
const (
	heapRoom = 24 << 20 // allocated between two collections, at least
	lull     = 2 * time.Second

	calm   = 256 << 10 // allocated in a lull: nothing happens
	litter = 2 << 20   // less is left lying then
	hum    = 8 << 20   // allocated in a lull: figures are read, but little starts
	pile   = 8 << 20   // less is left lying then
)

// untidy reports whether the garbage is to go by what was allocated in the last
// lull and since it went last. Who asks for figures every second, as Nomad does of
// each task, leaves the agent no calm moment for as long as anything runs.
func untidy(lately, since uint64) bool {
	return lately < calm && since > litter || lately < hum && since > pile
}

// tendHeap keeps to that until ctx ends. GOGC in the environment goes before.
func tendHeap(ctx context.Context) {
	if !makeRoom() {
		return
	}
	onCollection(ctx, giveRoom)
	tick := time.NewTicker(lull)
	defer tick.Stop()
	last := allocated()
	clean := last
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := allocated()
		if untidy(now-last, now-clean) {
			debug.FreeOSMemory()
			now = allocated()
			clean = now
		}
		last = now
	}
}

// makeRoom gives room unless the environment says how much there is.
func makeRoom() bool {
	if os.Getenv("GOGC") != "" {
		return false
	}
	giveRoom()
	return true
}

// giveRoom has the next collection wait for heapRoom. Go begins with 4 MiB where
// less lives, and multiplies these too.
func giveRoom() {
	live := max(read("/gc/heap/live:bytes"), 4<<20)
	debug.SetGCPercent(int(max(100, heapRoom*100/live)))
}

// onCollection calls fn after every collection until ctx ends: each cleans up an
// object that nobody refers to.
func onCollection(ctx context.Context, fn func()) {
	runtime.AddCleanup(new([64]byte), func(fn func()) { // too large to share its block with others, and so its end
		if ctx.Err() == nil {
			fn()
			onCollection(ctx, fn)
		}
	}, fn)
}

// allocated is how much was ever allocated.
func allocated() uint64 { return read("/gc/heap/allocs:bytes") }

func read(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
