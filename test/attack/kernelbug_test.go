package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// bugProbe is an attack with the host's mounts and every capability over one's own user namespace. Its arguments are the directory of
// kernelBugFiles and the agent's pid.
func bugProbe(name string, call func(dir string, agent int) error) probe {
	return probe{name: "kernel bug: " + name, run: func(args []string) result {
		if len(args) != 2 {
			return is(unmade, "%q", args)
		}
		agent, err := strconv.Atoi(args[1])
		if err != nil {
			return is(unmade, "%v", err)
		}
		if caps := effective(); os.Getuid() != 0 || caps>>unix.CAP_SYS_ADMIN&1 == 0 || caps>>unix.CAP_DAC_OVERRIDE&1 == 0 {
			return is(unmade, "it is not root with all capabilities: uid %d, %x", os.Getuid(), caps)
		}
		r := answered(name, call(args[0], agent), unix.EOVERFLOW)
		r.Evidence += fmt.Sprint(", uid_map ", one(readText("/proc/self/uid_map")))
		return r
	}}
}

// effective returns the process's capabilities.
func effective() (caps uint64) {
	_, after, _ := strings.Cut(readText("/proc/self/status"), "\nCapEff:")
	_, _ = fmt.Sscanf(after, "%x", &caps)
	return caps
}

func readText(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// kernelBugFiles are the files of the attacked directory, with their modes. All belong to the host's root.
func kernelBugFiles() map[string]os.FileMode {
	return map[string]os.FileMode{"secret": 0o600, "public": 0o644, "program": 0o755, "closed/in": 0o600, "open/theirs": 0o644, "devices/.keep": 0o644, "remove/me": 0o644, "group": 0o640}
}

// kernelBugProbes are the attacks on the host's files, and on its processes and kernel.
func kernelBugProbes() []probe {
	at := func(call func(path string) error, name string) func(string, int) error {
		return func(dir string, _ int) error { return call(filepath.Join(dir, name)) }
	}
	open := func(flags int) func(string) error {
		return func(path string) error {
			fd, err := unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o600)
			if err == nil {
				defer func() { _ = unix.Close(fd) }()
				if flags == unix.O_RDONLY {
					_, err = unix.Read(fd, make([]byte, 1))
				}
			}
			return err
		}
	}
	list := func(path string) error {
		_, err := os.ReadDir(path)
		return err
	}
	const capability = "\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\xff\x01\x00\x00\x00\x00\x00\x00" // VFS_CAP_REVISION_2, all effective
	const device = int(1)<<8 | 1                                                                          // /dev/mem
	all := []probe{
		bugProbe("read a file of root's", at(open(unix.O_RDONLY), "secret")),
		bugProbe("read a file of root's group", at(open(unix.O_RDONLY), "group")),
		bugProbe("write a file of root's", at(open(unix.O_WRONLY), "secret")),
		bugProbe("write a file that all read", at(open(unix.O_WRONLY|unix.O_APPEND), "public")),
		bugProbe("read a file in a closed directory", at(open(unix.O_RDONLY), "closed/in")),
		bugProbe("list a closed directory", at(list, "closed")),
		bugProbe("make a file", at(open(unix.O_WRONLY|unix.O_CREAT), "open/new")),
		bugProbe("remove a file", at(unix.Unlink, "remove/me")),
		bugProbe("rename a file", func(dir string, _ int) error {
			return unix.Rename(filepath.Join(dir, "open/theirs"), filepath.Join(dir, "open/ours"))
		}),
		bugProbe("link a file of root's", func(dir string, _ int) error {
			return unix.Link(filepath.Join(dir, "secret"), filepath.Join(dir, "open/link"))
		}),
		bugProbe("make a program setuid", at(func(p string) error { return unix.Chmod(p, 0o4755) }, "program")),
		bugProbe("take a file", at(func(p string) error { return unix.Chown(p, 0, 0) }, "secret")),
		bugProbe("give a program capabilities", at(func(p string) error { return unix.Setxattr(p, "security.capability", []byte(capability), 0) }, "program")),
		bugProbe("make a device", at(func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o666, device) }, "devices/mem")),
		bugProbe("mount over a directory", at(func(p string) error {
			err := unix.Mount("tmpfs", p, "tmpfs", 0, "size=4k")
			if err == nil {
				return unix.Unmount(p, unix.MNT_DETACH)
			}
			return err
		}, "devices")),
		bugProbe("change the host's mounts", func(string, int) error { return unix.Mount("", "/", "", unix.MS_PRIVATE, "") }),
		bugProbe("read the agent's memory", func(_ string, agent int) error {
			return open(unix.O_RDWR)(fmt.Sprintf("/proc/%d/mem", agent))
		}),
		bugProbe("list the agent's descriptors", func(_ string, agent int) error { return list(fmt.Sprintf("/proc/%d/fd", agent)) }),
		bugProbe("signal the agent", func(_ string, agent int) error { return unix.Kill(agent, 0) }),
		bugProbe("trace the agent", func(_ string, agent int) error {
			err := unix.PtraceSeize(agent)
			if err == nil {
				_ = unix.PtraceDetach(agent)
			}
			return err
		}),
	}
	for _, p := range []string{"/etc/shadow", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sysrq-trigger"} {
		all = append(all, bugProbe("write "+p, func(string, int) error { return open(unix.O_WRONLY)(p) }))
	}
	for _, p := range []string{"/etc/shadow", "/proc/kcore", "/root"} {
		if p == "/root" {
			all = append(all, bugProbe("make a file in /root", func(string, int) error {
				const file = "/root/.longshore-attack"
				err := unix.Mknod(file, unix.S_IFREG|0o600, 0)
				if err == nil {
					return unix.Unlink(file)
				}
				return err
			}))
			continue
		}
		all = append(all, bugProbe("read "+p, func(string, int) error { return open(unix.O_RDONLY)(p) }))
	}
	return all
}
