// Package roottest gives a test a machine of its own: new mount, network and pid namespaces, so
// that it may mount, add links and start daemons without changing the host. Remaining processes die
// with its pid namespace.
//
// Run and Cgroup are for *_root_test.go files only, Eventually and Patience for any
// test. The package knows nothing of Longshore.
package roottest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Env must be 1 to run the tests that need root and a real kernel.
const Env = "LONGSHORE_ROOT_TESTS"

// ProgressEnv names a file, such as /dev/console, for the output of isolated tests as it comes,
// besides the report at their end.
const ProgressEnv = "LONGSHORE_TEST_PROGRESS"

// ParallelEnv must be 1 to run the tests of a package side by side, as many as -parallel says.
const ParallelEnv = "LONGSHORE_TEST_PARALLEL"

const childEnv = "LONGSHORE_ROOTTEST_CHILD"

// Run re-executes the calling top-level test in namespaces of its own and runs body
// there; the calling process only reports the result. Call it first, with the whole test
// as body. It skips the test unless Env is 1.
func Run(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(childEnv) == t.Name() {
		prepare(t)
		body(t)
		return
	}
	isolate(t)
}

func isolate(t *testing.T) {
	t.Helper()
	if os.Getenv(Env) != "1" {
		t.Skipf("needs root and a real kernel: set %s=1", Env)
	}
	if os.Geteuid() != 0 {
		t.Fatalf("%s=1 but not root", Env)
	}
	if strings.Contains(t.Name(), "/") {
		t.Fatalf("Run wants a top-level test, not %s", t.Name())
	}
	if os.Getenv(ParallelEnv) == "1" {
		t.Parallel()
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v=" + strconv.FormatBool(testing.Verbose()), "-test.count=1"}
	if d, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+timeUntil(d))
	}
	for _, a := range os.Args[1:] {
		if strings.HasPrefix(a, "-test.gocoverdir=") || a == "-test.short=true" {
			args = append(args, a)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), childEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	runtime.LockOSThread() // Pdeathsig is bound to the thread
	defer runtime.UnlockOSThread()
	var text bytes.Buffer
	cmd.Stdout = &text
	if name := os.Getenv(ProgressEnv); name != "" {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		cmd.Stdout = io.MultiWriter(&text, f)
	}
	cmd.Stderr = cmd.Stdout
	err = cmd.Run()
	out := text.String()
	if len(out) > 0 {
		t.Logf("in its own namespaces:\n%s", out)
	}
	if err != nil {
		t.Fatalf("isolated run: %v", err)
	}
	if strings.Contains(out, "--- SKIP: "+t.Name()+" ") {
		t.SkipNow()
	}
}

func prepare(t *testing.T) {
	t.Helper()
	for _, m := range []struct {
		source, target, fstype string
		flags                  uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV},
	} {
		if err := unix.Mount(m.source, m.target, m.fstype, m.flags, ""); err != nil {
			t.Fatalf("mount %s: %v", m.target, err)
		}
	}
	// Mount a new sysfs, which shows this network namespace's links. The host's cgroup
	// mounts are moved onto it unchanged.
	tmp, err := os.MkdirTemp("/run", "cgroup")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/sys/fs/cgroup", tmp, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		t.Fatalf("bind cgroups: %v", err)
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil {
		t.Fatalf("mount /sys: %v", err)
	}
	if err := unix.Mount(tmp, "/sys/fs/cgroup", "", unix.MS_MOVE, ""); err != nil {
		t.Fatalf("move cgroups: %v", err)
	}
	if err := os.Remove(tmp); err != nil {
		t.Fatal(err)
	}
	if err := loopbackUp(); err != nil {
		t.Fatalf("set lo up: %v", err)
	}
	become(t)
}

// loopbackUp sets IFF_UP on lo.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr)
}

// Cgroup makes a cgroup for the test in every hierarchy, and returns its path relative
// to the root of each ("/longshore-test-…"). When the test ends, its processes are
// killed and the cgroup is removed with everything below.
func Cgroup(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("/longshore-test-%d-%s", os.Getpid(), filepath.Base(t.TempDir()))
	name += strconv.FormatUint(uniq(), 36)
	t.Cleanup(func() {
		thaw("/sys/fs/cgroup/freezer" + name)
		for _, h := range hierarchies() {
			removeCgroup(t, h+name)
		}
	})
	return name
}

// thaw thaws all cgroups below a directory of cgroup v1, where no signal ends a frozen process.
func thaw(dir string) {
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			_ = os.WriteFile(filepath.Join(path, "freezer.state"), []byte("THAWED"), 0)
		}
		return nil
	})
}

func uniq() uint64 {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return 0
	}
	return st.Ino
}

func hierarchies() []string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return []string{"/sys/fs/cgroup"}
	}
	entries, err := os.ReadDir("/sys/fs/cgroup")
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join("/sys/fs/cgroup", e.Name()))
		}
	}
	return dirs
}

func removeCgroup(t *testing.T, dir string) {
	t.Helper()
	killAll(dir)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeCgroup(t, filepath.Join(dir, e.Name()))
		}
	}
	Eventually(t, "cgroup "+dir+" is removed", func() bool {
		killAll(dir)
		err := unix.Rmdir(dir)
		return err == nil || errors.Is(err, unix.ENOENT)
	})
}

// killAll kills the processes of a cgroup and of those below, and waits until they have ended. Processes that they start meanwhile
// are left to the next call. The first process of a test's pid namespace reaps them: a container's first process ends only when
// all others in its pid namespace are reaped, and those of a container that joined it may be children of nobody else.
func killAll(dir string) {
	var dying []unix.PollFd
	_ = filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return nil //nolint:nilerr // a cgroup that has gone
		}
		procs, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		for p := range strings.FieldsSeq(string(procs)) {
			pid, err := strconv.Atoi(p)
			if err != nil || pid <= 1 {
				continue
			}
			if fd, err := unix.PidfdOpen(pid, 0); err == nil {
				dying = append(dying, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
			}
		}
		return nil
	})
	for _, p := range dying {
		_ = unix.PidfdSendSignal(int(p.Fd), unix.SIGKILL, nil, 0)
	}
	for len(dying) > 0 {
		n, err := unix.Poll(dying, int(Patience().Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		dying = slices.DeleteFunc(dying, func(p unix.PollFd) bool {
			if n > 0 && p.Revents == 0 {
				return false
			}
			if os.Getpid() == 1 {
				_ = unix.Waitid(unix.P_PIDFD, int(p.Fd), nil, unix.WEXITED|unix.WNOHANG, nil)
			}
			_ = unix.Close(int(p.Fd))
			return true
		})
	}
}
