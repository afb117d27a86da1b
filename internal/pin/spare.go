package pin

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// spareAge is how long a spare network namespace is kept. A new one copies settings of the host
// when it is made, so an old one would miss later changes; and a node without starts needs none.
const spareAge = 30 * time.Second

// spareDelay is how long after one was taken the next one is made. By then the container that took
// it usually runs. Making a namespace keeps a processor busy for a third of that time, and holds
// locks that a start needs too.
const spareDelay = 2500 * time.Microsecond

// Spare keeps one unused network namespace ready. The kernel takes longer to make a
// network namespace than all other namespaces of a small container; this way it makes it
// between two starts instead of during one. Only a descriptor holds it, so it goes with
// the agent, however that ends.
type Spare struct {
	mu     sync.Mutex // guards file, making, closed, old
	file   *os.File   // nil if there is none
	making bool
	closed bool
	old    *time.Timer // drops file
}

// NewSpare returns an empty Spare: the first Take makes one.
func NewSpare() *Spare { return &Spare{} }

// Take returns a namespace that only the caller has, and has to close, or nil if there
// is none. Another one is then made for the next caller.
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
	case err != nil: // a container that needs one makes it itself, and reports why that fails
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

// Close closes the spare namespace.
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

// newNetwork makes a network namespace and leaves it as the kernel makes it. Its thread
// returns to its old namespace and is used further, because this happens for every
// start.
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
