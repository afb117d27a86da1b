// Package handover passes listening sockets from one program of the agent to the next one, which executes in the same process, so that
// no client finds a closed port in between. Start at Sockets.
//
// The packages with listening sockets open them by Listen, with the Sockets of the context. Pass prepares the descriptors for the next
// program, which calls Read.
package handover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Variable is the environment variable with the Passed of the next program.
const Variable = "LONGSHORE_HANDOVER"

// maxPassed is the limit of sockets that a program accepts.
const maxPassed = 1024

// Passed is the value of Variable, in JSON.
type Passed struct {
	// Sockets has the descriptor of each socket, by its key.
	Sockets map[string]int `json:"sockets"`
	// Before is the descriptor of the program before; 0 is none. If the next program cannot start, it executes that one.
	Before int `json:"before,omitempty"`
	// Failure is the reason why the program before has returned.
	Failure string `json:"failure,omitempty"`
}

// ParsePassed parses the value of Variable; "" is nothing. InvalidArgument for one that no agent has made.
func ParsePassed(value string) (p Passed, err error) {
	if value == "" {
		return p, nil
	}
	d := json.NewDecoder(strings.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Passed{}, fmt.Errorf("%s: %w: %w", Variable, err, errdefs.ErrInvalidArgument)
	}
	seen := map[int]bool{p.Before: true}
	for key, fd := range p.Sockets {
		if fd <= 2 || seen[fd] || key == "" || len(p.Sockets) > maxPassed {
			return Passed{}, fmt.Errorf("%s: descriptor %d of %q, among %d: %w", Variable, fd, key, len(p.Sockets), errdefs.ErrInvalidArgument)
		}
		seen[fd] = true
	}
	if p.Before != 0 && p.Before <= 2 || d.More() {
		return Passed{}, fmt.Errorf("%s: %q: %w", Variable, value, errdefs.ErrInvalidArgument)
	}
	return p, nil
}

// Sockets are the listening sockets of an agent: those that the program before has passed, until they are used, and those
// that are open. A nil *Sockets passes none.
type Sockets struct {
	mu    sync.Mutex // guards given, open
	given map[string]net.Listener
	open  map[string]net.Listener
	// continues says that there was a program before.
	continues bool
}

// Read takes the sockets of a Passed.
func Read(p Passed) (*Sockets, error) {
	s := &Sockets{given: map[string]net.Listener{}, open: map[string]net.Listener{}, continues: len(p.Sockets) > 0}
	for key, fd := range p.Sockets {
		l, err := duplicate(fd, key)
		if err != nil {
			s.Close()
			return nil, fmt.Errorf("the socket %s of the program before: %w", key, err)
		}
		s.given[key] = l
	}
	if p.Before > 0 {
		unix.CloseOnExec(p.Before)
	}
	return s, nil
}

// duplicate returns a listener with a duplicate of a descriptor, which itself is closed on execution from now on.
func duplicate(fd int, key string) (net.Listener, error) {
	unix.CloseOnExec(fd)
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), key)
	l, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	return l, nil
}

// Again returns the Passed for the program before, after this one has failed with err.
func (p Passed) Again(err error) Passed {
	back := Passed{Sockets: map[string]int{}, Failure: err.Error()}
	for key, fd := range p.Sockets {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil { // an unknown descriptor may be the reason of err
			back.Sockets[key] = fd
		}
	}
	return back
}

// Close closes the passed descriptors. Sockets has duplicates of them.
func (p Passed) Close() {
	for _, fd := range p.Sockets {
		_ = unix.Close(fd)
	}
	if p.Before > 0 {
		_ = unix.Close(p.Before)
	}
}

// Close closes the sockets of the program before that nobody has used.
func (s *Sockets) Close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.given {
		_ = l.Close()
		delete(s.given, key)
	}
}

// ErrNext is the cause of a context's end when the next program continues the work. It is a context.Canceled.
var ErrNext = fmt.Errorf("the next program continues: %w", context.Canceled)

// nextDrain is the time of Drain for the next program.
const nextDrain = 100 * time.Millisecond

