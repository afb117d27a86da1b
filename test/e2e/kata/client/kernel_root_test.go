package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// askEnv makes this program one that starts another under the filter of asked.
const askEnv = "LONGSHORE_KATA_ASK"

func TestMain(m *testing.M) {
	if os.Getenv(askEnv) != "" {
		err := startAsked(os.Args[1:])
		_, _ = fmt.Fprintln(os.Stderr, "start under a filter:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// kernel answers the agent's system calls that would change the whole machine, with the test on it:
// it notes their arguments, read from the agent's memory. The clock and the swap stay as they are;
// entropy the kernel gets.
type kernel struct {
	mu   sync.Mutex // guards told
	told []string
}

// heard reports whether the kernel has noted a call.
func (k *kernel) heard(what string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Contains(k.told, what)
}

func (k *kernel) all() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return strings.Join(k.told, "; ")
}

// rndAddEntropy is RNDADDENTROPY of random(4).
const rndAddEntropy = 0x40085203

// filter asks for the calls that change the machine, and lets all others pass.
func filter() []unix.SockFilter {
	const load, equal, answer = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
	const number, second = 0, 24 // offsets in struct seccomp_data
	return []unix.SockFilter{
		{Code: load, K: number},
		{Code: equal, K: unix.SYS_SETTIMEOFDAY, Jt: 6},
		{Code: equal, K: unix.SYS_CLOCK_SETTIME, Jt: 5},
		{Code: equal, K: unix.SYS_SWAPON, Jt: 4},
		{Code: equal, K: unix.SYS_IOCTL, Jf: 2},
		{Code: load, K: second},
		{Code: equal, K: rndAddEntropy, Jt: 1},
		{Code: answer, K: unix.SECCOMP_RET_ALLOW},
		{Code: answer, K: unix.SECCOMP_RET_USER_NOTIF},
	}
}

// startAsked sends its parent, over descriptor 3, the descriptor that answers the kernel's
// questions, and becomes the program of args.
func startAsked(args []string) error {
	runtime.LockOSThread() // the filter is the thread's, which the new program keeps
	f := filter()
	prog := unix.SockFprog{Len: uint16(len(f)), Filter: &f[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("seccomp: %w", errno)
	}
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(fd)), nil, 0); err != nil {
		return fmt.Errorf("send the listener: %w", err)
	}
	_, _ = unix.Close(3), unix.Close(int(fd))
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, askEnv+"=") })
	return syscall.Exec(args[0], args, env)
}

// asked prepares a command under the filter. Call answering after its start.
func asked(t *testing.T, args ...string) (cmd *exec.Cmd, answering func() *kernel) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "their socket")
	cmd = exec.CommandContext(context.WithoutCancel(t.Context()), self, args...)
	cmd.Env = append(os.Environ(), askEnv+"=1")
	cmd.ExtraFiles = []*os.File{theirs}
	return cmd, func() *kernel {
		t.Helper()
		_ = theirs.Close()
		defer func() { _ = unix.Close(pair[0]) }()
		rights := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), rights, unix.MSG_CMSG_CLOEXEC)
		if err != nil {
			t.Fatalf("receive the listener: %v", err)
		}
		msgs, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil || len(msgs) != 1 {
			t.Fatalf("the program did not get its filter: %v", err)
		}
		fds, err := unix.ParseUnixRights(&msgs[0])
		if err != nil {
			t.Fatal(err)
		}
		k := &kernel{}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		stopped := make(chan error, 1)
		go func() { stopped <- k.answer(fds[0], int(r.Fd())) }()
		t.Cleanup(func() {
			_ = w.Close()
			if err := <-stopped; err != nil {
				t.Errorf("answering the agent's system calls: %v", err)
			}
			_ = r.Close()
			_ = unix.Close(fds[0])
		})
		return k
	}
}

// notification is struct seccomp_notif, verdict struct seccomp_notif_resp.
type (
	notification struct {
		id         uint64
		pid, flags uint32
		number     int32
		arch       uint32
		ip         uint64
		args       [6]uint64
	}
	verdict struct {
		id    uint64
		value int64
		errno int32
		flags uint32
	}
)

const (
	ioctlRecv = 0xc0502100
	ioctlSend = 0xc0182101
	goOn      = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
)

// answer answers questions until stop is closed.
func (k *kernel) answer(listener, stop int) error {
	for {
		fds := []unix.PollFd{{Fd: int32(listener), Events: unix.POLLIN}, {Fd: int32(stop), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			continue
		} else if err != nil {
			return err
		}
		if fds[1].Revents != 0 || fds[0].Revents&unix.POLLIN == 0 {
			return nil // also when no process has the filter any more
		}
		var n notification
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), ioctlRecv, uintptr(unsafe.Pointer(&n))); errno == unix.ENOENT || errno == unix.EINTR {
			continue // the caller has gone
		} else if errno != 0 {
			return errno
		}
		v := verdict{id: n.id}
		what, err := n.text()
		if err != nil {
			v.errno = -int32(unix.EIO)
		}
		if n.number == unix.SYS_IOCTL {
			v.flags = goOn
		}
		k.mu.Lock()
		k.told = append(k.told, what)
		k.mu.Unlock()
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), ioctlSend, uintptr(unsafe.Pointer(&v))); errno != 0 && errno != unix.ENOENT {
			return errno
		}
		if err != nil {
			return err
		}
	}
}

// text describes the request of a call.
func (n *notification) text() (string, error) {
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", n.pid))
	if err != nil {
		return "", err
	}
	defer func() { _ = mem.Close() }()
	read := func(at uint64, b []byte) (int, error) { return mem.ReadAt(b, int64(at)) }
	switch n.number {
	case unix.SYS_SETTIMEOFDAY:
		b := make([]byte, 16)
		if _, err := read(n.args[0], b); err != nil {
			return "", err
		}
		return fmt.Sprintf("clock %d.%06d", binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])), nil
	case unix.SYS_SWAPON:
		b := make([]byte, 256)
		got, err := read(n.args[0], b)
		if got == 0 {
			return "", err
		}
		path, _, _ := strings.Cut(string(b[:got]), "\x00")
		return "swap on " + path, nil
	case unix.SYS_IOCTL:
		head := make([]byte, 8)
		if _, err := read(n.args[2], head); err != nil {
			return "", err
		}
		data := make([]byte, binary.NativeEndian.Uint32(head[4:]))
		if _, err := read(n.args[2]+8, data); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d bits of entropy %x", binary.NativeEndian.Uint32(head), data), nil
	default:
		return fmt.Sprintf("system call %d", n.number), nil
	}
}
