package kata

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestQuiet: the function runs after the last call, but not for each.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		q := quiet{fn: func() { runs++ }}
		for range 100 {
			q.call()
		}
		<-time.After(quietTime)
		synctest.Wait()
		if runs != 1 {
			t.Errorf("%d runs after a hundred calls", runs)
		}
		<-time.After(10 * quietTime)
		synctest.Wait()
		if runs != 1 {
			t.Errorf("%d runs without a call", runs)
		}
		q.call()
		<-time.After(quietTime / 2)
		q.call()
		<-time.After(quietTime)
		synctest.Wait()
		if runs != 2 {
			t.Errorf("%d runs after further calls", runs)
		}
		(&quiet{}).call()
	})
}
