// Package sleep implements core.Sleeper. It starts the programs of package pages, and passes the descriptors
// of the sleeping processes to a core.Holder. Start at Sleeper.
package sleep

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sleep/doorbell"
	"github.com/longshore/longshore/internal/sleep/ledger"
	"github.com/longshore/longshore/internal/sleep/pages"
	"github.com/longshore/longshore/internal/subprocess"
)

// Options are a Sleeper's.
type Options struct {
	Program string // the path of longshore-pages
	// Root is the directory of the memory of sleeping containers, State that of the ledgers. State need not
	// survive a boot.
	Root, State string
	Cgroups     core.Cgroups
	Holder      core.Holder
	// Limit bounds the file of a container in bytes; 0 is no limit. Reserve is how many bytes of the file
	// system stay free.
	Limit, Reserve uint64
	// Swap prefers the node's swap, where it has room for a container's memory, to a file.
	Swap   bool
	Logger *slog.Logger
	// Thawed gets the time from a wake until the processes ran, and Woken until all pages were restored. Both may be nil.
	Thawed, Woken func(took time.Duration)
}

// Sleeper implements core.Sleeper.
type Sleeper struct {
	o Options

	mu    sync.Mutex                 // guards kept, wakes, bells, hot, faults
	kept  map[core.ID][]int          // descriptors of address spaces, beside the holder's
	wakes map[core.ID]*waking        // page servers
	bells map[core.ID]*doorbell.Bell // of containers that are watched
	hot   map[core.ID]*hot           // the pages that are restored first

	faults uint64 // of all complete wakes
}

var _ core.Sleeper = (*Sleeper)(nil)

// New returns a Sleeper.
func New(o Options) *Sleeper {
	return &Sleeper{o: o, kept: map[core.ID][]int{}, wakes: map[core.ID]*waking{}, bells: map[core.ID]*doorbell.Bell{}, hot: map[core.ID]*hot{}}
}

// Faults returns how many faults all complete wakes since the start of the agent had.
func (s *Sleeper) Faults() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

// holdPrefix starts the names in the holder, and perName is how many descriptors it keeps under each.
const (
	holdPrefix = "sleep/"
	perName    = 4
)

func (s *Sleeper) root(id core.ID) string  { return filepath.Join(s.o.Root, string(id)) }
func (s *Sleeper) state(id core.ID) string { return filepath.Join(s.o.State, string(id)) }

// The names of the files in a container's directories.
const (
	pagesFile  = "pages"
	indexFile  = "index"
	ledgerFile = "ledger"
	socketFile = "socket"
	logFile    = "log"
)

// Sleep implements core.Sleeper.
func (s *Sleeper) Sleep(ctx context.Context, id core.ID, cgroup core.CgroupRef) (core.Slept, error) {
	if s.o.Swap {
		if slept, done, err := s.toSwap(ctx, id, cgroup); done || err != nil {
			return slept, err
		}
	}
	if err := s.room(); err != nil {
		return core.Slept{}, err
	}
	return (&rest{s: s, id: id, cgroup: cgroup}).run(ctx)
}

// room fails if the file system has no room for any file.
func (s *Sleeper) room() error {
	if err := os.MkdirAll(s.o.Root, 0o700); err != nil {
		return err
	}
	free, err := s.free()
	if err == nil && free == 0 {
		err = fmt.Errorf("%s has less than %d MiB of free space: %w", s.o.Root, s.o.Reserve>>20, errdefs.ErrResourceExhausted)
	}
	return err
}

// free returns how many bytes the files may take.
func (s *Sleeper) free() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.o.Root, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", s.o.Root, err)
	}
	free := st.Bavail * uint64(st.Bsize)
	free -= min(free, s.o.Reserve)
	if s.o.Limit > 0 {
		free = min(free, s.o.Limit)
	}
	return free, nil
}

// rest is one container that goes to sleep.
type rest struct {
	s      *Sleeper
	id     core.ID
	cgroup core.CgroupRef
}

func (r *rest) freeze(ctx context.Context, frozen bool) error {
	return r.s.o.Cgroups.Freeze(ctx, r.cgroup, frozen)
}

