package pages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/ledger"
	"github.com/longshore/longshore/internal/sleep/tracee"
	"github.com/longshore/longshore/internal/sleep/uffd"
)

// stopTime bounds how long a thread may take to stop.
const stopTime = 3 * time.Second

// maxProcesses bounds the address spaces of a container, and with them the descriptors of agent, keeper and nest.
const maxProcesses = 512

// sleeper puts the processes of a container to sleep.
type sleeper struct {
	conn    *Conn
	pages   *os.File
	indexed *os.File
	ledger  *ledger.Ledger
	index   ledger.Index
	group   *tracee.Group
	out     []process
	report  Report
	places  []Touch // where the threads are
}

// process is a process with areas that are freed.
type process struct {
	*tracee.Process
	fd    uffd.Space
	areas []uffd.Range
}

// errRefused wraps errors that are properties of the container.
var errRefused = errors.New("")

// errAborted means that the agent has given up.
var errAborted = errors.New("the agent has given it up")

// putToSleep does the whole work, and releases the threads.
func (s *sleeper) putToSleep() error {
	runtime.LockOSThread() // the kernel permits only this thread to trace
	var ask Ask
	if _, err := s.conn.Receive(&ask); err != nil {
		return err
	}
	err := s.work(ask)
	if s.group != nil {
		s.release(err)
	}
	if err != nil {
		return err
	}
	return s.conn.Send(Message{Step: StepDone, Report: s.report, Touched: s.places})
}

func (s *sleeper) work(ask Ask) (err error) {
	if s.group, err = tracee.Seize(ask.Pids); err != nil {
		return fmt.Errorf("%w%w", errRefused, err)
	}
	if err := s.reach(StepSeized); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	if err := s.group.Await(ctx); err != nil {
		return fmt.Errorf("%w%w", errRefused, err)
	}
	if err := s.open(); err != nil {
		return err
	}
	spaces := make([]uffd.Space, len(s.out))
	for i, p := range s.out {
		spaces[i] = p.fd
	}
	if err := s.conn.sendSpaces(StepOpened, spaces); err != nil {
		return err
	}
	if err := s.answer(); err != nil {
		return err
	}
	if err := s.copy(ask.Limit); err != nil {
		return err
	}
	if err := s.reach(StepCopied); err != nil {
		return err
	}
	return s.drop(spaces)
}

// reach reports a step and waits for the answer.
func (s *sleeper) reach(step string) error {
	if err := s.conn.Send(Message{Step: step, Report: s.report}); err != nil {
		return err
	}
	return s.answer()
}

func (s *sleeper) answer() error {
	var ask Ask
	if _, err := s.conn.Receive(&ask); err != nil {
		return fmt.Errorf("the agent is gone: %w", err)
	}
	if ask.Step == AskAbort {
		return errAborted
	}
	return nil
}

// open opens a descriptor for each address space and registers its areas.
func (s *sleeper) open() error {
	device, err := os.OpenFile(tracee.Device, os.O_RDWR, 0)
	if err != nil {
		device = nil
	} else {
		defer func() { _ = device.Close() }()
	}
	for _, p := range s.group.Processes {
		s.report.Processes++
		if s.seen(p.Pid) {
			continue
		}
		if len(s.out) == maxProcesses {
			return fmt.Errorf("%wit has more than %d processes with memory of their own", errRefused, maxProcesses)
		}
		err := s.openOne(p, device)
		if gone(err) {
			continue
		}
		if errors.Is(err, tracee.ErrForbidden) {
			return fmt.Errorf("%w%w", errRefused, err)
		}
		if err != nil {
			s.stays(p.Pid, err.Error(), 0)
		}
	}
	return nil
}

// seen reports whether a process shares its memory with one that is already open.
func (s *sleeper) seen(pid int) bool {
	for _, o := range s.out {
		if tracee.SameMemory(pid, o.Pid) {
			return true
		}
	}
	return false
}

func (s *sleeper) stays(pid int, why string, bytes uint64) {
	const most = 64 // of entries
	if len(s.report.Resident) < most {
		s.report.Resident = append(s.report.Resident, Resident{Pid: pid, Why: why, Bytes: bytes})
	}
}

