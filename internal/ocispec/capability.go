package ocispec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// AllCapabilities are the capabilities this code knows, in the kernel's order:
// the index is the number.
func AllCapabilities() []string {
	return []string{
		"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
		"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW",
		"CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_PACCT",
		"CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
		"CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
		"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF", "CAP_CHECKPOINT_RESTORE",
	}
}

// DefaultCapabilities are the fourteen that container engines agree on.
func DefaultCapabilities() []string {
	return []string{
		"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_MKNOD",
		"CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
	}
}

// Capabilities is base with add put in and drop taken out. Names may lack
// "CAP_" and be of any case. ALL in drop empties the base before add is put in;
// ALL in add is everything, before drop is taken out. InvalidArgument names one
// that is unknown. The result is sorted.
func Capabilities(base, add, drop []string) ([]string, error) {
	add, addAll, err := capabilityNames(add)
	if err != nil {
		return nil, err
	}
	drop, dropAll, err := capabilityNames(drop)
	if err != nil {
		return nil, err
	}
	set := map[string]bool{}
	switch {
	case addAll:
		for _, c := range AllCapabilities() {
			set[c] = true
		}
	case !dropAll:
		for _, c := range base {
			set[c] = true
		}
	}
	if addAll && dropAll {
		clear(set)
	}
	if !dropAll {
		for _, c := range drop {
			delete(set, c)
		}
	}
	// A capability that is added by name is wanted even if ALL was dropped, but not if it is also
	// dropped by name.
	for _, c := range add {
		if !slices.Contains(drop, c) {
			set[c] = true
		}
	}
	out := make([]string, 0, len(set))
	for c := range set {
		out = append(out, c)
	}
	slices.Sort(out)
	return out, nil
}

func capabilityNames(in []string) (names []string, all bool, err error) {
	known := AllCapabilities()
	for _, n := range in {
		c := strings.ToUpper(strings.TrimSpace(n))
		if c == "ALL" || c == "CAP_ALL" {
			all = true
			continue
		}
		if !strings.HasPrefix(c, "CAP_") {
			c = "CAP_" + c
		}
		if !slices.Contains(known, c) {
			return nil, false, fmt.Errorf("unknown capability %q: %w", n, errdefs.ErrInvalidArgument)
		}
		names = append(names, c)
	}
	return names, all, nil
}

// CapabilitySets puts caps in the sets of a container's root: bounding, effective and permitted.
// Nothing is inheritable, so that a program with file capabilities gets only those of the file.
func CapabilitySets(caps []string) *specs.LinuxCapabilities {
	return &specs.LinuxCapabilities{Bounding: slices.Clone(caps), Effective: slices.Clone(caps), Permitted: slices.Clone(caps)}
}

// ForUser removes the capabilities in force of a process that is not root, as setuid would. The
// bounding set stays, for programs of root with set-user-ID. Ambient ones are the request's and
// stay.
func ForUser(p *specs.Process) {
	if p.User.UID != 0 {
		setInForce(p, func(c *specs.LinuxCapabilities) []string { return c.Ambient })
	}
}

// setInForce makes a process's effective and permitted capabilities those that of returns.
func setInForce(p *specs.Process, of func(*specs.LinuxCapabilities) []string) {
	if p.Capabilities == nil {
		return
	}
	c := *p.Capabilities
	c.Effective, c.Permitted = slices.Clone(of(&c)), slices.Clone(of(&c))
	p.Capabilities = &c
}
