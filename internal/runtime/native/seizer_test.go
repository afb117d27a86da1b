package native_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What the attacker in a container is told by its environment: where it works,
// what the host's namespaces are called, and whether it is to take over what it
// finds. Where it writes is a directory of the host's.
const (
	seizerEnv     = "LONGSHORE_TEST_SEIZER"
	seizerHostEnv = "LONGSHORE_TEST_SEIZER_HOST"
	seizerOut     = "/seizer"
)

// hostMark is a directory of the host, a mount of its own, with a file in it.
const hostMark = "/run/host-mark"

// seizer looks in its pid namespace for processes that do not run their program
// yet, and for what is the host's in them.
type seizer struct {
	seize        bool
	host         []string // the host's namespaces: mnt:[…]
	seen, seized int
	found        []string
	said         map[string]bool
}

// TestSeizer is the attacker's own program, in a container.
func TestSeizer(t *testing.T) {
	kind := os.Getenv(seizerEnv)
	if kind == "" {
		t.Skip("it is what other tests run in a container")
	}
	runtime.LockOSThread() // who seizes must be the one who waits
	s := &seizer{seize: kind == "seize", host: strings.Split(os.Getenv(seizerHostEnv), ","), said: map[string]bool{}}
	if err := os.WriteFile(seizerOut+"/ready", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for round, last := 0, lastPid(); ; round++ {
		if round%4096 == 0 {
			if _, err := os.Stat(seizerOut + "/stop"); err == nil {
				break
			}
			last = max(last, lastPid()) // threads of ours, and what was missed
		}
		for p := last + 1; p < last+4; p++ {
			if s.try(p) {
				last = p
			}
		}
	}
	text := fmt.Sprintf("%d %d %d\n%s", s.seen, s.seized, len(s.found), strings.Join(s.found, "\n"))
	if err := os.WriteFile(seizerOut+"/result", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// lastPid is the one given away last in our pid namespace.
func lastPid() int {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	n, err := strconv.Atoi(f[len(f)-1])
	if err != nil {
		return 0
	}
	return n
}

// try reports whether there is such a process, having looked at it.
func (s *seizer) try(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	fd, err := unix.Open(dir+"/comm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	var comm [32]byte
	n, _ := unix.Read(fd, comm[:])
	_ = unix.Close(fd)
	// The launcher's own name, or that of a program which was executed by /proc.
	if n <= 0 || !strings.HasPrefix(string(comm[:n]), "longshore") && string(comm[:n]) != "exe\n" {
		return true // a program, or a thread of ours
	}
	s.seen++
	held := false
	if s.seize {
		if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, 0, 0, 0); e == 0 {
			_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_INTERRUPT, uintptr(pid), 0, 0, 0, 0)
			var ws unix.WaitStatus
			if _, err := unix.Wait4(pid, &ws, unix.WALL, nil); err == nil && ws.Stopped() {
				s.seized++
				held = true
			}
		}
	}
	s.inspect(pid, dir)
	if held || !s.seize {
		s.say("tried")
	}
	if held {
		_, _, _ = unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(pid), 0, 0, 0, 0)
	}
	return true
}

// say tells the test something, once.
func (s *seizer) say(what string) {
	if !s.said[what] {
		s.said[what] = os.WriteFile(seizerOut+"/"+what, nil, 0o600) == nil
	}
}

func (s *seizer) report(pid int, format string, args ...any) {
	s.found = append(s.found, strconv.Itoa(pid)+": "+fmt.Sprintf(format, args...))
}

// inspect looks for what is the host's.
func (s *seizer) inspect(pid int, dir string) {
	if b, err := os.ReadFile(dir + "/mountinfo"); err == nil && strings.Contains(string(b), " "+hostMark+" ") {
		s.report(pid, "mountinfo shows the host's mounts")
		s.say("mounts")
	}
	for _, f := range []string{"/root", "/cwd", "/cwd/..", "/cwd/../.."} {
		if _, err := os.Stat(dir + f + hostMark + "/secret"); err == nil {
			s.report(pid, "%s leads to the host's files", f)
			s.say("files")
		}
	}
	for _, ns := range []string{"mnt", "net", "ipc", "uts", "cgroup"} {
		name, err := os.Readlink(dir + "/ns/" + ns)
		for _, h := range s.host {
			if err == nil && name == h {
				s.report(pid, "in the host's %s", name)
			}
		}
	}
	fds, _ := filepath.Glob(dir + "/fd/*")
	for _, f := range fds {
		to, err := os.Readlink(f)
		if err != nil {
			continue
		}
		n, _ := strconv.Atoi(filepath.Base(f))
		st, err := os.Stat(f)
		if n > 5 || strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "anon_inode:") || strings.Contains(to, "memfd") || strings.Contains(to, "cgroup") ||
			err == nil && st.IsDir() {
			s.report(pid, "descriptor %d: %s", n, to)
		}
	}
	if b, err := os.ReadFile(dir + "/maps"); err == nil && !strings.Contains(string(b), "/bin/busybox") { // which may run by now
		s.memory(pid, string(b))
	}
	if b, err := os.ReadFile(dir + "/environ"); err == nil && len(b) > 0 && strings.Contains(string(b), "GOGC=") {
		s.report(pid, "the keeper's environment")
	}
	if s.seize { // the attacker has CAP_SYS_PTRACE, and what it takes over must have no more
		if b, err := os.ReadFile(dir + "/status"); err == nil {
			own, _ := os.ReadFile("/proc/thread-self/status")
			if theirs := capsIn(string(b)); theirs&^capsIn(string(own)) != 0 {
				s.report(pid, "capabilities %#x", theirs)
			}
		}
	}
}

// memory looks for a heap: a stack and a plan are all that there should be.
func (s *seizer) memory(pid int, maps string) {
	size := uint64(0)
	for line := range strings.Lines(maps) {
		f := strings.Fields(line)
		from, to, ok := strings.Cut(f[0], "-")
		a, err := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if !ok || err != nil || err2 != nil || len(f) < 2 || !strings.HasPrefix(f[1], "rw") {
			continue
		}
		if len(f) > 5 && strings.HasPrefix(f[5], "/") && !strings.HasPrefix(f[5], "/memfd:") {
			s.report(pid, "memory of %s", f[5])
		}
		size += b - a
	}
	const most = 256 << 10
	if size > most {
		s.report(pid, "%d bytes of memory", size)
	}
}

func capsIn(status string) uint64 {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, "CapPrm:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return n
		}
	}
	return 0
}
