// Package apparmor generates the default AppArmor profile of containers and loads it into the
// kernel.
//
// Profile generates the text. It is a function of its arguments: the kernel's abilities and the
// name of the agent's own profile. Loader reads the abilities of the kernel and runs
// apparmor_parser. Start at
// Loader.Ensure.
package apparmor

import (
	"fmt"
	"strings"
)

// Abilities are the classes of rules that a kernel enforces and a parser can compile.
type Abilities struct {
	Mount, Ptrace, Signal, Network, Unix bool
	// UserNamespaces, Queues and Rings are mediated only by newer kernels, with a parser of version
	// 4 or later. Other parsers know no such rules.
	UserNamespaces, Queues, Rings bool
}

// Profile returns the text of the default profile. Processes without a profile, and processes with
// the agent's own profile, daemon, may signal and trace a container's processes. These may signal and
// trace processes with the default profile only.
//
// Everything that follows from no rule is forbidden, such as a change to another profile. The
// text includes no files of the host, so that it can be loaded where these are missing.
func Profile(name, daemon string, can Abilities) string {
	var b strings.Builder
	rule := func(format string, args ...any) { fmt.Fprintf(&b, "  "+format+",\n", args...) }
	fmt.Fprintf(&b, "profile %s flags=(attach_disconnected,mediate_deleted) {\n", name)
	rule("file")
	rule("capability")
	for _, class := range []struct {
		rule string
		can  bool
	}{
		{"network", can.Network},
		{"unix", can.Unix},
		{"umount", can.Mount},
		{"deny mount", can.Mount},
		{"userns", can.UserNamespaces},
		{"mqueue", can.Queues},
		{"io_uring", can.Rings},
	} {
		if class.can {
			rule("%s", class.rule)
		}
	}
	for _, peer := range peers(daemon) {
		if can.Signal {
			rule("signal (receive) peer=%s", peer)
		}
		if can.Ptrace {
			rule("ptrace (readby, tracedby) peer=%s", peer)
		}
	}
	if can.Signal {
		rule("signal (send, receive) peer=%s", name)
	}
	if can.Ptrace {
		rule("ptrace (trace, tracedby, read, readby) peer=%s", name)
	}
	for _, r := range forbidden() {
		rule("deny %s %s", r.path, r.access)
	}
	b.WriteString("}\n")
	return b.String()
}

// peers are the profiles of the programs that start, stop and examine containers.
func peers(daemon string) []string {
	list := []string{"unconfined", "runc", "crun"}
	for _, p := range list {
		if daemon == p || daemon == "" {
			return list
		}
	}
	return append(list, daemon)
}

// denial is a rule that forbids kinds of access to files.
type denial struct{ path, access string }

// forbidden are the files that change or show the host's kernel. A container sees most of them
// read-only or not at all; these rules hold after it has remounted or unmounted something.
func forbidden() []denial {
	list := []denial{
		{"/proc/*", "w"},
		{"/proc/sysrq-trigger", "rwklx"},
		{"/proc/kcore", "rwklx"},
		{"/proc/mem", "rwklx"},
		{"/proc/kmem", "rwklx"},
		{"/sys/firmware/**", "rwklx"},
		{"/sys/devices/virtual/powercap/**", "rwklx"},
		{"/sys/kernel/security/**", "rwklx"},
	}
	add := func(dir, keep, first, rest, access string) {
		list = append(list, denial{dir + "{" + strings.Join(others(keep, first, rest), ",") + "}{,/**}", access})
	}
	add("/proc/", "sys", "1-9", "?*", "w")       // the directories of processes are theirs
	add("/proc/sys/", "kernel", "", "?*", "w")   // parameters of the kernel,
	add("/proc/sys/kernel/", "shm", "", "", "w") // but for those of shared memory
	add("/sys/", "fs", "", "?*", "wklx")
	add("/sys/fs/", "cgroup", "", "?*", "wklx") // systemd in a container writes its cgroups
	return list
}

// others returns patterns that together match all names except keep and names that begin with a
// character of first. rest is the pattern of names' ends: keep followed by rest is matched too.
func others(keep, first, rest string) []string {
	var list []string
	for i := range len(keep) {
		class := "[^" + keep[i:i+1] + "/]"
		if i == 0 {
			class = "[^" + first + keep[:1] + "/]"
		}
		list = append(list, keep[:i]+class+"*")
		if i > 0 {
			list = append(list, keep[:i])
		}
	}
	if rest != "" {
		list = append(list, keep+rest)
	}
	return list
}
