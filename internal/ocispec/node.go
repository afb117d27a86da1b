package ocispec

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Node has the rights and features that this process may give to a container, read once.
type Node struct {
	// Capabilities are those in our own bounding and permitted sets.
	Capabilities []string
	// MayRaise says that we hold CAP_SYS_RESOURCE: limits may be raised and
	// out-of-memory scores lowered at will.
	MayRaise bool
	// OOMScoreAdj is our own.
	OOMScoreAdj int
	// Rlimits are our own hard limits, by the OCI spec's names.
	Rlimits map[string]uint64
	// MaxFiles is fs.nr_open, which no RLIMIT_NOFILE may pass; 0 when unknown.
	MaxFiles uint64
	// Seccomp, AppArmor and SELinux say whether this kernel has them switched on.
	Seccomp, AppArmor, SELinux bool
}

func rlimitNumbers() map[string]int {
	return map[string]int{
		"RLIMIT_CPU": unix.RLIMIT_CPU, "RLIMIT_FSIZE": unix.RLIMIT_FSIZE, "RLIMIT_DATA": unix.RLIMIT_DATA,
		"RLIMIT_STACK": unix.RLIMIT_STACK, "RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_RSS": unix.RLIMIT_RSS,
		"RLIMIT_NPROC": unix.RLIMIT_NPROC, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK,
		"RLIMIT_AS": unix.RLIMIT_AS, "RLIMIT_LOCKS": unix.RLIMIT_LOCKS, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
		"RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE, "RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO,
		"RLIMIT_RTTIME": unix.RLIMIT_RTTIME,
	}
}

// ReadNode reads this process and this kernel.
func ReadNode() (Node, error) {
	n := Node{Rlimits: map[string]uint64{}}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return n, fmt.Errorf("read our own limits: %w", err)
	}
	defer func() { _ = f.Close() }()
	held := ^uint64(0)
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		key, value, _ := strings.Cut(sc.Text(), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "CapBnd", "CapPrm":
			mask, err := strconv.ParseUint(value, 16, 64)
			if err != nil {
				return n, fmt.Errorf("read our own capabilities: %w", err)
			}
			held &= mask
		case "Seccomp":
			n.Seccomp = true // a kernel without it has no such line
		}
	}
	for i, name := range AllCapabilities() {
		if held&(1<<i) != 0 {
			n.Capabilities = append(n.Capabilities, name)
		}
	}
	slices.Sort(n.Capabilities)
	n.MayRaise = slices.Contains(n.Capabilities, "CAP_SYS_RESOURCE")
	if b, err := os.ReadFile("/proc/self/oom_score_adj"); err == nil {
		n.OOMScoreAdj, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	if b, err := os.ReadFile("/proc/sys/fs/nr_open"); err == nil {
		n.MaxFiles, _ = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	}
	for name, number := range rlimitNumbers() {
		var l unix.Rlimit
		if err := unix.Getrlimit(number, &l); err == nil {
			n.Rlimits[name] = l.Max
		}
	}
	n.AppArmor = AppArmorEnabled()
	n.SELinux = SELinuxEnabled()
	return n, nil
}

// Clamp fits a spec to this node and returns a warning for each removed part, once.
func (n Node) Clamp(s *specs.Spec) []string {
	var warnings []string
	if s.Process != nil {
		warnings = n.ClampProcess(s.Process)
	}
	if s.Linux != nil {
		if s.Linux.Seccomp != nil && !n.Seccomp {
			s.Linux.Seccomp = nil
			warnings = append(warnings, "seccomp: this kernel has none, system calls are not filtered")
		}
		if s.Linux.MountLabel != "" && !n.SELinux {
			s.Linux.MountLabel = "" // goes with the process's label, warned of there
		}
	}
	return warnings
}

// ClampProcess is Clamp for a process alone, as an exec's.
func (n Node) ClampProcess(p *specs.Process) []string {
	var warnings []string
	if p.Capabilities != nil {
		if lost := n.clampCapabilities(p); len(lost) > 0 {
			warnings = append(warnings, "capabilities not held by the agent itself, left out: "+strings.Join(lost, " "))
		}
	}
	rlimits := slices.Clone(p.Rlimits)
	for i := range rlimits {
		if w := n.clampRlimit(&rlimits[i]); w != "" {
			warnings = append(warnings, w)
		}
	}
	p.Rlimits = n.dumping(rlimits)
	if a := p.OOMScoreAdj; a != nil && *a < n.OOMScoreAdj && !n.MayRaise {
		warnings = append(warnings, fmt.Sprintf("oom_score_adj %d is below the agent's own and needs CAP_SYS_RESOURCE: set to %d", *a, n.OOMScoreAdj))
		own := n.OOMScoreAdj
		p.OOMScoreAdj = &own
	}
	if p.ApparmorProfile != "" && !n.AppArmor {
		if p.ApparmorProfile != "unconfined" && p.ApparmorProfile != DefaultProfile {
			warnings = append(warnings, "apparmor profile "+p.ApparmorProfile+": apparmor is off on this node")
		}
		p.ApparmorProfile = ""
	}
	if p.SelinuxLabel != "" && !n.SELinux {
		warnings = append(warnings, "selinux label "+p.SelinuxLabel+": selinux is off on this node")
		p.SelinuxLabel = ""
	}
	return warnings
}

// dumping has a process without a limit of core dumps get our hard one, as other
// engines have it: we keep our soft one at 0 for our own sake.
func (n Node) dumping(rlimits []specs.POSIXRlimit) []specs.POSIXRlimit {
	const core = "RLIMIT_CORE"
	if hard := n.Rlimits[core]; hard > 0 && !slices.ContainsFunc(rlimits, func(l specs.POSIXRlimit) bool { return l.Type == core }) {
		rlimits = append(rlimits, specs.POSIXRlimit{Type: core, Soft: hard, Hard: hard})
	}
	return rlimits
}

func (n Node) clampCapabilities(p *specs.Process) (lost []string) {
	c := *p.Capabilities
	for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Permitted, &c.Inheritable, &c.Ambient} {
		var kept []string
		for _, name := range *set {
			switch {
			case slices.Contains(n.Capabilities, name):
				kept = append(kept, name)
			case !slices.Contains(lost, name):
				lost = append(lost, name)
			}
		}
		*set = kept
	}
	p.Capabilities = &c
	slices.Sort(lost)
	return lost
}

func (n Node) clampRlimit(l *specs.POSIXRlimit) string {
	most, ok := n.Rlimits[l.Type]
	if !ok || n.MayRaise {
		most = unix.RLIM_INFINITY
	}
	if l.Type == "RLIMIT_NOFILE" && n.MaxFiles > 0 {
		most = min(most, n.MaxFiles)
	}
	if l.Hard <= most && l.Soft <= most {
		return ""
	}
	w := fmt.Sprintf("%s %s:%s is above the agent's own limit: set to at most %d", l.Type, limitText(l.Soft), limitText(l.Hard), most)
	l.Hard, l.Soft = min(l.Hard, most), min(l.Soft, most)
	return w
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
