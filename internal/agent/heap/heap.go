// Package heap manages the memory of the agent: garbage is collected seldom while pods start, and is
// returned to the system in quiet intervals, as are the pages of the program that only the start needs. Start at Tend.
package heap

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The agent's live heap is a few megabytes, and every few pods it allocates more than that.
// Collecting whenever the heap has doubled, which is Go's default, took a seventh of the agent's
// time just when pods started. So the heap may grow by heapRoom between collections, and memory
// is returned to the system in quiet intervals.
const (
	heapRoom      = 24 << 20        // bytes that may be allocated between two collections, at least
	quietInterval = 2 * time.Second // how often allocation is measured

	// An interval is idle when it allocated less than idleBytes; then more than
	// idleGarbage of garbage is returned to the system.
	idleBytes   = 256 << 10
	idleGarbage = 2 << 20
	// An interval is light when it allocated less than lightBytes: stats are read, but
	// little starts. Then more than lightGarbage is returned.
	lightBytes   = 8 << 20
	lightGarbage = 8 << 20
	// smallHeap is the live heap of most nodes. Returning memory scans the live heap, so a larger
	// heap may have more garbage before it pays.
	smallHeap = 12 << 20
)

// returnsMemory reports whether to return memory to the system, given the bytes allocated in the
// last interval and since memory was last returned, and those that were alive at the last
// collection. A client that reads stats every second, as Nomad does for each task, leaves no
// interval idle; the limits of light intervals are for such a node. In a Swarm of hundreds of nodes
// the gossip leaves some megabytes of garbage each half a minute, beside a heap of dozens.
func returnsMemory(lately, since, live uint64) bool {
	more := (max(live, smallHeap) - smallHeap) / 2
	return lately < idleBytes && since > idleGarbage+more || lately < lightBytes && since > lightGarbage+more
}

// Tend manages the heap until ctx ends. GOGC in the environment takes precedence.
func Tend(ctx context.Context) {
	if !MakeRoom() {
		return
	}
	onCollection(ctx, giveRoom)
	tick := time.NewTicker(quietInterval)
	defer tick.Stop()
	last, clean := allocated(), uint64(0) // the start has left garbage
	dropped := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := allocated()
		if returnsMemory(now-last, now-clean, live()) {
			debug.FreeOSMemory()
			if !dropped {
				dropped = true
				_ = dropProgram() // without it the process counts as larger than it is
			}
			now = allocated()
			clean = now
		}
		last = now
	}
}

// MakeRoom lets the heap grow before the next collection, unless the environment sets GOGC.
func MakeRoom() bool {
	if os.Getenv("GOGC") != "" {
		return false
	}
	giveRoom()
	return true
}

// giveRoom sets GOGC so that the next collection comes after heapRoom. Go counts at least 4 MiB as
// the live heap, and multiplies that.
func giveRoom() {
	debug.SetGCPercent(int(max(100, heapRoom*100/max(live(), 4<<20))))
}

// live returns the bytes that were alive at the last collection.
func live() uint64 { return read("/gc/heap/live:bytes") }

// onCollection calls fn after every collection until ctx ends, with a cleanup of an unreferenced
// object.
func onCollection(ctx context.Context, fn func()) {
	runtime.AddCleanup(new([64]byte), func(fn func()) { // too large to share its block with other objects, and so their lifetime
		if ctx.Err() == nil {
			fn()
			onCollection(ctx, fn)
		}
	}, fn)
}

// allocated returns the bytes allocated since the start.
func allocated() uint64 { return read("/gc/heap/allocs:bytes") }

func read(name string) uint64 {
	s := []metrics.Sample{{Name: name}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindUint64 {
		return 0
	}
	return s[0].Value.Uint64()
}
