package translate

import (
	"math"
	"testing"
	"time"
)

func TestGrace(t *testing.T) {
	for seconds, want := range map[int]time.Duration{0: 0, 10: 10 * time.Second, -1: forever, 10_000_000_000: forever, math.MaxInt: forever, math.MinInt: forever} {
		if got := Grace(seconds); got != want {
			t.Errorf("Grace(%d) = %s, want %s", seconds, got, want)
		}
	}
}
