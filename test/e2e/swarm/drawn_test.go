package swarm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// drawn is a service with random values, and the parts of its task's view that they decide.
type drawn struct {
	rnd     *rand.Rand
	options []string // of docker service create
	args    []string // of its program
	named   []string // the options' names
	files   []string // in the container
	targets []string // of mounts
	hosts   []string // names in /etc/hosts
	sysctls []string
	host    bool // it has a hostname of its own
}

// word is some letters.
func (d *drawn) word() string {
	text := make([]byte, 3+d.rnd.IntN(6))
	for i := range text {
		text[i] = byte('a' + d.rnd.IntN(26))
	}
	return string(text)
}

// one is one of several.
func (d *drawn) one(of ...string) string { return of[d.rnd.IntN(len(of))] }

func (d *drawn) option(name string, values ...string) {
	d.named = append(d.named, name)
	for _, v := range values {
		d.options = append(d.options, "--"+name+"="+v)
	}
}

// addedCapabilities returns values of --cap-add. ALL is one of them only on a machine that has all capabilities, because
// the runc beside dockerd 20.10 fails otherwise.
func addedCapabilities() []string {
	list := []string{"NET_ADMIN", "CAP_SYS_PTRACE", "SYS_TIME"}
	for c := uintptr(0); ; c++ {
		switch has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); {
		case err != nil: // the kernel has no such capability
			return append(list, "ALL")
		case has == 0:
			return list
		}
	}
}

// draw draws the values of a service, with a secret and a config that there are, and a directory of the node.
func draw(rnd *rand.Rand, secret, config, dir string, newer bool) *drawn {
	d := &drawn{rnd: rnd}
	id := func() string { return fmt.Sprint(rnd.IntN(70000)) }
	uid := id()
	all := map[string]func(name string){
		"env": func(name string) {
			for range 1 + rnd.IntN(3) {
				d.option(name, strings.ToUpper(d.word())+"="+d.one("", "{{.Service.Name}}", "{{.Service.ID}}", "a b", `"quoted"`, "x=y", "$HOME", "ü"))
			}
		},
		"hostname": func(name string) {
			d.host = true
			d.option(name, d.one(d.word(), "{{.Service.Name}}", "h-{{.Service.ID}}"))
		},
		"user":    func(name string) { d.option(name, d.one(uid, uid+":"+uid, uid+":"+id(), "0:"+id())) },
		"group":   func(name string) { d.option(name, id(), id()) },
		"workdir": func(name string) { d.option(name, d.one("/", "/bin", "/"+d.word()+"/"+d.word())) },
		"secret": func(name string) {
			target := d.one(d.word(), "/etc/"+d.word(), "/"+d.word()+"/"+d.word())
			d.option(name, fmt.Sprintf("source=%s,target=%s,uid=%s,gid=%s,mode=0%o", secret, target, uid, d.one(uid, id()), rnd.IntN(0o1000)))
			if !strings.HasPrefix(target, "/") {
				target = "/run/secrets/" + target
			}
			d.files = append(d.files, target)
		},
		"config": func(name string) {
			target := "/" + d.word()
			d.option(name, fmt.Sprintf("source=%s,target=%s,uid=%s,gid=%s,mode=0%o", config, target, uid, d.one(uid, id()), rnd.IntN(0o1000)))
			d.files = append(d.files, target)
		},
		"host": func(name string) {
			for range 1 + rnd.IntN(2) {
				d.hosts = append(d.hosts, d.word()+".example")
				d.option(name, fmt.Sprintf("%s:192.0.2.%d", d.hosts[len(d.hosts)-1], 1+rnd.IntN(200)))
			}
		},
		"dns-search": func(name string) { d.option(name, d.word()+".example") },
		"dns-option": func(name string) { d.option(name, d.one("ndots:3", "timeout:2", "attempts:4")) },
		"sysctl": func(name string) {
			s := d.one("net.ipv4.ip_unprivileged_port_start=81", "net.ipv4.ping_group_range=0 7", "kernel.shm_rmid_forced=1", "kernel.msgmax=9000", "net.ipv4.tcp_keepalive_time=77")
			d.option(name, s)
			d.sysctls = append(d.sysctls, strings.ReplaceAll(s[:strings.Index(s, "=")], ".", "/"))
		},
		"ulimit": func(name string) {
			d.option(name, d.one("nofile=512:1024", "nofile=2048", "core=0", "nproc=300:400", "memlock=65536", "stack=1048576:2097152"))
		},
		"cap-add":      func(name string) { d.option(name, d.one(addedCapabilities()...)) },
		"cap-drop":     func(name string) { d.option(name, d.one("NET_RAW", "CAP_CHOWN", "SETPCAP", "ALL")) },
		"limit-memory": func(name string) { d.option(name, fmt.Sprintf("%dM", 32+rnd.IntN(64))) },
		"limit-cpu":    func(name string) { d.option(name, d.one("0.5", "0.25", "1.5")) },
		"limit-pids":   func(name string) { d.option(name, fmt.Sprint(20+rnd.IntN(100))) },
		"read-only":    func(name string) { d.option(name, "true") },
		"tty":          func(name string) { d.option(name, "true") },
		"mount": func(name string) {
			target := func(kind string, more ...string) {
				d.targets = append(d.targets, "/"+d.word())
				d.option(name, strings.Join(append([]string{"type=" + kind, "target=" + d.targets[len(d.targets)-1]}, more...), ","))
			}
			target("tmpfs", fmt.Sprintf("tmpfs-size=%dm", 1+rnd.IntN(5)), fmt.Sprintf("tmpfs-mode=%o", rnd.IntN(0o2000)))
			target("volume", "source="+d.word(), d.one("readonly", "volume-nocopy", "volume-label=a=b"))
			target("bind", "source="+dir, d.one("readonly", "bind-propagation=rprivate"))
		},
	}
	if newer { // dockerd 20.10 has no such option, and comes without an init
		all["init"] = func(name string) { d.option(name, "true") }
		all["oom-score-adj"] = func(name string) { d.option(name, fmt.Sprint(rnd.IntN(1000))) }
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if rnd.IntN(5) < 3 {
			all[name](name)
		}
	}
	for range 1 + rnd.IntN(3) {
		d.args = append(d.args, d.one("", "a b", `"`, "$x", "{{.Service.Name}}", d.word()))
	}
	return d
}

