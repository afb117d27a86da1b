package kernel

import "golang.org/x/sys/unix"

// Waiter tells an event loop, by an eventfd, that a child has ended. It looks only
// when armed, so that a child that stays unreaped for a while does not keep it busy.
type Waiter struct {
	FD   int
	arms chan struct{}
}

// NewWaiter starts a Waiter, unarmed.
func NewWaiter() (*Waiter, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &Waiter{FD: fd, arms: make(chan struct{}, 1)}
	go w.run()
	return w, nil
}

func (w *Waiter) run() {
	for range w.arms {
		// After ECHILD, the code that makes the next child arms the waiter again.
		if _, err := Peek(0, true); err == nil {
			Poke(w.FD)
		}
	}
}

// Arm makes the Waiter look for an ended child. Call it after each fork and each
// reaping.
func (w *Waiter) Arm() {
	select {
	case w.arms <- struct{}{}:
	default:
	}
}
