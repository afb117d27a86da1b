// Package kills tells when the kernel kills processes of a cgroup for want of memory, as
// it happens.
//
// The kernel counts such kills in a file of the cgroup. It announces changes of that file
// of cgroup v2 by inotify, and on v1 a shortage of memory by an eventfd; the file is read
// then. One inotify serves all cgroups, since a user may have few of them. Where containers have
// used up those that uid 0 may have, the file is read at regular intervals. Start at Watch.
package kills

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/shortage"
)

// v1Counter is the name of the file of v1; a file of another name is v2's.
const v1Counter = "memory.oom_control"

// Watcher watches cgroups. The zero value watches none.
type Watcher struct {
	mu      sync.Mutex // guards inotify, watches, closed
	inotify *os.File   // nil before the first cgroup of v2
	watches map[*Watch]bool
	closed  bool
	readers sync.WaitGroup
}

// Watch is a cgroup that is watched.
type Watch struct {
	counter string
	grown   func(kills uint64)
	of      *Watcher
	number  int      // inotify's
	event   *os.File // v1's
	ended   chan struct{}

	mu      sync.Mutex // guards last, stopped; serializes calls of grown
	last    uint64
	stopped bool
}

// Watch calls grown with the number of kills in a cgroup when it has grown, until Stop.
// Counter is the file with the number, memory.events or memory.oom_control. Grown must not
// call the watch.
func (w *Watcher) Watch(counter string, grown func(kills uint64)) (*Watch, error) {
	one := &Watch{counter: counter, grown: grown, of: w, number: -1, ended: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, os.ErrClosed
	}
	var err error
	if filepath.Base(counter) == v1Counter {
		err = w.listenLocked(one)
	} else {
		err = w.notifyLocked(one)
		if shortage.Is(err) || errors.Is(err, unix.ENOSPC) {
			err = nil
			w.readers.Go(one.poll)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", counter, err)
	}
	if w.watches == nil {
		w.watches = map[*Watch]bool{}
	}
	w.watches[one] = true
	one.look() // for earlier kills
	return one, nil
}

// listenLocked has the kernel write to an eventfd of v1 when memory is short.
func (w *Watcher) listenLocked(one *Watch) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return err
	}
	event := os.NewFile(uintptr(fd), "eventfd")
	if err := register(one.counter, fd); err != nil {
		_ = event.Close()
		return err
	}
	one.event = event
	w.readers.Go(one.read)
	return nil
}

// register registers an eventfd for a file of v1.
func register(counter string, event int) error {
	file, err := os.Open(counter)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	control, err := os.OpenFile(filepath.Join(filepath.Dir(counter), "cgroup.event_control"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(control, "%d %d", event, file.Fd())
	return errors.Join(err, control.Close())
}

// The kernel of v1 announces a shortage before it kills: the counter is read again after
// these times, and then with the next announcement.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 2 * time.Second
)

// read reads the announcements of v1, until the watch is stopped or the cgroup has gone.
func (o *Watch) read() {
	var b [8]byte
	for {
		if _, err := o.event.Read(b[:]); err != nil {
			return
		}
		for pause := firstLook; pause < lastLook; pause *= 2 {
			grew, there := o.look()
			if !there {
				return
			}
			if grew {
				break
			}
			select {
			case <-time.After(pause):
			case <-o.ended:
				return
			}
		}
	}
}

// poll reads the counter at regular intervals, until the watch is stopped or the cgroup has gone.
func (o *Watch) poll() {
	tick := time.NewTicker(pollAfter)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-o.ended:
			return
		}
		if _, there := o.look(); !there {
			return
		}
	}
}

// pollAfter is the longest delay of a kill's report if inotify misses it.
const pollAfter = 500 * time.Millisecond

// notifyLocked adds an inotify watch of a file of v2.
func (w *Watcher) notifyLocked(one *Watch) error {
	if w.inotify == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return fmt.Errorf("inotify: %w", err)
		}
		inotify := os.NewFile(uintptr(fd), "inotify")
		w.inotify = inotify
		w.readers.Go(func() { w.read(inotify) })
	}
	raw, err := w.inotify.SyscallConn()
	if err != nil {
		return err
	}
	cerr := raw.Control(func(fd uintptr) {
		one.number, err = unix.InotifyAddWatch(int(fd), one.counter, unix.IN_MODIFY)
	})
	return errors.Join(cerr, err)
}

// read reads inotify until it is closed.
func (w *Watcher) read(inotify *os.File) {
	var b [4096]byte
	for {
		n, err := inotify.Read(b[:])
		if err != nil {
			return
		}
		grown := map[int]bool{}
		for rest := b[:n]; len(rest) >= unix.SizeofInotifyEvent; {
			grown[int(int32(binary.NativeEndian.Uint32(rest)))] = true
			name := binary.NativeEndian.Uint32(rest[12:]) // a file has none
			rest = rest[min(len(rest), unix.SizeofInotifyEvent+int(name)):]
		}
		const overflow = -1
		w.mu.Lock()
		var look []*Watch
		for one := range w.watches {
			if grown[one.number] || grown[overflow] {
				look = append(look, one)
			}
		}
		w.mu.Unlock()
		for _, one := range look {
			one.look()
		}
	}
}

// look reads the counter. It reports whether it has grown, and whether it exists.
func (o *Watch) look() (grew, there bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := read(o.counter)
	if err != nil {
		return false, false
	}
	if o.stopped || n <= o.last {
		return false, true
	}
	o.last = n
	o.grown(n)
	return true, true
}

// Stop ends the watch, after a last look, and returns the number of reported kills.
func (o *Watch) Stop() uint64 {
	o.look()
	o.mu.Lock()
	first := !o.stopped
	o.stopped = true
	last := o.last
	o.mu.Unlock()
	if !first {
		return last
	}
	close(o.ended)
	o.of.drop(o)
	return last
}

// drop removes a watch, also from the kernel.
func (w *Watcher) drop(o *Watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watches, o)
	if o.event != nil {
		_ = o.event.Close() // which ends its reader
		return
	}
	if w.inotify == nil || o.number < 0 {
		return
	}
	if raw, err := w.inotify.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_, _ = unix.InotifyRmWatch(int(fd), uint32(o.number)) // it went with its cgroup
		})
	}
}

// Close stops all watches.
func (w *Watcher) Close() {
	w.mu.Lock()
	w.closed = true
	var all []*Watch
	for one := range w.watches {
		all = append(all, one)
	}
	w.mu.Unlock()
	for _, one := range all {
		one.Stop()
	}
	w.mu.Lock()
	if w.inotify != nil {
		_ = w.inotify.Close() // which ends its reader
	}
	w.mu.Unlock()
	w.readers.Wait()
}

// read returns the number of kills that a counter has.
func read(counter string) (uint64, error) {
	b, err := os.ReadFile(counter)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
			return strconv.ParseUint(n, 10, 64)
		}
	}
	return 0, nil // the kernel is older than the counter
}