// program writes all that the task sees into seen, in parts that begin with @ and their name.
func (d *drawn) program() string {
	var b strings.Builder
	part := func(name, command string) { fmt.Fprintf(&b, "echo @%s; %s\n", name, command) }
	b.WriteString("exec >/dev/shm/new 2>&1\n")
	part("arguments", `for a in "$@"; do echo "[$a]"; done`)
	part("environment", "env")
	part("identity", "id -u; id -g; id -G")
	part("directory", "pwd; umask; stat -c '%u %g %a' .")
	part("privileges", "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status")
	part("limits", "cat /proc/self/limits")
	part("oom", "cat /proc/self/oom_score_adj")
	part("first", "[ $$ = 1 ] && echo first || echo another")
	part("terminal", "[ -t 0 ] && echo terminal || echo none")
	part("root", "mkdir /made && echo made")
	part("hosts", "cat /etc/hosts")
	part("resolver", "cat /etc/resolv.conf")
	part("devices", "ls -l /dev/null /dev/fd /dev/ptmx /dev/zero | tr -s ' ' | grep -o '^.[^ ]*'; ls /dev")
	part("mounts", "cat /proc/self/mountinfo")
	part("groups", "for f in memory/memory.limit_in_bytes pids/pids.max cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us cpu/cpu.shares; do echo $f $(cat /sys/fs/cgroup/$f 2>&1); done")
	if d.host {
		part("hostname", "hostname")
	}
	for _, s := range d.sysctls {
		part("sysctl", "cat /proc/sys/"+s)
	}
	for _, f := range append(slices.Clone(d.files), d.targets...) {
		part("file "+f, "stat -c '%u %g %a %F' "+f+"; cat "+f)
	}
	b.WriteString("echo @end; cat /dev/shm/new >/dev/shm/seen\nwhile :; do sleep 1; done")
	return b.String()
}

// view returns a task's view, without the parts that differ from task to task.
func (d *drawn) view(text string) map[string][]string {
	all := map[string][]string{}
	name := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "@"); ok {
			name = rest
			continue
		}
		keep := true
		f := strings.Fields(line)
		switch name {
		case "environment":
			keep = d.host || !strings.HasPrefix(line, "HOSTNAME=")
		case "hosts":
			keep = len(f) > 1 && slices.Contains(d.hosts, f[1])
		case "resolver":
			keep = len(f) > 0 && (f[0] == "search" || f[0] == "options")
		case "limits":
			keep = !strings.HasPrefix(line, "Max pending signals")
			line = strings.Join(f, " ")
		case "mounts":
			at := slices.Index(f, "-")
			if keep = at > 5 && slices.Contains(d.targets, f[4]); keep {
				line = fmt.Sprint(f[4], " ", f[5])
				if f[at+1] == "tmpfs" {
					line += " " + strings.Join(f[at+1:], " ")
				}
			}
		}
		if keep {
			all[name] = append(all[name], line)
		}
	}
	for _, unordered := range []string{"environment", "mounts", "hosts"} {
		slices.Sort(all[unordered])
	}
	return all
}
