package server

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/stdio"
)

// watcher notices when a reader opens a FIFO of a process that has ended. Without an inotify
// instance it polls at regular intervals: any program with uid 0 in the same user namespace can use
// up all instances that uid 0 may have.
type watcher struct {
	fd    int // -1 for none
	waits []wait
	next  time.Time // when to look next, without inotify
}

type wait struct {
	wd   int // -1 if inotify does not watch it
	p    *proc
	sink *stdio.Sink
}

// lookAfter is how long a reader waits at most for a FIFO's end without inotify.
const lookAfter = 200 * time.Millisecond

// open opens the inotify instance. The keeper keeps it for all its life, so that it has one when
// others have used up the rest.
func (w *watcher) open(s *Server) {
	var err error
	if w.fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK); err != nil {
		logLine("inotify: " + err.Error() + "; looking for readers of FIFOs at intervals")
		w.fd = -1
		return
	}
	s.add(w.fd, w, unix.EPOLLIN)
}

// waitFor has the FIFOs closed once a reader has opened them.
func (w *watcher) waitFor(p *proc, sinks []*stdio.Sink) {
	for _, k := range sinks {
		if k.Served() {
			continue
		}
		wd := -1
		if w.fd >= 0 {
			if n, err := unix.InotifyAddWatch(w.fd, "/proc/self/fd/"+kernel.Itoa(k.FIFO()), unix.IN_OPEN); err == nil {
				wd = n
			}
		}
		if !k.Served() { // watch first, then look again, so that no reader is missed
			w.waits = append(w.waits, wait{wd, p, k})
		}
	}
}

// ready checks all waiting FIFOs: a reader may have opened any of them.
func (w *watcher) ready(s *Server, _ uint32) {
	var buf [4096]byte
	if n, err := unix.Read(w.fd, buf[:]); err != nil || n <= 0 {
		return
	}
	w.look(s)
}

func (w *watcher) look(s *Server) {
	left := w.waits[:0]
	for _, x := range w.waits {
		if !x.sink.Served() {
			left = append(left, x)
			continue
		}
		w.unwatch(x)
		x.p.save(s)
	}
	w.waits = left
}

// wait returns for how many milliseconds the loop may sleep until poll has something to do; -1
// means for ever.
func (w *watcher) wait() int {
	for _, x := range w.waits {
		if x.wd < 0 {
			return int(max(0, time.Until(w.next))/time.Millisecond) + 1
		}
	}
	return -1
}

// poll checks the FIFOs that inotify does not watch.
func (w *watcher) poll(s *Server) {
	if w.wait() < 0 || time.Now().Before(w.next) {
		return
	}
	w.next = time.Now().Add(lookAfter)
	w.look(s)
}

func (w *watcher) unwatch(x wait) {
	if x.wd >= 0 {
		_, _ = unix.InotifyRmWatch(w.fd, uint32(x.wd))
	}
}

func (w *watcher) forget(p *proc) {
	left := w.waits[:0]
	for _, x := range w.waits {
		if x.p == p {
			w.unwatch(x)
		} else {
			left = append(left, x)
		}
	}
	w.waits = left
}
