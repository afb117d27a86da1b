package sleep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sleep/ledger"
	"github.com/longshore/longshore/internal/sleep/pages"
	"github.com/longshore/longshore/internal/subprocess"
)

// undoTime bounds the removal of files, and serverTime the start and the end of a page server. It starts when the program
// that has put the container to sleep has ended, which may restore the pages first.
const (
	undoTime   = time.Minute
	serverTime = time.Minute
)

// waking is a running container with missing pages.
type waking struct {
	s      *Sleeper
	id     core.ID
	cgroup core.CgroupRef
	done   func(core.Woken)
	since  time.Time
	conn   *pages.Conn
	once   sync.Once
	ended  chan struct{} // closed by end
}

// Wake implements core.Sleeper.
func (s *Sleeper) Wake(ctx context.Context, id core.ID, cgroup core.CgroupRef, done func(core.Woken)) error {
	if s.swapped(id) != core.StageNone {
		return s.wakeFromSwap(ctx, id, cgroup, done)
	}
	phase, err := s.phase(id)
	if errors.Is(err, os.ErrNotExist) || err == nil && phase == ledger.Copying {
		phase, err = ledger.In, nil // no memory was freed
	}
	if err != nil {
		return err
	}
	if phase == ledger.In {
		if err := errors.Join(s.o.Cgroups.Freeze(ctx, cgroup, false), s.Forget(ctx, id)); err != nil {
			return err
		}
		done(core.Woken{})
		return nil
	}
	if err := s.adopt(ctx, id); err != nil {
		return err
	}
	w := &waking{s: s, id: id, cgroup: cgroup, done: done, since: time.Now(), ended: make(chan struct{})}
	if err := w.connect(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.wakes[id] = w
	s.mu.Unlock()
	if err := s.reach(id, ledger.Waking); err != nil {
		return err
	}
	if err := s.o.Cgroups.Freeze(ctx, cgroup, false); err != nil {
		return err
	}
	if s.o.Thawed != nil {
		s.o.Thawed(time.Since(w.since))
	}
	go w.follow() //nolint:gosec // it outlives the request
	return nil
}

func (s *Sleeper) reach(id core.ID, p ledger.Phase) error {
	f, err := os.OpenFile(filepath.Join(s.state(id), ledgerFile), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	l, err := ledger.Open(f)
	if err != nil {
		return err
	}
	l.Reach(p)
	return l.Close()
}

// connect connects to the container's page server, and starts one if there is none.
func (w *waking) connect(ctx context.Context) error {
	if w.dial() == nil {
		return nil
	}
	if err := w.start(ctx); err != nil {
		return err
	}
	if err := w.dial(); err != nil {
		return fmt.Errorf("the page server does not answer: %w; its output: %s", err, w.output())
	}
	return nil
}

// output returns the end of the server's log.
func (w *waking) output() string {
	f, err := os.Open(filepath.Join(w.s.state(w.id), logFile))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	b, _ := io.ReadAll(io.LimitReader(f, 1024))
	return string(b)
}

// dial connects to the server and waits for its first message.
func (w *waking) dial() error {
	dir, err := os.Open(w.s.state(w.id))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketFile), Net: "unixpacket"})
	if err != nil {
		return err
	}
	f, err := c.File()
	_ = c.Close()
	if err != nil {
		return err
	}
	conn, err := pages.NewConn(f)
	if err != nil {
		return err
	}
	late := time.AfterFunc(serverTime, func() { _ = conn.Close() })
	defer late.Stop()
	var t pages.Message
	fds, err := conn.Receive(&t)
	closeAll(fds)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	w.conn = conn
	return nil
}

// start starts a page server.
func (w *waking) start(ctx context.Context) error {
	s := w.s
	f, err := s.open(w.id, os.O_RDWR)
	if err != nil {
		return fmt.Errorf("the memory of the container: %w", errors.Join(core.ErrMemoryLost, err))
	}
	defer f.close()
	x, err := readIndex(f.index)
	if err != nil {
		return err
	}
	if _, err := f.index.Seek(0, io.SeekStart); err != nil {
		return err
	}
	spaces, err := s.held(ctx, w.id, len(x.Spaces))
	if err != nil {
		return err
	}
	defer closeFiles(spaces)
	dir, err := os.Open(s.state(w.id))
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := os.Remove(filepath.Join(s.state(w.id), socketFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), socketFile), Net: "unixpacket"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer func() { _ = l.Close() }()
	listener, err := l.File()
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	log, err := os.OpenFile(filepath.Join(s.state(w.id), logFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	first, err := s.first(w.id)
	if err != nil {
		return err
	}
	defer func() { _ = first.Close() }()
	cmd := subprocess.Daemon(s.o.Program, pages.ArgServe, itoa(len(spaces)))
	cmd.Env, cmd.Dir = environment(), "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = slices.Concat([]*os.File{listener}, f.list(), []*os.File{first}, spaces)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", s.o.Program, err)
	}
	go func() { _ = cmd.Wait() }() // follow sees its end
	return nil
}