// run starts the program, and does the parts of its work that need the cgroup. The cgroup is frozen while the
// program traces the processes, because a process could fork meanwhile, and at the end.
func (r *rest) run(ctx context.Context) (slept core.Slept, err error) {
	s := r.s
	limit, err := s.free()
	if err != nil {
		return slept, err
	}
	files, err := s.create(r.id)
	if err != nil {
		return slept, err
	}
	defer files.close()
	if err := r.freeze(ctx, true); err != nil {
		return slept, err
	}
	pids, err := s.o.Cgroups.Pids(ctx, r.cgroup)
	if err != nil {
		return slept, err
	}
	conn, ended, err := s.start(files)
	if err != nil {
		return slept, err
	}
	defer func() {
		_ = conn.Close()
		<-ended // the program releases the threads first
	}()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if err := conn.Send(pages.Ask{Pids: pids, Limit: int64(min(limit, 1<<62))}); err != nil {
		return slept, err
	}
	for {
		var t pages.Message
		fds, err := conn.Receive(&t)
		if err == nil && t.Step == "" {
			switch err = errors.New(t.Error); {
			case t.Refused:
				err = fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
			case t.Full:
				err = fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
			}
		}
		if err != nil {
			closeAll(fds)
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			} else if errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
				err = fmt.Errorf("the program that frees its memory has died: %w", errdefs.ErrUnavailable)
			}
			return slept, err
		}
		switch t.Step {
		case pages.StepSeized:
			err = r.freeze(ctx, false)
		case pages.StepOpened:
			if s.keep(r.id, fds) < t.Spaces {
				continue // more of them follow
			}
			err = s.hold(ctx, r.id)
		case pages.StepDropped:
			err = r.freeze(ctx, true)
		case pages.StepDone:
			s.fellAsleep(r.id, t.Touched)
			return result(t.Report), nil
		}
		if err != nil {
			return slept, err
		}
		if err := conn.Send(pages.Ask{Step: t.Step}); err != nil {
			return slept, err
		}
	}
}

// result translates the program's report.
func result(r pages.Report) core.Slept {
	slept := core.Slept{Processes: r.Processes, Given: r.Given, Stored: r.Stored}
	for _, m := range r.Resident {
		slept.Resident = append(slept.Resident, core.Resident{Pid: m.Pid, Why: m.Why, Bytes: m.Bytes})
	}
	return slept
}

// phase reads the phase from the ledger. os.ErrNotExist if there is no ledger.
func (s *Sleeper) phase(id core.ID) (ledger.Phase, error) {
	f, err := os.OpenFile(filepath.Join(s.state(id), ledgerFile), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	l, err := ledger.Open(f)
	if errors.Is(err, ledger.ErrUnborn) {
		return ledger.Copying, nil
	}
	if err != nil {
		return 0, err
	}
	return l.Phase(), l.Close()
}

// files are the open files of a sleeping container.
type files struct{ pages, index, ledger *os.File }

func (f *files) close() {
	for _, f := range []*os.File{f.pages, f.index, f.ledger} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (f *files) list() []*os.File { return []*os.File{f.pages, f.index, f.ledger} }

// create makes empty files.
func (s *Sleeper) create(id core.ID) (*files, error) {
	if err := errors.Join(os.RemoveAll(s.root(id)), os.RemoveAll(s.state(id)), os.MkdirAll(s.root(id), 0o700), os.MkdirAll(s.state(id), 0o700)); err != nil {
		return nil, err
	}
	return s.open(id, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

func (s *Sleeper) open(id core.ID, flags int) (*files, error) {
	f := &files{}
	for _, o := range []struct {
		to   **os.File
		path string
	}{{&f.pages, filepath.Join(s.root(id), pagesFile)}, {&f.index, filepath.Join(s.root(id), indexFile)}, {&f.ledger, filepath.Join(s.state(id), ledgerFile)}} {
		file, err := os.OpenFile(o.path, flags, 0o600)
		if err != nil {
			f.close()
			return nil, err
		}
		*o.to = file
	}
	return f, nil
}

// start starts the program. The channel is closed when the program has ended.
func (s *Sleeper) start(f *files) (*pages.Conn, <-chan struct{}, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "agent")
	defer func() { _ = theirs.Close() }()
	conn, err := pages.NewConn(os.NewFile(uintptr(pair[0]), "sleep"))
	if err != nil {
		return nil, nil, err
	}
	cmd := subprocess.Daemon(s.o.Program, pages.ArgSleep)
	cmd.Env, cmd.Dir = environment(), "/"
	cmd.ExtraFiles = append([]*os.File{theirs}, f.list()...)
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start %s: %w", s.o.Program, err), conn.Close())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its messages say more
	}()
	return conn, ended, nil
}

// environment bounds the memory of the program: many containers may wake at once.
func environment() []string { return []string{"GOMAXPROCS=2", "GOGC=50"} }

// keep stores descriptors of a container and returns their number.
func (s *Sleeper) keep(id core.ID, fds []int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	s.kept[id] = append(s.kept[id], fds...)
	return len(s.kept[id])
}

// hold passes the descriptors of a container to the holder. The kernel forgets the missing pages when the last
// copy of a descriptor is closed.
func (s *Sleeper) hold(ctx context.Context, id core.ID) error {
	s.mu.Lock()
	fds := append([]int(nil), s.kept[id]...)
	s.mu.Unlock()
	for i := 0; i < len(fds); i += perName {
		files, err := duplicates(fds[i:min(i+perName, len(fds))])
		if err == nil {
			err = s.o.Holder.Hold(ctx, name(id, i/perName), files)
		}
		closeFiles(files)
		if err != nil {
			return fmt.Errorf("have the keeper keep its memory: %w", err)
		}
	}
	return nil
}

func name(id core.ID, n int) string { return fmt.Sprintf("%s%s/%05d", holdPrefix, id, n) }

// adopt takes the descriptors of a container from the holder that an earlier agent has stored there.
func (s *Sleeper) adopt(ctx context.Context, id core.ID) error {
	files, err := s.held(ctx, id, 0)
	if err != nil {
		return err
	}
	defer closeFiles(files)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept[id]) > 0 {
		return nil
	}
	for _, f := range files {
		dup, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(s.kept[id])
			delete(s.kept, id)
			return err
		}
		s.kept[id] = append(s.kept[id], dup)
	}
	return nil
}

