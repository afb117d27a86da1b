package cri

import (
	"iter"
	"math/bits"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// The shortest and the longest time that a rate is taken over. Below the one it would depend on the
// times of the reads; over more than the other it says nothing about now.
const (
	rateShortest = time.Second
	rateLongest  = 2 * time.Minute
)

// rates turns CPU time into CPU use: it keeps the last reading of each object. Two clients that
// read in turn do not shorten each other's window.
type rates struct {
	mu sync.Mutex // guards by
	by map[core.ID]*rate
}

type rate struct {
	at    time.Time
	usage uint64
	last  core.Value
}

// of returns an object's use per second since its last reading, in nanoseconds; unknown the first
// time.
func (r *rates) of(id core.ID, st core.Stats) core.Value {
	if !st.CPU.Usage.OK {
		return core.Value{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.by == nil {
		r.by = map[core.ID]*rate{}
	}
	x := r.by[id]
	if x == nil {
		r.by[id] = &rate{at: st.At, usage: st.CPU.Usage.N}
		return core.Value{}
	}
	passed := st.At.Sub(x.at)
	if passed >= 0 && passed < rateShortest {
		return x.last
	}
	if passed < 0 || passed > rateLongest || st.CPU.Usage.N < x.usage { // a clock was set, or nobody asked
		*x = rate{at: st.At, usage: st.CPU.Usage.N}
		return core.Value{}
	}
	// It fits: the time is not below a second.
	hi, lo := bits.Mul64(st.CPU.Usage.N-x.usage, uint64(time.Second))
	n, _ := bits.Div64(hi, lo, uint64(passed))
	*x = rate{at: st.At, usage: st.CPU.Usage.N, last: core.Known(n)}
	return x.last
}

// keep forgets all but these, once many others have come together.
func (r *rates) keep(n int, alive iter.Seq[core.ID]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.by) <= 2*n+rateRoom {
		return
	}
	kept := make(map[core.ID]*rate, n)
	for id := range alive {
		if x := r.by[id]; x != nil {
			kept[id] = x
		}
	}
	r.by = kept
}

// rateRoom is how many may be remembered that are gone.
const rateRoom = 64