// Drain returns how long calls under way may take to end, after ctx has: at most usual, and only a moment when the next program waits
// for it, because new clients wait meanwhile.
func Drain(ctx context.Context, usual time.Duration) time.Duration {
	if errors.Is(context.Cause(ctx), ErrNext) {
		return min(usual, nextDrain)
	}
	return usual
}

type contextKey struct{}

// With returns a context with the sockets.
func With(ctx context.Context, s *Sockets) context.Context {
	return context.WithValue(ctx, contextKey{}, s)
}

// From returns the sockets of a context; nil if it has none.
func From(ctx context.Context) *Sockets {
	s, _ := ctx.Value(contextKey{}).(*Sockets)
	return s
}

// Continues reports whether this program continues the work of one before: its clients have found no closed port.
func Continues(ctx context.Context) bool {
	s := From(ctx)
	return s != nil && s.continues
}

// Listen returns the socket of this key: that of the program before, or the one that open makes. A key has the socket's
// address, so that a changed configuration opens another one.
func Listen(ctx context.Context, key string, open func() (net.Listener, error)) (net.Listener, error) {
	s := From(ctx)
	if l := s.take(key); l != nil {
		return l, nil
	}
	l, err := open()
	if err == nil {
		s.Add(key, l)
	}
	return l, err
}

// take returns the socket of the program before, or nil.
func (s *Sockets) take(key string) net.Listener {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.given[key]
	if !ok {
		return nil
	}
	delete(s.given, key)
	s.open[key] = l
	return l
}

// TakeAll returns the sockets of the program before with this prefix in their keys.
func (s *Sockets) TakeAll(prefix string) map[string]net.Listener {
	all := map[string]net.Listener{}
	if s == nil {
		return all
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.given {
		if strings.HasPrefix(key, prefix) {
			all[key] = l
			delete(s.given, key)
		}
	}
	return all
}

// Add adds an open socket, for the next program. A later one of the same key replaces it.
func (s *Sockets) Add(key string, l net.Listener) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[key] = l
}

// Pass returns descriptors of the open sockets for Execute, without those that have been closed. Other programs that start
// meanwhile do not inherit them. The caller executes the next program, or closes them with undo.
func (s *Sockets) Pass() (fds map[string]int, undo func()) {
	fds = map[string]int{}
	undo = func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	if s == nil {
		return fds, undo
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.open {
		c, ok := l.(syscall.Conn)
		if !ok {
			continue
		}
		raw, err := c.SyscallConn()
		if err != nil {
			continue
		}
		_ = raw.Control(func(fd uintptr) {
			if n, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, firstPassed); err == nil {
				fds[key] = n
			}
		})
	}
	return fds, undo
}

// firstPassed is above the standard descriptors and those that systemd may pass.
const firstPassed = 64

// Execute replaces this program by the one at path, which inherits p. It returns only if that fails.
func Execute(path string, args, env []string, p Passed) error {
	value, err := json.Marshal(p)
	if err != nil {
		return err
	}
	syscall.ForkLock.Lock() // no other program that starts now may inherit them
	defer syscall.ForkLock.Unlock()
	p.inherit(0)
	err = unix.Exec(path, args, append(without(env, Variable), Variable+"="+string(value)))
	p.inherit(unix.FD_CLOEXEC)
	return err
}

// inherit sets the flags of all descriptors.
func (p Passed) inherit(flags int) {
	for _, fd := range p.Sockets {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags)
	}
	if p.Before > 0 {
		_, _ = unix.FcntlInt(uintptr(p.Before), unix.F_SETFD, flags)
	}
}

// without returns env without a variable.
func without(env []string, name string) (rest []string) {
	for _, e := range env {
		if !strings.HasPrefix(e, name+"=") {
			rest = append(rest, e)
		}
	}
	return rest
}

// Program opens the program of this process, for Passed.Before.
func Program() (fd int, err error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, firstPassed)
}

// Reap waits for the children of the program before, so that none stays as a zombie. It returns at once.
func Reap() {
	// After an execution they are children of the first thread.
	f, err := os.Open(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, 1<<16))
	if err != nil {
		return
	}
	for _, word := range strings.Fields(string(b)) {
		var pid int
		if _, err := fmt.Sscan(word, &pid); err == nil {
			go func() {
				_, _ = unix.Wait4(pid, nil, 0, nil)
			}()
		}
	}
}
