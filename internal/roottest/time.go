package roottest

import "time"

// timeUntil leaves the first process a little time to report what the second
// one printed before both run into the deadline.
func timeUntil(d time.Time) string {
	left := time.Until(d) - 2*time.Second
	if left < time.Second {
		left = time.Second
	}
	return left.String()
}
