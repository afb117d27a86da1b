package ship

import (
	"slices"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// Trouble says that the lines of a container do not arrive at its log service.
type Trouble struct {
	Container core.ID
	Name      string
	Owner     core.Owner
	Driver    string
	Since     time.Time
	Err       error
	Stopped   bool // nobody follows the log
	files     bool // the driver's files are the cause
}

func troubleOf(c *core.Container, at time.Time, err error) Trouble {
	return Trouble{Container: c.ID, Name: c.Name(), Owner: c.Owner, Driver: c.Config.LogDriver.Name, Since: at, Err: err}
}

// Troubles returns the present troubles, the longest first, and the number of followed logs.
func (r *Runner) Troubles() (list []Trouble, followed int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.stopped {
		t.Stopped = true
		list = append(list, t)
	}
	for _, f := range r.followers {
		t := f.failing.Load()
		if t != nil && t.files && f.check() == nil {
			f.failing.CompareAndSwap(t, nil)
			continue
		}
		if t != nil {
			list = append(list, *t)
		}
	}
	slices.SortFunc(list, func(a, b Trouble) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		return strings.Compare(string(a.Container), string(b.Container))
	})
	return list, len(r.followers)
}
