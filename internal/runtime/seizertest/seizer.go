// Package seizertest is an attacker in a container. It searches its pid namespace for processes
// that do not run their program yet, takes them over if it can, and searches them for objects of
// the host. Tests run it beside starts and execs.
package seizertest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// Env is the environment variable that makes a test binary call Main and nothing else.
const Env = "LONGSHORE_TEST_SEIZER"

// The attacker's environment variables: whether it may take over the processes that it finds, the
// names of the host's namespaces, and the host's directory for its findings.
const (
	hostEnv = "LONGSHORE_TEST_SEIZER_HOST"
	seize   = "seize"
	look    = "look"
	out     = "/seizer"
)

// hostMark is a directory of the host that is a mount of its own and contains a file.
const hostMark = "/run/host-mark"

// RoundsEnv sets how many processes are started beside an attacker.
const RoundsEnv = "LONGSHORE_SEIZE_ROUNDS"

// Ptrace are the capabilities of an attacker that can take over other processes.
func Ptrace() []string {
	return []string{"CAP_SYS_PTRACE", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE"}
}

// Attacker is a running attacker, as the test sees it.
type Attacker struct {
	out  string
	end  time.Time
	done int
}

// Prepare turns s, the container of a test, into an attacker with these capabilities,
// and makes a mount with a secret in the host's tree.
func Prepare(t *testing.T, s *specs.Spec, caps []string) *Attacker {
	t.Helper()
	a := &Attacker{out: t.TempDir()}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(hostMark, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", hostMark, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(hostMark, unix.MNT_DETACH) })
	if err := os.WriteFile(hostMark+"/secret", []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	var host []string
	for _, ns := range kinds() {
		name, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		host = append(host, name)
	}
	kind := look
	if slices.Contains(caps, "CAP_SYS_PTRACE") {
		kind = seize
	}
	s.Process.Args = []string{"/attack", "-test.run=^TestSeizer$", "-test.count=1", "-test.timeout=30m"}
	s.Process.Env = append(s.Process.Env, Env+"="+kind, hostEnv+"="+strings.Join(host, ","), "GOMAXPROCS=1")
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps}
	s.Mounts = append(s.Mounts,
		specs.Mount{Destination: "/attack", Type: "bind", Source: exe, Options: []string{"bind", "ro"}},
		specs.Mount{Destination: out, Type: "bind", Source: a.out, Options: []string{"bind"}})
	return a
}

func kinds() []string { return []string{"mnt", "net", "ipc", "uts", "cgroup"} }

// Ready waits until the attacker has started to look.
func (a *Attacker) Ready(t *testing.T) {
	t.Helper()
	await(t, a.out+"/ready")
	a.end = time.Now().Add(roottest.Patience())
}

// Rounds returns the number in RoundsEnv, or a default.
func Rounds() int {
	if n, err := strconv.Atoi(os.Getenv(RoundsEnv)); err == nil && n > 0 {
		return n
	}
	return 40
}

// The reports of an attacker, in time.
const (
	Tried  = "tried"  // it has looked at a process, and taken it over if it can
	Mounts = "mounts" // it has seen the host's mounts
	Files  = "files"  // it has seen the host's files
)

// More reports whether another process should be started beside the attacker: until there were
// enough, and the attacker has made the expected reports.
func (a *Attacker) More(rounds int, what ...string) bool {
	said := true
	for _, w := range what {
		_, err := os.Stat(a.out + "/" + w)
		said = said && err == nil
	}
	a.done++
	return a.done <= rounds || !said && time.Now().Before(a.end)
}

// Round returns the number of the process of the last More.
func (a *Attacker) Round() int { return a.done }

// Result ends the attacker. It returns how many processes the attacker saw before their program
// ran, how many of them it took over, and the host's objects that it found in them.
func (a *Attacker) Result(t *testing.T) (seen, seized int, found []string) {
	t.Helper()
	if err := os.WriteFile(a.out+"/stop", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := await(t, a.out+"/result")
	var all int
	if _, err := fmt.Sscanf(text, "%d %d %d", &seen, &seized, &all); err != nil {
		t.Fatal(err)
	}
	found = strings.Split(strings.TrimSpace(text), "\n")[1:]
	if len(found) != all {
		t.Fatalf("%d findings, told of %d", len(found), all)
	}
	t.Logf("%d processes seen before their program ran, %d of them seized, %d findings", seen, seized, all)
	return seen, seized, found
}

// Check ends the attacker, and fails the test unless it has tried and found nothing.
func (a *Attacker) Check(t *testing.T, caps []string) {
	t.Helper()
	seen, seized, found := a.Result(t)
	if seen == 0 || slices.Contains(caps, "CAP_SYS_PTRACE") && seized == 0 {
		t.Errorf("%d seen, %d seized: no attempt was made", seen, seized)
	}
	for _, f := range found[:min(len(found), 10)] {
		t.Error(f)
	}
}

// await reads a file once it has been written completely.
func await(t *testing.T, file string) string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(file), unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(roottest.Patience()); ; {
		if b, err := os.ReadFile(file); err == nil && (len(b) > 0 || filepath.Base(file) == "ready") {
			return string(b)
		}
		if time.Now().After(end) {
			t.Fatalf("no %s came", file)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
	}
}

// seizer searches its pid namespace for processes that do not run their program yet, and for the
// host's objects in them.
type seizer struct {
	seize        bool
	host         []string // the host's namespaces: mnt:[…]
	seen, seized int
	found        []string
	said         map[string]bool
}

// Main is the attacker's own program, which runs in a container.
func Main() error {
	runtime.LockOSThread() // ptrace demands that one thread attaches and waits
	s := &seizer{seize: os.Getenv(Env) == seize, host: strings.Split(os.Getenv(hostEnv), ","), said: map[string]bool{}}
	if err := os.WriteFile(out+"/ready", nil, 0o600); err != nil {
		return err
	}
	for round, last := 0, lastPid(); ; round++ {
		if round%4096 == 0 {
			if _, err := os.Stat(out + "/stop"); err == nil {
				break
			}
			last = max(last, lastPid()) // skip threads of this program, and processes it has missed
		}
		for p := last + 1; p < last+4; p++ {
			if s.try(p) {
				last = p
			}
		}
	}
	text := fmt.Sprintf("%d %d %d\n%s", s.seen, s.seized, len(s.found), strings.Join(s.found, "\n"))
	return os.WriteFile(out+"/result", []byte(text), 0o600)
}

// lastPid returns the pid assigned last in this pid namespace.
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

// try inspects a process, and reports whether it exists.
func (s *seizer) try(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid)
	fd, err := unix.Open(dir+"/comm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	var comm [32]byte
	n, _ := unix.Read(fd, comm[:])
	_ = unix.Close(fd)
	// Until it executes its program, a process has the name of the program that cloned
	// it.
	if n <= 0 || slices.Contains([]string{"attack", "true", "sh", "ls", "wc"}, strings.TrimSuffix(string(comm[:n]), "\n")) {
		return true // it runs its program, or is a thread of this one
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

// say reports something to the test, once.
func (s *seizer) say(what string) {
	if !s.said[what] {
		s.said[what] = os.WriteFile(out+"/"+what, nil, 0o600) == nil
	}
}

func (s *seizer) report(pid int, format string, args ...any) {
	s.found = append(s.found, strconv.Itoa(pid)+": "+fmt.Sprintf(format, args...))
}

// inspect searches a process for objects of the host.
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
	for _, ns := range kinds() {
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
	if b, err := os.ReadFile(dir + "/maps"); err == nil && !strings.Contains(string(b), "/bin/busybox") { // it may run its program by now
		s.memory(pid, string(b))
	}
	if b, err := os.ReadFile(dir + "/environ"); err == nil && len(b) > 0 && strings.Contains(string(b), "GOGC=") {
		s.report(pid, "the keeper's environment")
	}
	if s.seize { // the attacker has CAP_SYS_PTRACE, and its victim must have no more
		if b, err := os.ReadFile(dir + "/status"); err == nil {
			own, _ := os.ReadFile("/proc/thread-self/status")
			if theirs := capsIn(string(b)); theirs&^capsIn(string(own)) != 0 {
				s.report(pid, "capabilities %#x", theirs)
			}
		}
	}
}

// memory searches a process for a heap: it should have only a stack and a plan.
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
