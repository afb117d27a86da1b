//go:build amd64

// Tsc prints the rate of this machine's time-stamp counter in kHz.
//
// A guest that is emulated has the same counter. It cannot measure the rate while others
// use the processors: its clock has been seen to run at five times the true speed.
// Usage: go run ./hack/vm/tsc
package main

import (
	"fmt"
	"math"
	"time"
)

// ticks reads the counter.
func ticks() uint64

func main() {
	const between = 200 * time.Millisecond
	t0, n0 := read()
	<-time.After(between)
	t1, n1 := read()
	_, _ = fmt.Println(uint64(float64(t1-t0) / float64((n1 - n0).Nanoseconds()) * 1e6))
}

// read returns the counter and the time at one moment: of many pairs the one whose parts
// are the closest.
func read() (counter uint64, since time.Duration) {
	const tries = 10000
	best := time.Duration(math.MaxInt64)
	for range tries {
		before := time.Since(begun)
		t := ticks()
		after := time.Since(begun)
		if after-before < best {
			best, counter, since = after-before, t, before+(after-before)/2
		}
	}
	return counter, since
}

var begun = time.Now() //nolint:gochecknoglobals // the zero of all times here
