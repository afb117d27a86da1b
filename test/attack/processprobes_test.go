package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// on is a probe against another process, with its pid as argument.
func on(name string, do func(pid int) error, also ...unix.Errno) probe {
	return probe{name: name, run: func(args []string) result {
		if len(args) == 0 {
			return is(unmade, "no pid")
		}
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return is(unmade, "%v", err)
		}
		runtime.LockOSThread()
		return answered(fmt.Sprintf("%s %d", name, pid), do(pid), also...)
	}}
}

func file(pid int, name string, flags int) error {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", pid, name), flags|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	return err
}

// processProbes are against another process: one of the node's or, for the control, one
// that the probe itself has started.
func processProbes() []probe {
	return []probe{
		on("process: ptrace", func(pid int) error {
			if err := unix.PtraceSeize(pid); err != nil {
				return err
			}
			return nil
		}),
		on("process: read memory", func(pid int) error {
			buf := make([]byte, 8)
			_, err := unix.ProcessVMReadv(pid, []unix.Iovec{iovec(buf)}, []unix.RemoteIovec{{Base: 0x400000, Len: 8}}, 0)
			if err == unix.EFAULT { // it was allowed to look
				return nil
			}
			return err
		}),
		on("process: open mem", func(pid int) error { return file(pid, "mem", unix.O_RDWR) }),
		on("process: read environ", func(pid int) error { return file(pid, "environ", unix.O_RDONLY) }),
		on("process: look through root", func(pid int) error {
			_, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid))
			return err
		}),
		on("process: look through cwd", func(pid int) error {
			_, err := os.ReadDir(fmt.Sprintf("/proc/%d/cwd", pid))
			return err
		}),
		on("process: follow its descriptors", func(pid int) error { return file(pid, "fd/0", unix.O_RDONLY) }),
		only("nobody writes to a program that runs", on("process: write its program", func(pid int) error { return file(pid, "exe", unix.O_WRONLY) }, unix.ETXTBSY)),
		on("process: take a descriptor", func(pid int) error {
			p, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			fd, err := unix.PidfdGetfd(p, 0, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			return err
		}),
		on("process: enter its mount namespace", func(pid int) error {
			p, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				return err
			}
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			return unix.Setns(p, unix.CLONE_NEWNS)
		}),
	}
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return v
}

// initProbes inspect the init of a shared pid namespace, which a container's root may well
// trace: it must have nothing that the container has not. Their argument is a file of the
// host's.
func initProbes() []probe {
	const why = "it is about the sandbox's init"
	return []probe{
		{name: "init: its capabilities", outside: why, run: func([]string) result {
			its, own := capabilities("/proc/1/status"), capabilities("/proc/self/status")
			if more := its &^ own; more != 0 {
				return is(reached, "init may %#x, this process %#x", its, own)
			}
			return is(refused, "init may %#x, this process %#x", its, own)
		}},
		{name: "init: the host's files through its root", outside: why, run: through("/proc/1/root")},
		{name: "init: the host's files through its cwd", outside: why, run: through("/proc/1/cwd")},
		{name: "init: the host's files through its descriptors", outside: why, run: func(args []string) result {
			fds, err := os.ReadDir("/proc/1/fd")
			if err != nil {
				return answered("list /proc/1/fd", err)
			}
			for _, fd := range fds {
				for up := range 12 {
					if r := through("/proc/1/fd/" + fd.Name() + strings.Repeat("/..", up))(args); r.Outcome == reached {
						return r
					}
				}
			}
			return is(refused, "%d descriptors lead nowhere", len(fds))
		}},
		{name: "init: where the host's files are mounted", outside: why, run: func(args []string) result {
			b, err := os.ReadFile("/proc/1/mountinfo")
			if err != nil {
				return answered("read /proc/1/mountinfo", err)
			}
			if mountsBelow(string(b), filepath.Dir(args[0])) {
				return is(reached, "%s", b)
			}
			return is(refused, "%d lines, none of the node's directories", strings.Count(string(b), "\n"))
		}},
		{name: "init: its mount namespace", outside: why, run: func([]string) result {
			p, err := unix.PidfdOpen(1, 0)
			if err != nil {
				return is(unmade, "%v", err)
			}
			runtime.LockOSThread()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return answered("unshare", err)
			}
			return answered("setns", unix.Setns(p, unix.CLONE_NEWNS))
		}},
		{name: "init: write its program", outside: why, run: func([]string) result {
			return answered("open /proc/1/exe for writing", file(1, "exe", unix.O_WRONLY), unix.ETXTBSY)
		}},
	}
}

// through looks for a file of the host's below a directory.
func through(dir string) func([]string) result {
	return func(args []string) result {
		b, err := os.ReadFile(filepath.Join(dir, "/") + args[0])
		if err == nil {
			return is(reached, "%s has %q", dir, b)
		}
		if r := answered("read "+dir+args[0], err, unix.ENOENT, unix.ENOTDIR); r.Outcome != unmade {
			return r
		}
		return is(unmade, "%v", err)
	}
}

func capabilities(status string) (set uint64) {
	b, _ := os.ReadFile(status)
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapPrm:"); ok {
			set, _ = strconv.ParseUint(strings.TrimSpace(v), 16, 64)
		}
	}
	return set
}
