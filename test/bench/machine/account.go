package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Account counts the CPU time of a server and of all processes that it starts, which is charged to
// a cgroup above the server's and its pods': it includes a shim that moves itself into a pod's, and
// ended programs, but not later work of the kernel's own threads.
type Account struct {
	dir  string // cpuacct's on v1, else v2's
	v2   bool
	join string // a single-threaded process joins by writing 0 to this file
}

// Pods is the cgroup below which pods are to be, from the root of each hierarchy.
func Pods() string { return "/" + Name() + "/pods" }

// NewAccount makes one for this run.
func NewAccount() (*Account, error) {
	for _, v1 := range []string{"cpuacct", "cpu,cpuacct"} {
		a := &Account{dir: filepath.Join("/sys/fs/cgroup", v1, Name())}
		if _, err := os.Stat(filepath.Join(filepath.Dir(a.dir), "cpuacct.usage")); err == nil {
			// tasks, not cgroup.procs: that one waits for every CPU.
			a.join = filepath.Join(a.dir, "server", "tasks")
			return a, os.MkdirAll(filepath.Dir(a.join), 0o755)
		}
	}
	a := &Account{dir: filepath.Join("/sys/fs/cgroup", Name()), v2: true}
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil {
		return nil, errors.New("neither cpuacct nor cgroup v2 is mounted")
	}
	a.join = filepath.Join(a.dir, "server", "cgroup.procs")
	return a, os.MkdirAll(filepath.Dir(a.join), 0o755)
}

// Command is argv wrapped so that it runs on the account from its first
// instruction.
func (a *Account) Command(argv ...string) []string {
	return append([]string{"/bin/sh", "-c", `echo 0 >"$0" && exec "$@"`, a.join}, argv...)
}

// Used is the CPU time charged so far; 0 for none.
func (a *Account) Used() (time.Duration, error) {
	if a == nil {
		return 0, nil
	}
	if !a.v2 {
		b, err := os.ReadFile(filepath.Join(a.dir, "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return time.Duration(n), err
	}
	b, err := os.ReadFile(filepath.Join(a.dir, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "usage_usec "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(v), 10, 64)
			return time.Duration(n) * time.Microsecond, err
		}
	}
	return 0, errors.New("cpu.stat has no usage_usec")
}

// OwnCost is the CPU time that a program uses by itself, without any server: until it has written a
// line, and until it has ended by a SIGTERM after that; the mean of n runs. Other work on the
// account meanwhile is included.
func (a *Account) OwnCost(ctx context.Context, n int, argv []string) (line, life time.Duration, err error) {
	for range n {
		toLine, toEnd, err := a.once(ctx, argv)
		if err != nil {
			return 0, 0, err
		}
		line, life = line+toLine, life+toEnd
	}
	return line / time.Duration(n), life / time.Duration(n), nil
}

func (a *Account) once(ctx context.Context, argv []string) (line, life time.Duration, err error) {
	before, err := a.Used()
	if err != nil {
		return 0, 0, err
	}
	argv = a.Command(argv...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	said, usedErr := a.Used()
	_ = unix.Kill(cmd.Process.Pid, unix.SIGTERM)
	state, waitErr := cmd.Process.Wait()
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	if err = errors.Join(err, usedErr, waitErr); err != nil {
		return 0, 0, err
	}
	if !state.Success() {
		return 0, 0, fmt.Errorf("%s: %s", argv[len(argv)-1], state)
	}
	after, err := a.Used()
	return said - before, after - before, err
}

// CPU is the CPU time that the whole machine has used, in ticks of 10 ms.
func CPU() time.Duration {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var busy time.Duration
	for i, f := range strings.Fields(line)[1:] {
		n, _ := strconv.ParseInt(f, 10, 64)
		if i != 3 && i != 4 && i < 8 { // not idle, not iowait, guests are in user already
			busy += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return busy
}