// follow waits until all pages are restored, and starts the next server if one dies.
func (w *waking) follow() {
	for {
		var t pages.Message
		fds, err := w.conn.Receive(&t)
		select {
		case <-w.ended:
			closeAll(fds)
			return
		default:
		}
		if err != nil {
			if w.again() != nil {
				return
			}
			continue
		}
		switch t.Step {
		case pages.StepForked:
			w.s.keep(w.id, fds)
			ctx, cancel := context.WithTimeout(context.Background(), serverTime)
			if err := w.s.hold(ctx, w.id); err != nil {
				w.s.o.Logger.Warn("the keeper does not keep the memory of a process that a waking container has forked", "container", w.id, "error", err)
			}
			cancel()
		case pages.StepDone:
			w.finish(core.Woken{Faults: t.Faults, Pages: t.Pages, Took: time.Since(w.since)}, t.Touched)
			return
		case pages.StepShort, pages.StepDamaged:
			w.failed(t)
		}
	}
}

// again connects to the next server after one has died.
func (w *waking) again() error {
	_ = w.conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	w.s.o.Logger.Warn("the page server of a waking container has ended; another one continues", "container", w.id, "output", w.output())
	err := w.connect(ctx)
	if err != nil {
		w.done(core.Woken{Err: fmt.Errorf("no page server: %w", err)})
	}
	return err
}

// failed reports that a thread waits for a page that the server cannot restore.
func (w *waking) failed(t pages.Message) {
	err := errors.New(t.Error)
	if t.Step == pages.StepDamaged {
		err = fmt.Errorf("%w: %w", core.ErrMemoryLost, err)
	}
	w.done(core.Woken{Err: err, Short: t.Step == pages.StepShort})
}

// finish ends the server, and closes the descriptors. No page is missing.
func (w *waking) finish(woken core.Woken, touched []pages.Touch) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTime)
	defer cancel()
	w.stopServer()
	hot := w.s.touched(w.id, touched)
	if err := w.s.Forget(ctx, w.id); err != nil {
		w.s.o.Logger.Warn("could not remove the files of a container that has woken; the next recovery does", "container", w.id, "error", err)
	}
	w.s.mu.Lock()
	w.s.hot[w.id] = hot // until the container ends
	w.s.faults += woken.Faults
	w.s.mu.Unlock()
	if w.s.o.Woken != nil {
		w.s.o.Woken(woken.Took)
	}
	w.done(woken)
}

// stopServer ends the server and waits for its end. As long as it has the descriptors, the container cannot sleep again.
func (w *waking) stopServer() {
	err := w.conn.Send(pages.Ask{Step: pages.AskEnd})
	late := time.AfterFunc(serverTime, func() { _ = w.conn.Close() })
	defer late.Stop()
	for err == nil {
		var fds []int
		fds, err = w.conn.Receive(&pages.Message{})
		closeAll(fds)
	}
}

// end ends the server. The caller must be sure that no page is missing, or that the processes are dead.
func (w *waking) end() {
	w.once.Do(func() {
		close(w.ended)
		if w.conn != nil {
			_ = w.conn.Send(pages.Ask{Step: pages.AskEnd})
			_ = w.conn.Close()
		}
	})
}

// Stage implements core.Sleeper.
func (s *Sleeper) Stage(ctx context.Context, id core.ID) (core.SleepStage, error) {
	if stage := s.swapped(id); stage != core.StageNone {
		return stage, nil
	}
	phase, err := s.phase(id)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return core.StageNone, nil
	case err != nil:
		return 0, fmt.Errorf("%w: %w", core.ErrMemoryLost, err)
	case phase == ledger.In, phase == ledger.Copying:
		return core.StageAwake, nil
	case phase == ledger.Waking:
		return core.StageWaking, nil
	}
	f, err := s.open(id, os.O_RDONLY)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", core.ErrMemoryLost, err)
	}
	defer f.close()
	x, err := readIndex(f.index)
	if err != nil {
		return 0, err
	}
	files, err := s.held(ctx, id, len(x.Spaces))
	closeFiles(files)
	return core.StageAsleep, err
}

// readIndex reads the index of a container's pages.
func readIndex(f *os.File) (*ledger.Index, error) {
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	x, err := ledger.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", core.ErrMemoryLost, err)
	}
	return x, nil
}
