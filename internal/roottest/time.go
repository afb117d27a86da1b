package roottest

import (
	"os"
	"strconv"
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

// timeUntil leaves the first process a little time to report what the second
// one printed before both run into the deadline.
func timeUntil(d time.Time) string {
	left := time.Until(d) - 2*time.Second
	if left < time.Second {
		left = time.Second
	}
	return left.String()
}
