//go:build !amd64

package tracee

import "errors"

// Supported says that the package works on this architecture.
const Supported = false

var errUnsupported = errors.New("a sleep is not possible on this architecture yet")

type saved struct{}

func (p *Process) caller() *thread {
	if len(p.threads) == 0 {
		return nil
	}
	return p.threads[0]
}

// Places returns addresses that the threads use first when they continue.
func (p *Process) Places() []uint64 { return nil }

func (t *thread) save() (*saved, error) { return nil, errUnsupported }

func (t *thread) call(*saved, uintptr, []uint64) (uint64, error) { return 0, errUnsupported }

func (t *thread) restore(*saved) error { return errUnsupported }
