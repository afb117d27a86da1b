// Package beneathtest attacks code that opens a path by its name: it exchanges a
// directory for a link again and again while the test runs.
package beneathtest

import (
	"os"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// RoundsEnv is how often each attack is tried.
const RoundsEnv = "LONGSHORE_EXCHANGES"

// Rounds is how often each attack is tried: 50 times unless RoundsEnv says more.
func Rounds(t *testing.T) int {
	t.Helper()
	text := os.Getenv(RoundsEnv)
	if text == "" {
		return 50
	}
	n, err := strconv.Atoi(text)
	if err != nil || n <= 0 {
		t.Fatalf("%s: %q is not a number above zero", RoundsEnv, text)
	}
	return n
}

// Exchange exchanges the names of a and b again and again until stop is called. stop
// returns how often it did that; each then has its own name again.
func Exchange(t *testing.T, a, b string) (stop func() int) {
	t.Helper()
	done, times := make(chan struct{}), 0
	var wg sync.WaitGroup
	var failed error
	wg.Go(func() {
		for failed == nil {
			select {
			case <-done:
				if times%2 == 1 {
					failed = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
				}
				return
			default:
			}
			if failed = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); failed == nil {
				times++
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(done)
		wg.Wait()
		if failed != nil {
			t.Errorf("exchange %s and %s: %v", a, b, failed)
		}
	})
	t.Cleanup(end)
	return func() int { end(); return times }
}
