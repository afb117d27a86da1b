package server

import (
	"errors"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// sealed are the seals that a plan's file must have: neither its bytes nor its size
// can change any more, and nobody can remove the seals.
const sealed = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE

var errSeals = errors.New("the plan's file is not sealed")

// mapPlan maps a plan from a sealed memory file, privately, and checks it.
func mapPlan(fd int) (*planMem, error) {
	if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&sealed != sealed {
		return nil, errSeals
	}
	var st unix.Stat_t
	switch err := unix.Fstat(fd, &st); {
	case err != nil:
		return nil, err
	case st.Size == 0:
		return nil, plan.ErrShort
	case st.Size > plan.MaxSize:
		return nil, plan.ErrTooLarge
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return nil, err
	}
	if old := plan.FromVersion2(mem); &old[0] != &mem[0] {
		defer unmap(mem)
		return copyPlan(old)
	}
	m, err := checked(mem)
	if err == nil {
		if m.file, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			m.file = -1
		}
		return m, nil
	}
	return nil, err
}

// copyPlan is mapPlan for a plan of an earlier version. Version 1 sent it inside the message.
func copyPlan(b []byte) (*planMem, error) {
	b = plan.FromVersion1(b)
	switch {
	case len(b) == 0:
		return nil, plan.ErrShort
	case len(b) > plan.MaxSize:
		return nil, plan.ErrTooLarge
	}
	mem, err := unix.Mmap(-1, 0, len(b), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	copy(mem, b)
	return checked(mem)
}

func checked(mem []byte) (*planMem, error) {
	if err := plan.Check(mem); err != nil {
		unmap(mem)
		return nil, err
	}
	return &planMem{mem: mem, file: -1}, nil
}

// planMem is a checked plan in memory of its own, and its sealed file, which the launcher's
// children map. The file is -1 if there is none.
type planMem struct {
	mem   []byte
	file  int
	given []int // descriptors for the program
}

// takeGiven copies the descriptors for the program. Their number must match the plan.
func (m *planMem) takeGiven(fds []int) error {
	if uint32(len(fds)) != (*plan.Header)(unsafe.Pointer(&m.mem[0])).Given {
		return errGiven
	}
	for _, fd := range fds {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		m.given = append(m.given, own)
	}
	return nil
}

var errGiven = errors.New("the plan gives the program another number of descriptors than came with it")

// closeGiven closes the keeper's copies of the program's descriptors.
func (m *planMem) closeGiven() {
	kernel.CloseAll(m.given)
	m.given = nil
}

func (m *planMem) free() {
	if m == nil {
		return
	}
	unmap(m.mem)
	m.closeGiven()
	if m.file >= 0 {
		_ = unix.Close(m.file)
	}
	m.mem, m.file = nil, -1
}

func unmap(mem []byte) {
	if mem != nil {
		_ = unix.Munmap(mem)
	}
}

// launchPlanOf takes the plan that came with a launch, or nil for a launch by a
// command.
func launchPlanOf(kind wire.Kind, m *wire.Launch, fds []int) (mem *planMem, f *wire.Fail) {
	var err error
	switch {
	case kind != wire.KindLaunch && m.Kind != wire.LaunchPlan:
		return nil, &wire.Fail{Class: wire.InvalidArgument, Text: "launch: unknown kind"}
	case kind != wire.KindLaunch && len(fds) == 0:
		err = errSeals
	case kind != wire.KindLaunch:
		if mem, err = mapPlan(fds[0]); err == nil {
			given := fds[1:]
			if kind == wire.KindLaunchPlan {
				given = nil
			}
			if err = mem.takeGiven(given); err != nil {
				mem.free()
			}
		}
	case m.Kind == wire.LaunchPlan:
		mem, err = copyPlan(m.Plan)
	}
	m.Plan = nil // it lies in a buffer that the next request reuses
	if err != nil {
		return nil, &wire.Fail{Class: wire.InvalidArgument, Text: "launch " + wire.Key(m.Ref) + ": " + err.Error()}
	}
	return mem, nil
}

// taskPlanOf takes the plan that came with a task, or nil if it has none.
func taskPlanOf(m *wire.Task, fds []int) (*planMem, *wire.Fail) {
	m.Input = append([]byte(nil), m.Input...) // it lies in a buffer that the next request reuses
	if !m.Planned {
		return nil, nil
	}
	err := errSeals
	if len(fds) > 0 {
		var mem *planMem
		if mem, err = mapPlan(fds[0]); err == nil {
			if err = mem.takeGiven(nil); err == nil {
				return mem, nil
			}
			mem.free()
		}
	}
	return nil, &wire.Fail{Class: wire.InvalidArgument, Text: "run: " + err.Error()}
}

// target returns a copy of the pidfd of the process with the namespaces for a plan, or -1 for none.
// A copy, because that process may end and be forgotten while the plan runs.
func (s *Server) target(ref wire.Ref) (int, error) {
	if ref.Container == "" {
		return -1, nil
	}
	t := s.procs[ref]
	if t == nil || t.phase != running || t.pidfd < 0 {
		return -1, errNoTarget
	}
	return unix.FcntlInt(uintptr(t.pidfd), unix.F_DUPFD_CLOEXEC, 0)
}

var errNoTarget = errors.New("the process whose namespaces it is to join is not running")

// task runs a program that a command line alone cannot describe: with input, with a
// first argument that differs from the path, or by a plan in another process's
// namespaces.
func (c *conn) task(s *Server, id uint64, m *wire.Task, mem *planMem) {
	if s.upgrade != nil {
		s.parked = append(s.parked, parkedRequest{c, func() { c.task(s, id, m, mem) }})
		return
	}
	path := m.Path
	if path == "" && len(m.Command.Args) > 0 {
		path = m.Command.Args[0]
	}
	if !m.Planned && (path == "" || path[0] != '/') {
		c.fail(s, id, wire.InvalidArgument, "run: the command's path is not absolute")
		return
	}
	target, err := s.target(m.Target)
	if err != nil {
		mem.free()
		c.fail(s, id, wire.NotFound, "run: "+err.Error())
		return
	}
	in, err := input(m.Input)
	if err != nil {
		mem.free()
		kernel.CloseAll(uniqueFDs([]int{target}))
		c.fail(s, id, wire.Internal, "run: "+err.Error())
		return
	}
	cmd := &command{c: c, id: id, path: path, mem: mem, target: target, stdout: newCapture(maxStdout, false), stderr: newCapture(maxStderr, true)}
	cmd.child = []int{in, cmd.stdout.write, cmd.stderr.write}
	cmd.begin(s, &m.Command)
}

// input returns a file that holds b, open at its beginning.
func input(b []byte) (int, error) {
	if len(b) == 0 {
		return unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	fd, err := kernel.Memfd(b)
	if err == nil {
		_, err = unix.Seek(fd, 0, 0)
	}
	return fd, err
}

// runPlan forks, and waits until the child executes its program, has failed, or is
// dead.
func (cmd *command) runPlan(s *Server, at *uint32) {
	defer func() {
		cmd.mem.free()
		kernel.CloseAll(uniqueFDs([]int{cmd.target}))
	}()
	placed := plan.PlaceChecked(cmd.mem.mem)
	files := fork.Files{Stdin: cmd.child[0], Stdout: cmd.child[1], Stderr: cmd.child[2], Park: -1, Console: -1, Target: cmd.target, Progress: at}
	child, err := fork.Start(placed, files)
	if err != nil {
		s.post(func() {
			s.progress.release(at)
			cmd.started(s, 0, -1, err)
		})
		return
	}
	// The exit of the child is handled only after its failure pipe was read.
	first := child.Pid
	known := func(pid, pidfd int) {
		s.post(func() {
			if cmd.pidfd >= 0 {
				_ = unix.Close(cmd.pidfd)
			}
			if pid != first {
				s.firstChildren = append(s.firstChildren, first)
			}
			if cmd.pidfd = pidfd; cmd.cancelled {
				_ = kernel.PidfdSignal(cmd.pidfd, int(unix.SIGKILL))
			}
		})
	}
	known(child.Pid, child.PidFD)
	err = child.Ran(placed, known)
	step := stepName(placed, at)
	s.post(func() {
		s.progress.release(at)
		switch {
		case err != nil:
			cmd.planErr = planFail("run", err)
		case cmd.cancelled && at != nil && atomic.LoadUint32(at) < uint32(len(placed.Ops)-1):
			cmd.planErr = &wire.Fail{Class: wire.Aborted, Text: "run: given up at " + step}
		}
		cmd.started(s, child.Pid, child.PidFD, nil)
	})
}

// progress is memory shared with forked children: two words for each launch, where its child counts
// finished operations.
type progress struct {
	words []byte
	free  []uint16
}

const progressWords = 512

// open maps the memory. Without it, an error cannot name the operation of a cancelled launch.
func (p *progress) open() {
	mem, err := unix.Mmap(-1, 0, 8*progressWords, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return
	}
	p.words = mem
	for i := range uint16(progressWords) {
		p.free = append(p.free, i)
	}
}

// take returns two words for a launch, or nil if none are left.
func (p *progress) take() *uint32 {
	if len(p.free) == 0 {
		return nil
	}
	at := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	w := (*uint32)(unsafe.Pointer(&p.words[8*int(at)]))
	atomic.StoreUint32(w, 0)
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&p.words[8*int(at)+4])), 0)
	return w
}

// release frees the words of a launch once its children have ended or run the program.
func (p *progress) release(w *uint32) {
	if w != nil {
		p.free = append(p.free, uint16((uintptr(unsafe.Pointer(w))-uintptr(unsafe.Pointer(&p.words[0])))/8))
	}
}

// stepName names the operation that a child has reached.
func stepName(p plan.Placed, at *uint32) string {
	if at == nil {
		return "?"
	}
	return p.Name(int(atomic.LoadUint32(at)))
}