func (s *sleeper) openOne(p *tracee.Process, device *os.File) error {
	areas, resident, err := candidates(p.Pid)
	if err != nil {
		return err
	}
	for why, bytes := range resident {
		s.stays(p.Pid, why, bytes)
	}
	why, err := pinned(p.Pid)
	if err != nil {
		return err
	}
	if p.Workers {
		why = "io_uring"
	}
	if why != "" {
		s.stays(p.Pid, why, 0)
		return nil
	}
	if len(areas) == 0 {
		return nil
	}
	fd, err := p.Userfaultfd(device)
	if err != nil {
		return err
	}
	o := process{Process: p, fd: fd}
	if err := fd.Enable(); err != nil {
		_ = unix.Close(int(fd))
		return err
	}
	for _, a := range areas {
		if err := fd.Register(a); err == nil {
			o.areas = append(o.areas, a)
		} else {
			s.stays(p.Pid, "the kernel registers no such memory: "+err.Error(), a.Len)
		}
	}
	for _, addr := range p.Places() {
		if len(s.places) < MaxTouched/2 {
			s.places = append(s.places, Touch{Pid: p.Pid, Addr: addr})
		}
	}
	s.out = append(s.out, o)
	s.index.Spaces = append(s.index.Spaces, ledger.Space{Pid: p.Pid, Areas: o.areas})
	return nil
}

// copy writes the pages and their index.
func (s *sleeper) copy(limit int64) error {
	w, err := ledger.NewWriter(s.pages, limit)
	if err != nil {
		return err
	}
	buf := make([]byte, ledger.BlockPages*ledger.PageSize)
	for i, p := range s.out {
		pagemap, err := os.Open(fmt.Sprintf("/proc/%d/pagemap", p.Pid))
		if err != nil {
			return err
		}
		for _, a := range p.areas {
			err = runs(pagemap, a, func(r uffd.Range) error {
				b := buf[:r.Len]
				if err := p.Memory(r.Addr, b); err != nil {
					return fmt.Errorf("read the memory of process %d at %#x: %w", p.Pid, r.Addr, err)
				}
				s.report.Given += r.Len
				return s.store(w, &s.index.Spaces[i], r.Addr, b)
			})
			if err != nil {
				break
			}
		}
		if err = errors.Join(err, pagemap.Close()); err != nil {
			return err
		}
	}
	s.report.Stored = uint64(w.Written())
	if err := s.index.Encode(s.indexed); err != nil {
		return err
	}
	// The kernel's cache of the file is memory as well.
	_ = unix.SyncFileRange(int(s.pages.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
	_ = unix.Fadvise(int(s.pages.Fd()), 0, 0, unix.FADV_DONTNEED)
	return nil
}

// store writes a run of pages, but for those without content.
func (s *sleeper) store(w *ledger.Writer, to *ledger.Space, addr uint64, b []byte) error {
	empty := func(i int) bool { return [ledger.PageSize]byte(b[i*ledger.PageSize:]) == zeroPage }
	n := len(b) / ledger.PageSize
	for i := 0; i < n; {
		if empty(i) {
			i++
			continue
		}
		k := i + 1
		for k < n && !empty(k) {
			k++
		}
		block, err := w.Add(addr+uint64(i)*ledger.PageSize, b[i*ledger.PageSize:k*ledger.PageSize])
		if err != nil {
			return err
		}
		to.Blocks = append(to.Blocks, block)
		i = k
	}
	return nil
}

// drop frees the memory. A server runs meanwhile, because the kernel writes to the memory of a stopped thread
// before the thread continues (restartable sequences).
func (s *sleeper) drop(spaces []uffd.Space) error {
	r, err := ledger.NewReader(s.pages)
	if err != nil {
		return err
	}
	srv, err := newServer(&s.index, s.ledger, r, spaces)
	if err != nil {
		return err
	}
	srv.dropping = true
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() {
		for {
			ready, err := srv.poll(forever, []int{end})
			if err != nil || ready[0] {
				served <- err
				return
			}
		}
	}()
	s.ledger.Reach(ledger.Out)
	err = s.dropAll()
	_, err2 := unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	err = errors.Join(err, err2, <-served, unix.Close(end))
	if err == nil {
		err = s.reach(StepDropped)
	}
	if err == nil {
		return nil
	}
	// The processes have lost pages, and no other process restores them.
	srv.dropping = false
	s.release(nil)
	return errors.Join(err, srv.complete())
}

func (s *sleeper) dropAll() error {
	for _, p := range s.out {
		for _, a := range p.areas {
			err := p.Calls(func(call tracee.Call) error {
				_, err := call(unix.SYS_MADVISE, a.Addr, a.Len, unix.MADV_DONTNEED)
				return err
			})
			if err != nil {
				return fmt.Errorf("give back memory of process %d: %w", p.Pid, err)
			}
		}
	}
	return nil
}

// release lets the threads continue. If no memory was freed, it first unregisters the areas.
func (s *sleeper) release(err error) {
	if err != nil && s.ledger.Phase() == ledger.Copying {
		for _, p := range s.out {
			for _, a := range p.areas {
				_ = p.fd.Unregister(a)
			}
		}
	}
	s.group.Release()
}
