package roottest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// PatienceEnv is a whole number that multiplies all waiting times of tests, for emulated machines.
const PatienceEnv = "LONGSHORE_TEST_PATIENCE"

// Patience is how long a test waits for something that must happen: a minute times
// PatienceEnv. It only keeps a test from hanging for ever.
func Patience() time.Duration {
	n, err := strconv.Atoi(os.Getenv(PatienceEnv))
	if err != nil || n < 1 {
		n = 1
	}
	return time.Duration(n) * time.Minute
}

// Eventually calls ok until it returns true, and fails the test if it does not within
// Patience. Use it only if there is no event to wait for.
func Eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(pollInterval())
	defer tick.Stop()
	deadline := time.NewTimer(Patience())
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

// pollInterval returns 5 ms times PatienceEnv.
func pollInterval() time.Duration { return Patience() / 12_000 }

// timeUntil leaves the parent process some time to report the child's output, before both reach the
// deadline.
func timeUntil(d time.Time) string {
	left := time.Until(d) - 2*time.Second
	if left < time.Second {
		left = time.Second
	}
	return left.String()
}
