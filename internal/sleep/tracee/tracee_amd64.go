package tracee

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Supported says that the package works on this architecture.
const Supported = true

// saved is the state of a thread that Calls changes.
type saved struct {
	regs    unix.PtraceRegs
	mask    uint64 // of blocked signals
	syscall uint64 // the address of a syscall instruction
	rseq    uint64 // the address of the pointer to the thread's restartable sequence; 0 for none
	cs      [8]byte
}

// codeSegment is that of 64-bit programs.
const codeSegment = 0x33

var errOtherABI = errors.New("the program is not a 64-bit one")

// caller chooses the thread for system calls: one that is in a system call, if there is any.
func (p *Process) caller() *thread {
	for _, t := range p.threads {
		var regs unix.PtraceRegs
		if unix.PtraceGetRegs(t.id, &regs) == nil && int64(regs.Orig_rax) >= 0 {
			return t
		}
	}
	if len(p.threads) == 0 {
		return nil
	}
	return p.threads[0]
}

// Places returns addresses that the threads use first when they continue: of their stacks and of their thread-local memory.
func (p *Process) Places() (addrs []uint64) {
	for _, t := range p.threads {
		var regs unix.PtraceRegs
		if unix.PtraceGetRegs(t.id, &regs) == nil {
			addrs = append(addrs, regs.Rsp, regs.Fs_base)
		}
	}
	return addrs
}

func (t *thread) save() (*saved, error) {
	s := &saved{}
	if err := unix.PtraceGetRegs(t.id, &s.regs); err != nil {
		return nil, err
	}
	if s.regs.Cs != codeSegment {
		return nil, errOtherABI
	}
	if err := ptrace(unix.PTRACE_GETSIGMASK, t.id, 8, uintptr(unsafe.Pointer(&s.mask))); err != nil {
		return nil, err
	}
	var err error
	if s.syscall, err = t.process.instruction([]byte{0x0f, 0x05}); err != nil {
		return nil, err
	}
	t.saveSequence(s)
	all := ^uint64(0)
	return s, ptrace(unix.PTRACE_SETSIGMASK, t.id, 8, uintptr(unsafe.Pointer(&all)))
}

// saveSequence saves the restartable sequence that the thread is in. The kernel forgets it when it sees
// the thread elsewhere, and the thread would not restart it.
func (t *thread) saveSequence(s *saved) {
	var c struct {
		addr             uint64
		size, sig, flags uint32
		_                uint32
	}
	n, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GET_RSEQ_CONFIGURATION, uintptr(t.id), unsafe.Sizeof(c), uintptr(unsafe.Pointer(&c)), 0, 0)
	if errno != 0 || n == 0 || c.addr == 0 {
		return
	}
	if t.process.Memory(c.addr+8, s.cs[:]) == nil && s.cs != [8]byte{} {
		s.rseq = c.addr + 8
	}
}

// instruction returns the address of an instruction in the code that the kernel maps into each process.
func (p *Process) instruction(code []byte) (uint64, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(line, "[vdso]\n") {
			continue
		}
		var from, to uint64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil || to-from > 1<<20 {
			break
		}
		text := make([]byte, to-from)
		if err := p.Memory(from, text); err != nil {
			return 0, err
		}
		if i := bytes.Index(text, code); i >= 0 {
			return from + uint64(i), nil
		}
	}
	return 0, errors.New("the process has no code of the kernel's (vdso)")
}

func (t *thread) call(s *saved, nr uintptr, args []uint64) (uint64, error) {
	r := s.regs
	r.Rip, r.Rax, r.Orig_rax = s.syscall, uint64(nr), ^uint64(0)
	for i, v := range args {
		*[]*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9}[i] = v
	}
	if err := unix.PtraceSetRegs(t.id, &r); err != nil {
		return 0, err
	}
	for range 2 { // the beginning and the end of the call
		if err := t.until(unix.PTRACE_SYSCALL, inCall); err != nil {
			return 0, err
		}
	}
	if err := unix.PtraceGetRegs(t.id, &r); err != nil {
		return 0, err
	}
	if v := int64(r.Rax); v < 0 && v > -4096 {
		return 0, unix.Errno(-v)
	}
	return r.Rax, nil
}

// restore brings the thread back to the place where it was stopped. It must be on its way to a signal
// then: only there does the kernel restart the system call that the stop has interrupted.
func (t *thread) restore(s *saved) error {
	var now unix.PtraceRegs
	err := unix.PtraceGetRegs(t.id, &now)
	if err == nil && now.Rip != s.regs.Rip {
		now.Orig_rax = ^uint64(0)
		err = unix.PtraceSetRegs(t.id, &now)
	}
	if err == nil {
		err = ptrace(unix.PTRACE_INTERRUPT, t.id, 0, 0)
	}
	if err == nil {
		err = t.until(unix.PTRACE_CONT, inTrap)
	}
	if err == nil {
		err = unix.PtraceSetRegs(t.id, &s.regs)
	}
	if err == nil && s.rseq != 0 {
		err = t.process.SetMemory(s.rseq, s.cs[:])
	}
	if err == nil {
		err = ptrace(unix.PTRACE_SETSIGMASK, t.id, 8, uintptr(unsafe.Pointer(&s.mask)))
	}
	return err
}
