package kernel

import "time"

// OpenPoller makes the Go runtime open the descriptors that its timers need. Otherwise it opens them
// with the first timer, which the garbage collector may start at any time; if no descriptor is left
// then, the process dies.
func OpenPoller() { time.AfterFunc(time.Hour, func() {}).Stop() }
