package apparmor

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

var all = Abilities{Mount: true, Ptrace: true, Signal: true, Network: true, Unix: true, UserNamespaces: true, Queues: true, Rings: true}

// denials returns the file rules of a profile that deny something.
func denials(t *testing.T, text string) []denial {
	t.Helper()
	var list []denial
	for line := range strings.Lines(text) {
		if words := strings.Fields(strings.TrimSuffix(strings.TrimSpace(line), ",")); len(words) == 3 && words[0] == "deny" {
			list = append(list, denial{words[1], words[2]})
		}
	}
	if len(list) == 0 {
		t.Fatalf("no denials in %s", text)
	}
	return list
}

// pattern returns the regular expression of an AppArmor path.
func pattern(glob string) *regexp.Regexp {
	var b strings.Builder
	depth := 0
	for i := 0; i < len(glob); i++ {
		switch c := glob[i]; {
		case strings.HasPrefix(glob[i:], "**"):
			b.WriteString(".*")
			i++
		case c == '*':
			b.WriteString("[^/]*")
		case c == '?':
			b.WriteString("[^/]")
		case c == '{':
			b.WriteString("(?:")
			depth++
		case c == '}':
			b.WriteString(")")
			depth--
		case c == ',' && depth > 0:
			b.WriteString("|")
		case c == '[':
			end := i + strings.IndexByte(glob[i:], ']')
			b.WriteString(glob[i : end+1])
			i = end
		default:
			b.WriteString(regexp.QuoteMeta(string(c)))
		}
	}
	return regexp.MustCompile("^(?:" + b.String() + ")$")
}

// TestTheProfileForbidsFiles: the kinds of access to files that the profile denies, and files beside
// them that a container needs.
func TestTheProfileForbidsFiles(t *testing.T) {
	list := denials(t, Profile("p", "", all))
	for file, want := range map[string]string{
		"/proc/sysrq-trigger":                    "rwklx",
		"/proc/kcore":                            "rwklx",
		"/proc/mem":                              "rwklx",
		"/proc/kmem":                             "rwklx",
		"/proc/timer_list":                       "w",
		"/proc/acpi/wakeup":                      "w",
		"/proc/bus/pci/00/00.0":                  "w",
		"/proc/irq/1/smp_affinity":               "w",
		"/proc/fs/nfsd/exports":                  "w",
		"/proc/scsi/scsi":                        "w",
		"/proc/s/x":                              "w",
		"/proc/sy/x":                             "w",
		"/proc/sysvipc/shm":                      "w",
		"/proc/sys/vm/drop_caches":               "w",
		"/proc/sys/net/ipv4/ip_forward":          "w",
		"/proc/sys/fs/binfmt_misc/register":      "w",
		"/proc/sys/k/x":                          "w",
		"/proc/sys/kernels":                      "w",
		"/proc/sys/kernel/core_pattern":          "w",
		"/proc/sys/kernel/s":                     "w",
		"/proc/sys/kernel/sem":                   "w",
		"/proc/sys/kernel/sh":                    "w",
		"/proc/sys/kernel/random/uuid":           "w",
		"/proc/sys/kernel/shmmax":                "",
		"/proc/sys/kernel/shm_rmid_forced":       "",
		"/proc/1/oom_score_adj":                  "",
		"/proc/4242/task/4242/attr/exec":         "",
		"/sys/kernel/debug/sched/features":       "wklx",
		"/sys/module/apparmor/parameters/mode":   "wklx",
		"/sys/firmware/efi/efivars/x":            "rwklx",
		"/sys/devices/virtual/powercap/x/energy": "rwklx",
		"/sys/kernel/security/apparmor/.remove":  "rwklx",
		"/sys/f/x":                               "wklx",
		"/sys/fsx/x":                             "wklx",
		"/sys/fs/bpf/x":                          "wklx",
		"/sys/fs/c/x":                            "wklx",
		"/sys/fs/cg/x":                           "wklx",
		"/sys/fs/cgroup2/x":                      "wklx",
		"/sys/fs/pstore/x":                       "wklx",
		"/sys/fs/cgroup/memory/x/cgroup.procs":   "",
		"/sys/fs/cgroup/cgroup.procs":            "",
		"/etc/passwd":                            "",
		"/data/proc/kcore":                       "",
	} {
		got := ""
		for _, access := range "rwklx" {
			if slices.ContainsFunc(list, func(d denial) bool {
				return strings.ContainsRune(d.access, access) && pattern(d.path).MatchString(file)
			}) {
				got += string(access)
			}
		}
		if got != want {
			t.Errorf("%s: %q is denied, want %q", file, got, want)
		}
	}
}

// TestTheProfileHasTheRulesOfItsKernel: a rule of a class that the kernel or the parser does not know
// would make the whole profile fail.
func TestTheProfileHasTheRulesOfItsKernel(t *testing.T) {
	rules := map[string]Abilities{
		"  network,": {Network: true}, "  unix,": {Unix: true}, "  deny mount,": {Mount: true}, "  umount,": {Mount: true},
		"  userns,": {UserNamespaces: true}, "  mqueue,": {Queues: true}, "  io_uring,": {Rings: true},
		"  signal (send, receive) peer=p,": {Signal: true}, "  signal (receive) peer=unconfined,": {Signal: true},
		"  ptrace (trace, tracedby, read, readby) peer=p,": {Ptrace: true}, "  ptrace (readby, tracedby) peer=unconfined,": {Ptrace: true},
	}
	full, none := Profile("p", "agent", all), Profile("p", "agent", Abilities{})
	for rule, class := range rules {
		for text, want := range map[string]bool{full: true, none: false, Profile("p", "agent", class): true} {
			if strings.Contains(text, rule+"\n") != want {
				t.Errorf("rule %q in %s: want %v", rule, text, want)
			}
		}
	}
	for _, rule := range []string{"  file,", "  capability,"} {
		if !strings.Contains(none, rule+"\n") {
			t.Errorf("no %q in %s", rule, none)
		}
	}
}

// TestTheDaemonsProfileIsAPeer, once: containers are stopped by the agent.
func TestTheDaemonsProfileIsAPeer(t *testing.T) {
	for daemon, want := range map[string]int{"": 3, "unconfined": 3, "crun": 3, "/usr/bin/longshore": 4} {
		text := Profile("p", daemon, all)
		if got := strings.Count(text, "signal (receive)"); got != want || daemon != "" && strings.Count(text, "signal (receive) peer="+daemon+",\n") != 1 {
			t.Errorf("daemon %q: %d peers, want %d:\n%s", daemon, got, want, text)
		}
	}
}
