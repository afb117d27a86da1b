package compile

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// ReadHost reads the compiler's facts about this node. The agent calls it once, when it starts.
func ReadHost() (Host, error) {
	var h Host
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return h, err
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			if h.Bounding, err = strconv.ParseUint(strings.TrimSpace(hex), 16, 64); err != nil {
				return h, fmt.Errorf("read our capabilities: %w", err)
			}
		}
	}
	last, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return h, err
	}
	if h.LastCap, err = strconv.Atoi(strings.TrimSpace(string(last))); err != nil {
		return h, fmt.Errorf("read the last capability: %w", err)
	}
	_, err = os.Stat("/proc/kcore")
	h.Kcore = err == nil
	h.ProcPidNS = procPidNS()
	h.Landlock = landlockVersion()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return h, err
	}
	h.Hierarchies, h.Unified = hierarchies(string(mounts)), unifiedOptions(string(mounts))
	h.Initramfs = onInitramfs(string(mounts))
	return h.Refresh(), nil
}

// owns reports whether a namespace given by path is the host's own.
func (Host) owns(ns specs.LinuxNamespace) bool {
	file := string(ns.Type)
	if ns.Type == specs.NetworkNamespace {
		file = "net"
	}
	theirs, err := os.Stat(ns.Path)
	// The thread's: /proc/self is the first thread, which may have stayed in a sandbox's namespace.
	ours, err2 := os.Stat("/proc/thread-self/ns/" + file)
	return err == nil && err2 == nil && os.SameFile(theirs, ours)
}

// first returns the directory in /proc of the first process of a pid namespace, or "". That process may end, and another one may
// get its pid: the user must check.
func (Host) first(namespace string) string {
	pids, err := os.ReadDir("/proc")
	if err != nil {
		return ""
	}
	wanted, err := os.Stat(namespace)
	if err != nil {
		return ""
	}
	for _, p := range pids {
		dir := "/proc/" + p.Name()
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		if its, err := os.Stat(dir + "/ns/pid"); err != nil || !os.SameFile(its, wanted) {
			continue
		}
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(status)) {
			if ids := strings.Fields(line); len(ids) > 1 && ids[0] == "NSpid:" && ids[len(ids)-1] == "1" {
				return dir
			}
		}
	}
	return ""
}

// unifiedOptions returns the options of the mounted v2 tree.
func unifiedOptions(mountinfo string) string {
	for line := range strings.Lines(mountinfo) {
		_, after, _ := strings.Cut(line, " - ")
		if g := strings.Fields(after); len(g) == 3 && g[0] == "cgroup2" {
			opts := slices.DeleteFunc(strings.Split(g[2], ","), func(o string) bool { return o == "rw" || o == "ro" })
			return strings.Join(opts, ",")
		}
	}
	return ""
}

// hierarchies finds the v1 hierarchies mounted below /sys/fs/cgroup.
func hierarchies(mountinfo string) []Hierarchy {
	var all []Hierarchy
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 || g[0] != "cgroup" {
			continue
		}
		name, ok := strings.CutPrefix(f[4], "/sys/fs/cgroup/")
		if !ok || strings.Contains(name, "/") {
			continue
		}
		var opts []string
		for _, o := range strings.Split(g[2], ",") {
			switch {
			case strings.HasPrefix(o, "name="):
				opts = append(opts, "none", o)
			case o != "rw" && o != "ro" && !strings.Contains(o, "="):
				opts = append(opts, o)
			}
		}
		if at, found := slices.BinarySearchFunc(all, name, func(h Hierarchy, name string) int { return strings.Compare(h.Name, name) }); !found {
			all = slices.Insert(all, at, Hierarchy{Name: name, Options: strings.Join(opts, ",")})
		}
	}
	return all
}