// duplicates returns files of duplicates.
func duplicates(fds []int) ([]*os.File, error) {
	var files []*os.File
	for _, fd := range fds {
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, os.NewFile(uintptr(dup), "userfaultfd"))
	}
	return files, nil
}

// held returns the descriptors of a container: our own, or else the holder's. The first n are those of the index, and
// the others those of forked processes. core.ErrMemoryLost if there are fewer than n.
func (s *Sleeper) held(ctx context.Context, id core.ID, n int) ([]*os.File, error) {
	s.mu.Lock()
	fds := append([]int(nil), s.kept[id]...)
	s.mu.Unlock()
	if len(fds) > 0 && len(fds) >= n {
		return duplicates(fds)
	}
	var files []*os.File
	for len(files)%perName == 0 {
		more, err := s.o.Holder.Held(ctx, name(id, len(files)/perName))
		if errdefs.IsNotFound(err) {
			break
		}
		if err != nil {
			closeFiles(files)
			return nil, err
		}
		files = append(files, more...)
	}
	if len(files) < n {
		closeFiles(files)
		return nil, core.ErrMemoryLost
	}
	return files, nil
}

// Forget implements core.Sleeper.
func (s *Sleeper) Forget(ctx context.Context, id core.ID) error {
	s.mu.Lock()
	w, bell := s.wakes[id], s.bells[id]
	delete(s.wakes, id)
	delete(s.bells, id)
	delete(s.hot, id)
	s.mu.Unlock()
	if w != nil {
		w.end()
	} else if w = (&waking{s: s, id: id}); w.dial() == nil { // the server of an earlier agent
		w.stopServer()
		_ = w.conn.Close()
	}
	if bell != nil {
		_ = bell.Close()
	}
	names, err := s.o.Holder.Names(ctx)
	for _, n := range names {
		if strings.HasPrefix(n, holdPrefix+string(id)+"/") {
			err = errors.Join(err, s.o.Holder.Drop(ctx, n))
		}
	}
	s.mu.Lock()
	closeAll(s.kept[id])
	delete(s.kept, id)
	s.mu.Unlock()
	return errors.Join(err, os.RemoveAll(s.root(id)), os.RemoveAll(s.state(id)))
}

// Asleep implements core.Sleeper.
func (s *Sleeper) Asleep(ctx context.Context) ([]core.ID, error) {
	seen := map[core.ID]bool{}
	for _, dir := range []string{s.o.Root, s.o.State} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			seen[core.ID(e.Name())] = true
		}
	}
	names, err := s.o.Holder.Names(ctx)
	for _, n := range names {
		if rest, ours := strings.CutPrefix(n, holdPrefix); ours {
			id, _, _ := strings.Cut(rest, "/")
			seen[core.ID(id)] = true
		}
	}
	var ids []core.ID
	for id := range seen {
		ids = append(ids, id)
	}
	return ids, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
