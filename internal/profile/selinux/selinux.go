// Package selinux chooses the SELinux labels of sandboxes, so that the containers of one cannot use the
// files of another.
//
// Two containers of the same type are separated by their levels: each sandbox has two categories that no
// other sandbox has. Start at Levels.Choose.
package selinux

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
)

// categories is the number of categories that policies define: c0 to c1023.
const categories = 1024

// attempts bounds the search for a free level. There are 523,776 of them.
const attempts = 10_000

// fs is where the kernel's files of SELinux are.
const fs = "/sys/fs/selinux"

// Usable returns an error unless the kernel has SELinux on with a policy that knows the label.
func Usable(label string) error {
	if _, err := os.Stat(fs + "/enforce"); err != nil {
		return fmt.Errorf("this kernel has SELinux off: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	if err := os.WriteFile(fs+"/context", []byte(label), 0); err != nil {
		return fmt.Errorf("the loaded SELinux policy does not know the label %s; install container-selinux: %w: %w", label, err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Levels chooses levels. The zero value is ready to use.
type Levels struct {
	mu    sync.Mutex      // guards being
	being map[string]bool // levels of sandboxes that have no record yet
}

// Choose returns a level that is not used and that no other caller has chosen. Release must be called
// when the sandbox's record exists or its creation has failed. ErrUnavailable when no level is free.
func (l *Levels) Choose(used func(level string) bool) (level string, release func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range attempts {
		level := pair(rand.IntN(categories), rand.IntN(categories-1)) //nolint:gosec // not a secret
		if used(level) || l.being[level] {
			continue
		}
		if l.being == nil {
			l.being = map[string]bool{}
		}
		l.being[level] = true
		return level, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.being, level)
		}, nil
	}
	return "", nil, fmt.Errorf("all SELinux levels are in use: %w", errdefs.ErrUnavailable)
}

// pair returns the level with category a and another one, the b-th of the others.
func pair(a, b int) string {
	if b >= a {
		b++
	}
	return fmt.Sprintf("s0:c%d,c%d", min(a, b), max(a, b))
}

// LevelOf returns the level of a label, "" when it has none.
func LevelOf(label string) string {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) < 4 {
		return ""
	}
	return parts[3]
}
