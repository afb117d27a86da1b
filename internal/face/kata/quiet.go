package kata

import (
	"sync/atomic"
	"time"
)

// quietTime is the delay of Quiet after a call.
const quietTime = 2 * time.Second

// quiet runs a function some time after calls, once for those within that time: while
// calls come, and once after the last.
type quiet struct {
	fn    func()
	armed atomic.Bool
}

// call is a call that has ended.
func (q *quiet) call() {
	if q.fn == nil || !q.armed.CompareAndSwap(false, true) {
		return
	}
	time.AfterFunc(quietTime, func() {
		q.armed.Store(false)
		q.fn()
	})
}
