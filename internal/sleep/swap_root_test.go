package sleep_test

import (
	"os"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
)

// TestMemoryGoesToTheSwap: with sleep.swap the memory is in the swap, the next agent knows it, and the content stays.
func TestMemoryGoesToTheSwap(t *testing.T) {
	if sleep.FreeSwap() < 128<<20 {
		t.Skip("the node has no 128 MiB of free swap; the guest of hack/vm.sh has with LONGSHORE_VM_SWAP=512M")
	}
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t, os.Args[0], sleeptest.WorkArg, "127.0.0.1:0", "48")
		b.prefer(true)
		sum := b.request(sleeptest.Sum)
		for range 3 {
			awake := b.anonymous() // after a wake, memory that the program has not used is still in the swap
			slept := b.sleep()
			if asleep := b.anonymous(); asleep*10 > awake || !slept.Swap || slept.Given*10 < awake*9 || slept.Stored < slept.Given {
				t.Errorf("asleep it has %d of %d bytes, %+v", asleep, awake, slept)
			}
			b.stage(core.StageAsleep)
			b.agent() // the next one prefers files
			b.stage(core.StageAsleep)
			done := b.wake()
			if got := b.request(sleeptest.Sum); got != sum {
				t.Errorf("after a sleep the sum is %s, want %s", got, sum)
			}
			if w := <-done; w.Err != nil {
				t.Error(w.Err)
			}
			b.stage(core.StageNone)
			b.prefer(true)
		}
	})
}

// TestNoSwapMeansAFile: where the swap has no room for the memory, it goes to a file as without sleep.swap.
func TestNoSwapMeansAFile(t *testing.T) {
	if sleep.FreeSwap() >= 48<<20 {
		t.Skip("the node has swap")
	}
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t, os.Args[0], sleeptest.WorkArg, "127.0.0.1:0", "48")
		b.prefer(true)
		sum, awake := b.request(sleeptest.Sum), b.anonymous()
		slept := b.sleep()
		if asleep := b.anonymous(); asleep*10 > awake || slept.Swap || slept.Stored == 0 {
			t.Errorf("asleep it has %d of %d bytes, %+v", asleep, awake, slept)
		}
		done := b.wake()
		if got := b.request(sleeptest.Sum); got != sum {
			t.Errorf("after a sleep the sum is %s, want %s", got, sum)
		}
		if w := <-done; w.Err != nil {
			t.Error(w.Err)
		}
	})
}

// stage asserts the stage of the program.
func (b *bed) stage(want core.SleepStage) {
	b.t.Helper()
	if got, err := b.s.Stage(b.t.Context(), id); got != want || err != nil {
		b.t.Errorf("stage %d, %v, want %d", got, err, want)
	}
}
