package pin

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spareAge is how long a spare network namespace is kept. A new one takes its
// settings from the host's at birth, so that an old one would miss a change of
// those; and a node on which nothing starts needs none.
const spareAge = 30 * time.Second

// spareDelay is how long after one was taken the next is made: when whatever it
// was taken for runs, in most cases. Making one takes a processor for a third of
// that, and locks that a start needs too.
const spareDelay = 2500 * time.Microsecond

// Spare keeps one network namespace ready that nothing is or was in. The kernel
// takes longer to make one than all else that a small container is apart by;
// this way it does so beside a start, and not before the next. Nothing holds it
// but a descriptor: it is gone with the agent, however that ends.
type Spare struct {
	mu     sync.Mutex // guards file, making, closed, old
	file   *os.File   // nil when there is none
	making bool
	closed bool
	old    *time.Timer // drops file
}

// NewSpare returns a Spare that has none yet: Take has the first one made.
func NewSpare() *Spare { return &Spare{} }

// Take returns a namespace that is the caller's alone, to be closed, or nil when
// there is none just now. Another is then made for the next caller.
func (s *Spare) Take() *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	file := s.file
	s.file = nil
	if s.old != nil {
		s.old.Stop()
	}
	if !s.making && !s.closed {
		s.making = true
		time.AfterFunc(spareDelay, s.make)
	}
	return file
}

func (s *Spare) make() {
	file, err := newNetwork()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making = false
	switch {
	case err != nil: // whoever needs one now makes it, and says why that fails
	case s.closed:
		_ = file.Close()
	default:
		s.file = file
		s.old = time.AfterFunc(spareAge, func() { s.drop(file) })
	}
}

func (s *Spare) drop(file *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.file == file {
		s.file = nil
		_ = file.Close()
	}
}

// Close lets go of the one that is ready.
func (s *Spare) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	file := s.file
	if s.file = nil; file == nil {
		return nil
	}
	s.old.Stop()
	return file.Close()
}

// newNetwork makes a network namespace as the kernel makes it. Its thread goes
// back to where it was and is used on: one is wanted at every start.
func newNetwork() (file *os.File, err error) {
	err = onThread(func() error {
		here := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		own, err := os.Open(here)
		if err != nil {
			return err
		}
		defer func() { _ = own.Close() }()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if file, err = os.Open(here); err != nil {
			return err
		}
		if unix.Setns(int(own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		return nil
	})
	return file, err
}
