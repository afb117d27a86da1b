package roottest

import (
	"os"
	"strconv"
	"testing"
	"time"
)

// PatienceEnv is how many times longer than usual tests wait, a whole number.
// An emulated machine needs it.
const PatienceEnv = "LONGSHORE_TEST_PATIENCE"

// Patience is how long a test waits for something that must happen: a minute,
// or as many as PatienceEnv says. It bounds a hang; it measures nothing.
func Patience() time.Duration {
	n, err := strconv.Atoi(os.Getenv(PatienceEnv))
	if err != nil || n < 1 {
		n = 1
	}
	return time.Duration(n) * time.Minute
}

// Eventually asks until ok answers true, and fails the test when it does not within
// Patience. It is for what nobody announces: where there is an event, wait for that.
func Eventually(t *testing.T, what string, ok func() bool) {
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

// pollInterval is 5 ms; where everything takes longer, asking does too.
func pollInterval() time.Duration { return Patience() / 12_000 }

// timeUntil leaves the first process a little time to report what the second
// one printed before both run into the deadline.
func timeUntil(d time.Time) string {
	left := time.Until(d) - 2*time.Second
	if left < time.Second {
		left = time.Second
	}
	return left.String()
}
