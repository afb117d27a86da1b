package logs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/shortage"
	"github.com/longshore/longshore/internal/weaken"
)

// watch wakes one reader when its file grows, and when a file of its sink appears, is renamed or
// is removed. All watches of the process share one inotify instance: a user has 128 of them.
//
// Any program with uid 0 in the same user namespace, also one in a container, can use up all
// instances and watches of uid 0. A watch that gets none wakes its reader at regular intervals.
type watch struct {
	n    *notifier // nil if it gets no notifications
	poll *time.Ticker
	dir  int32
	file int32  // that of the file that is being read; noFile before there is one
	name string // the beginning of the names of the sink's files
	wake chan struct{}
}

const noFile = -1

// The inotify events that wake a watch: of its directory, and of its file.
const (
	dirMask  = unix.IN_CREATE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE
	fileMask = unix.IN_MODIFY
)

// newWatch watches the directory of a sink.
func newWatch(sink core.Sink) (*watch, error) {
	dir, err := openDir(sink)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	name := filepath.Base(sink.Path)
	if sink.Numbered {
		name = strings.TrimSuffix(name, filepath.Ext(name))
	}
	w := &watch{file: noFile, name: name, wake: make(chan struct{}, 1)}
	if w.n, err = instances.enter(); err == nil {
		if w.dir, err = w.n.add(w, dir, dirMask); err != nil {
			w.leave()
		}
	}
	if usedUp(err) {
		w.pollInstead()
		err = nil
	}
	if err != nil {
		return nil, err
	}
	return w, nil
}

// pollAfter is how long a reader waits for new lines at most when it gets no notifications.
const pollAfter = 200 * time.Millisecond

// usedUp reports whether an error means that there are no instances or no watches left.
func usedUp(err error) bool {
	return (shortage.Is(err) || errors.Is(err, unix.ENOSPC)) && !weaken.Off(weaken.InotifyPolling)
}

// pollInstead has the reader woken at regular intervals.
func (w *watch) pollInstead() { w.poll = time.NewTicker(pollAfter) }

// leave gives up the notifications.
func (w *watch) leave() {
	if w.n != nil {
		instances.leave(w.n)
		w.n = nil
	}
}

// use watches f from now on, and no other file.
func (w *watch) use(f *os.File) error {
	if w.n == nil {
		return nil
	}
	// The other way round, the watch that is wanted would go when it is the same file.
	wd, err := w.n.add(w, f, fileMask)
	if usedUp(err) {
		w.n.remove(w, w.file)
		w.n.remove(w, w.dir)
		w.leave()
		w.pollInstead()
		return nil
	}
	if err != nil {
		return err
	}
	if w.file != wd {
		w.n.remove(w, w.file)
	}
	w.file = wd
	return nil
}

// wait returns when something may be new, or when ended is closed.
func (w *watch) wait(ctx context.Context, ended <-chan struct{}) error {
	var poll <-chan time.Time
	if w.poll != nil {
		poll = w.poll.C
	}
	select {
	case <-poll:
		return nil
	case <-w.wake:
		if w.n == nil {
			return nil
		}
		return w.n.failed()
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *watch) notify() {
	select {
	case w.wake <- struct{}{}:
	default: // one wake-up is already pending
	}
}

func (w *watch) close() {
	if w.poll != nil {
		w.poll.Stop()
	}
	if w.n == nil {
		return
	}
	w.n.remove(w, w.file)
	w.n.remove(w, w.dir)
	w.leave()
}

// instance has the notifier of the process while anything is watched.
type instance struct {
	mu    sync.Mutex // guards now, users
	now   *notifier
	users int
}

var instances instance //nolint:gochecknoglobals // see watch: the limit is one of all

func (i *instance) enter() (*notifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.now == nil {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return nil, os.NewSyscallError("inotify_init1", err)
		}
		n := &notifier{f: os.NewFile(uintptr(fd), "inotify"), fd: fd, watches: map[int32]map[*watch]struct{}{}}
		i.now = n
		go n.read()
	}
	i.users++
	return i.now, nil
}

// leave ends the notifier with its last user. Nobody waits for the close: the kernel needs a grace period of some 15 ms for it.
func (i *instance) leave(n *notifier) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.users--; i.users > 0 {
		return
	}
	i.now = nil
	go func() { _ = n.f.Close() }()
}

// notifier is an inotify instance.
type notifier struct {
	f  *os.File
	fd int // f's

	mu      sync.Mutex // guards watches, err
	watches map[int32]map[*watch]struct{}
	err     error // why nothing more is read
}

// add watches a file or a directory for w.
func (n *notifier) add(w *watch, f *os.File, mask uint32) (int32, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	// One that is watched already has the same number again.
	wd, err := unix.InotifyAddWatch(n.fd, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), mask|unix.IN_MASK_ADD)
	if err != nil {
		return 0, os.NewSyscallError("inotify_add_watch", err)
	}
	if n.watches[int32(wd)] == nil {
		n.watches[int32(wd)] = map[*watch]struct{}{}
	}
	n.watches[int32(wd)][w] = struct{}{}
	return int32(wd), nil
}

// remove takes w's interest back.
func (n *notifier) remove(w *watch, wd int32) {
	n.mu.Lock()
	defer n.mu.Unlock()
	of := n.watches[wd]
	if delete(of, w); of == nil || len(of) > 0 {
		return
	}
	delete(n.watches, wd)
	_, _ = unix.InotifyRmWatch(n.fd, uint32(wd)) // it may be gone with its file
}

func (n *notifier) failed() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.err
}

// read wakes watches until f is closed.
func (n *notifier) read() {
	buf := make([]byte, 16<<10)
	for {
		got, err := n.f.Read(buf)
		n.tell(buf[:got], err)
		if err != nil {
			return
		}
	}
}

// tell wakes the watches of the events of one read.
func (n *notifier) tell(events []byte, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		wd, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
		end := min(unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(events[12:])), len(events))
		name, _, _ := bytes.Cut(events[unix.SizeofInotifyEvent:end], []byte{0})
		events = events[end:]
		if mask&unix.IN_Q_OVERFLOW != 0 {
			n.all()
			continue
		}
		for w := range n.watches[wd] {
			if mask&dirMask == 0 || strings.HasPrefix(string(name), w.name) {
				w.notify()
			}
		}
		if mask&unix.IN_IGNORED != 0 { // the watched file is gone
			delete(n.watches, wd)
		}
	}
	if err != nil {
		n.err = err
		n.all()
	}
}

// all wakes everybody. Preconditions: mu is held.
func (n *notifier) all() {
	for _, of := range n.watches {
		for w := range of {
			w.notify()
		}
	}
}
