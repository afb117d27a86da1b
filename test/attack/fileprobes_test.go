package attack

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// opens opens a kernel file for writing and writes nothing.
func opens(path string) probe {
	return probe{name: "write " + path, run: func([]string) result {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return answered("open "+path+" for writing", err)
	}}
}

// reads reads the first bytes of a file.
func reads(path string) probe {
	return probe{name: "read " + path, run: func([]string) result {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return answered("open "+path, err)
		}
		defer func() { _ = unix.Close(fd) }()
		n, err := unix.Read(fd, make([]byte, 64))
		switch {
		case err != nil:
			return answered("read "+path, err, unix.EISDIR)
		case n == 0:
			return is(refused, "read %s: empty", path)
		}
		return is(reached, "read %s: %d bytes", path, n)
	}}
}

// finds looks for an entry in a directory.
func finds(dir string) probe {
	return probe{name: "list " + dir, run: func([]string) result {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return answered("list "+dir, err)
		}
		if len(entries) == 0 {
			return is(refused, "list %s: empty", dir)
		}
		return is(reached, "list %s: %s", dir, entries[0].Name())
	}}
}

// inCgroups opens a file of a cgroup hierarchy for writing.
func inCgroups(file string) probe {
	return probe{name: "write cgroup " + file, run: func([]string) result {
		found, _ := filepath.Glob("/sys/fs/cgroup/*/" + file)
		more, _ := filepath.Glob("/sys/fs/cgroup/" + file)
		found = append(found, more...)
		if len(found) == 0 {
			// A container's own cgroup namespace may not have such a file. Files above
			// it are tried by their path.
			fd, err := unix.Open("/sys/fs/cgroup/../cgroup/memory/"+file, unix.O_WRONLY|unix.O_CREAT, 0o600)
			if err == nil {
				_ = unix.Close(fd)
			}
			return answered("make "+file, err)
		}
		last := is(unmade, "nothing")
		for _, f := range found {
			fd, err := unix.Open(f, unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				_ = unix.Close(fd)
			}
			if last = answered("open "+f+" for writing", err); last.Outcome == reached {
				return last
			}
		}
		return last
	}}
}

// device makes a device node and opens it.
func device(name string, mode, major, minor uint32) probe {
	return probe{name: "open device " + name, run: func([]string) result {
		dir, err := os.MkdirTemp("/tmp", "probe")
		if err != nil {
			return is(unmade, "%v", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		path := filepath.Join(dir, "node")
		if err := unix.Mknod(path, mode|0o600, int(unix.Mkdev(major, minor))); err != nil {
			return answered("mknod "+name, err)
		}
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Close(fd)
		}
		return answered("mknod "+name+": done; open it", err)
	}}
}

// disk returns the first disk of the node, from /proc/partitions.
func disk() probe {
	return probe{name: "open device disk", run: func(args []string) result {
		b, err := os.ReadFile("/proc/partitions")
		if err != nil {
			return is(unmade, "%v", err)
		}
		for line := range strings.Lines(string(b)) {
			var major, minor, blocks uint32
			var name string
			if n, _ := fmt.Sscan(line, &major, &minor, &blocks, &name); n == 4 {
				return device(name, unix.S_IFBLK, major, minor).run(args)
			}
		}
		return is(absent, "the node has no disk: %q", b)
	}}
}

func fileProbes() []probe {
	var all []probe
	for _, f := range []string{
		"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/panic_on_oom", "/proc/sys/fs/binfmt_misc/register",
		"/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/mm/ksm/run", "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/block/vda/queue/read_ahead_kb",
		"/sys/module/kernel/parameters/panic",
	} {
		all = append(all, opens(f))
	}
	for _, f := range []string{"/proc/kcore", "/proc/timer_list", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug"} {
		all = append(all, reads(f))
	}
	all = append(all, finds("/sys/firmware"), finds("/proc/scsi"), finds("/sys/kernel/debug"))
	for _, f := range []string{"release_agent", "cgroup.procs", "memory.limit_in_bytes", "pids.max", "devices.allow", "cgroup.subtree_control"} {
		all = append(all, inCgroups(f))
	}
	return append(all, disk(), device("mem", unix.S_IFCHR, 1, 1), device("kmsg", unix.S_IFCHR, 1, 11), device("port", unix.S_IFCHR, 1, 4), device("fuse", unix.S_IFCHR, 10, 229))
}
