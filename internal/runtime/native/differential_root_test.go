package native_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
	"github.com/longshore/longshore/internal/runtime/oci"
)

// probe prints a container's state, seen from inside, a fact a line.
const probe = `
p() { sed "s|^|$1 |"; }
grep -E '^(Uid|Gid|Groups|Cap[A-Z]|NoNewPrivs|Seccomp:|SigBlk|SigIgn)' /proc/self/status | tr '\t' ' ' | p status
umask | p umask; pwd | p cwd; hostname | p hostname; env | sort | p env; cat /proc/self/oom_score_adj | p oom
cat /proc/self/limits | tr -s ' ' | p limit; cat /proc/self/cgroup | sort | p cgroup
for n in cgroup ipc mnt net pid user uts; do echo "ns $n $(readlink /proc/self/ns/$n)"; done
cat /proc/self/mountinfo | while read id par dev root at opt rest; do echo "mount $at $root $opt $rest"; done
ls -ln /dev | while read mode n uid gid a b c d name; do case $mode in
  c*|b*) echo "dev $mode $uid $gid $a $b ${name#* }";; l*) echo "dev $mode $name";; *) echo "dev $mode $uid $gid $name";; esac; done
ls -ldn /mnt /mnt/* /place /place/* 2>/dev/null | while read mode n uid gid size mon day tm name; do echo "dir $mode $uid $gid $name"; done
ls /proc/self/fd | sort | p fd
for m in /proc/kcore /proc/timer_list /sys/firmware /proc/acpi; do echo "masked $m $(cat $m 2>/dev/null | head -c 9 | wc -c) $(ls $m 2>/dev/null | wc -l)"; done
for f in /proc/sys/kernel/shmmax /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/fs/mqueue/queues_max; do echo "sysctl $f $(cat $f 2>&1)"; done
for d in / /tmp /mnt /proc/sys /dev /dev/shm; do (touch $d/written && rm $d/written) 2>/dev/null; echo "writable $d $?"; done
mkdir /tmp/seccomp 2>/dev/null; echo "mkdir $?"; rmdir /tmp/seccomp 2>/dev/null; chmod 700 /tmp/mode 2>/dev/null; echo "chmod $?"
`

// difference is one that is meant: its matches become the same on both sides.
type difference struct {
	why      string
	match    *regexp.Regexp
	becoming string // "" drops the whole line
}

// accepted are all of them.
func accepted() []difference {
	is := func(why, match, becoming string) difference {
		return difference{why, regexp.MustCompile(match), becoming}
	}
	return []difference{
		is("runc adds HOME from the container's passwd; here the spec's environment is the whole one", `^env HOME=.*`, ""),
		is("variables of the probe's own shell", `^env (_|OLDPWD|SHLVL|PWD)=.*`, ""),
		is("a masked file is a null device of our own here, the container's there", `^(mount \S+) /(null|dev/null|n) .*`, "$1 null"),
		is("the tmpfs over a masked directory takes no files here even if it were writable", `,size=0k,nr_inodes=1(,inode64)?$`, "$1"),
		is("the same in a user namespace", `,size=0k,nr_inodes=1,uid=`, ",uid="),
		is("in a user namespace devices are its own here, the host's there", `^mount (/dev/(null|zero|full|random|urandom|tty)) .*`, "mount $1"),
		is("and belong to its root here, to nobody there", `^dev crw-rw-rw- (0 0|65534 65534) `, "dev crw-rw-rw- "),
		is("and the message queues to nobody's group there", `^dev drwxrwxrwt 0 65534 mqueue`, "dev drwxrwxrwt 0 0 mqueue"),
		is("runc leaves the tmpfs of a read-only cgroup mount writable", `^(mount /sys/fs/cgroup /) r[ow]`, "$1 ro"),
		is("where the same v2 tree is mounted twice on one place, runc binds it the second time", `(^mount /sys/fs/cgroup / .* - cgroup2) cgroup2? rw`, "$1 rw"),
		is("a mount of the v2 tree from the host's cgroup namespace sets the options of the whole tree: runc clears them, we keep them",
			`( - cgroup2 rw),(nsdelegate|memory_recursiveprot)\S*$`, "$1"),
		is("in a user namespace without a cgroup namespace the container sees its own directory of the v2 tree here, all of the tree there",
			`^mount /sys/fs/cgroup /longshore-\S+/ID (.* - cgroup2) cgroup2 rw`, "mount /sys/fs/cgroup / $1 rw"),
		is("the name that a named hierarchy is mounted by", `- cgroup (systemd|cgroup) rw,name=systemd`, "- cgroup systemd"),
		is("on a hybrid node only v1 hierarchies hold containers; runc joins the v2 tree too", `^cgroup 0::.*`, ""),
		is("containers without CAP_SYS_ADMIN share one empty directory that hides others; runc makes a tmpfs for each",
			`^mount (\S+) /blank ro,nosuid,noexec,relatime - tmpfs tmpfs rw\S*?(,inode64)?$`, "mount $1 / ro,relatime - tmpfs tmpfs ro$2"),
		is("and one directory for read-only cgroup mounts", `^mount (\S+) /cgroup (\S+) - tmpfs tmpfs rw\S*?(,inode64)?$`, "mount $1 / $2 - tmpfs tmpfs rw,mode=755$3"),
		is("runc sets a tmpfs's permissions after the mount, we by its option", `^(mount /mnt / .*),mode=755`, "$1"),
	}
}

func TestSeenFromInsideItIsAsUnderRunc(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		path, err := exec.LookPath("runc")
		if err != nil {
			t.Skipf("no runc: %v", err)
		}
		n := newNode(t)
		runc, err := oci.New(oci.Options{Name: "runc", Path: path, Root: "/run/r", SocketDir: "/run/c", Launcher: n.keeper, Supervisor: n.keeper, Cgroups: n.cgroups})
		if err != nil {
			t.Fatal(err)
		}
		// A mount without flags: runc clears those that a source has when it
		// sets others, we keep them (TestABindKeepsWhatItsSourceForbids).
		for _, m := range []string{"/run/plain", "/run/plain/src/sub"} {
			if err := os.MkdirAll(m, 0o751); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount("tmpfs", m, "tmpfs", 0, "mode=751"); err != nil {
				t.Fatal(err)
			}
		}
		n.root = fullRoot(t, "/run/plain/rootfs")
		if err := os.Mkdir(n.root+"/place", 0o751); err != nil {
			t.Fatal(err)
		}
		// A hook of the creation sees the mounts of the container's namespace, and leaves a file in
		// the root.
		hooked := func(s *specs.Spec, seed uint64) *specs.Spec {
			if seed%3 != 0 {
				return s
			}
			look := `cat > /dev/null; for n in mnt net ipc; do echo "$1 $n $([ "$(readlink /proc/self/ns/$n)" = "$(readlink /proc/1/ns/$n)" ] && echo host)"; done >> ` + n.root + `/etc/hooks`
			hook := func(name string) []specs.Hook {
				return []specs.Hook{{Path: "/bin/busybox", Args: []string{"sh", "-c", look, "sh", name}, Env: []string{"PATH=" + n.root + "/bin"}}}
			}
			s.Hooks = &specs.Hooks{Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), CreateContainer: hook("createContainer")} //nolint:staticcheck // still sent
			s.Process.Args[2] += "\nsed 's/^/hook /' /etc/hooks"
			return s
		}
		for seed := range uint64(30) {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				theirs := n.facts(t, runc, hooked(randomSpec(rand.New(rand.NewPCG(seed, 3))), seed))
				_ = os.Remove(n.root + "/etc/hooks")
				ours := n.facts(t, n.runtime, hooked(randomSpec(rand.New(rand.NewPCG(seed, 3))), seed))
				_ = os.Remove(n.root + "/etc/hooks")
				if seed%3 == 0 && !slices.Contains(ours, "hook createContainer mnt") {
					t.Errorf("the hooks did not run: %q", ours)
				}
				if d := without(theirs, ours, "-") + without(ours, theirs, "+"); d != "" {
					t.Errorf("runc (-) and native (+):\n%s", d)
				}
			})
		}
		// The same in a user namespace, on a root that is its root's.
		err = filepath.WalkDir(n.root, func(path string, _ os.DirEntry, err error) error {
			if err != nil {
				return err
			}
			return os.Lchown(path, 100000, 100000)
		})
		if err != nil {
			t.Fatal(err)
		}
		for seed := uint64(100); seed < 120; seed++ {
			t.Run(fmt.Sprint("users", seed), func(t *testing.T) {
				random := func() *specs.Spec {
					s := nativetest.InUserns(randomSpec(rand.New(rand.NewPCG(seed, 3))))
					// Theirs sets the owner of a device that it binds, which is the host's.
					s.Linux.Devices = nil
					// Theirs cannot leave out mounts below a source, nor change how access times
					// are kept.
					for i, m := range s.Mounts {
						if at := slices.Index(m.Options, "noatime"); at >= 0 {
							s.Mounts[i].Options[at] = "nodev"
						}
						if at := slices.Index(m.Options, "bind"); at >= 0 && m.Source == "/run/plain/src" {
							s.Mounts[i].Options[at] = "rbind"
						}
					}
					return s
				}
				theirs, ours := n.facts(t, runc, random()), n.facts(t, n.runtime, random())
				if d := without(theirs, ours, "-") + without(ours, theirs, "+"); d != "" {
					t.Errorf("runc (-) and native (+):\n%s", d)
				}
			})
		}
	})
}

// without lists the entries of a that are not in b.
func without(a, b []string, mark string) (list string) {
	for _, f := range a {
		if !slices.Contains(b, f) {
			list += mark + " " + f + "\n"
		}
	}
	return list
}

// randomSpec is one that both runtimes take.
func randomSpec(r *rand.Rand) *specs.Spec {
	coin := func() bool { return r.IntN(2) == 0 }
	some := func(from ...string) (s []string) {
		for _, f := range from {
			if coin() {
				s = append(s, f)
			}
		}
		return s
	}
	s := ocispec.New()
	s.Version, s.Root = "1.0.2", &specs.Root{Path: "rootfs", Readonly: coin()}
	s.Process.Args, s.Process.Env = []string{"/bin/sh", "-c", probe}, append([]string{"PATH=/bin"}, some("A=1", "B=two words", "EMPTY=")...)
	kinds := []specs.LinuxNamespaceType{specs.PIDNamespace, specs.MountNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace}
	if coin() {
		kinds = append(kinds, specs.CgroupNamespace)
	}
	for _, k := range kinds {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: k})
	}
	if coin() {
		s.Hostname = "random"
	}
	if coin() {
		umask := uint32(r.IntN(0o777))
		s.Process.User = specs.User{UID: uint32(r.IntN(3) * 500), GID: uint32(r.IntN(3) * 700), AdditionalGids: []uint32{uint32(r.IntN(9)), 12}, Umask: &umask}
	}
	s.Process.Cwd = []string{"/", "/tmp", "/etc", "/place/new/deep"}[r.IntN(4)]
	s.Process.NoNewPrivileges = coin()
	all := []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW", "CAP_SETUID", "CAP_DAC_OVERRIDE", "CAP_SYS_CHROOT"}
	bounding := some(all...)
	permitted := some(bounding...)
	inheritable := some(permitted...)
	s.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding: bounding, Permitted: permitted, Effective: some(permitted...), Inheritable: inheritable, Ambient: some(inheritable...),
	}
	adj := r.IntN(1000)
	s.Process.OOMScoreAdj = &adj
	s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: uint64(64 + r.IntN(64)), Hard: 512}}
	if coin() {
		s.Process.Rlimits = append(s.Process.Rlimits, specs.POSIXRlimit{Type: "RLIMIT_CORE", Soft: 0, Hard: 4096}, specs.POSIXRlimit{Type: "RLIMIT_STACK", Soft: 4 << 20, Hard: 8 << 20})
	}
	if coin() {
		errno := uint(unix.EACCES)
		s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64}, Syscalls: []specs.LinuxSyscall{
			{Names: []string{"mkdir", "mkdirat"}, Action: specs.ActErrno, ErrnoRet: &errno},
			{Names: []string{"chmod"}, Action: specs.ActErrno, Args: []specs.LinuxSeccompArg{{Index: 1, Value: 0o700, Op: specs.OpEqualTo}}},
		}}
	}
	if coin() {
		s.Linux.Sysctl = map[string]string{"kernel.shmmax": "12345678", "net.ipv4.ip_unprivileged_port_start": "80", "fs.mqueue.queues_max": "99"}
	}
	s.Linux.MaskedPaths = some("/proc/kcore", "/proc/timer_list", "/sys/firmware", "/proc/acpi", "/not/there")
	s.Linux.ReadonlyPaths = some("/proc/sys", "/proc/irq", "/proc/bus", "/not/there")
	s.Linux.RootfsPropagation = []string{"", "", "rslave", "rprivate", "slave"}[r.IntN(5)]
	mode, uid := os.FileMode(0o640), uint32(7)
	s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}, {Path: "/dev/queue", Type: "p", FileMode: &mode, UID: &uid}}[:r.IntN(3)]
	s.Mounts = append(s.Mounts, randomMounts(r, coin)...)
	return s
}

func randomMounts(r *rand.Rand, coin func() bool) (all []specs.Mount) {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	if coin() {
		all = append(all, specs.Mount{Destination: "/mnt", Type: "tmpfs", Source: "tmpfs", Options: append([]string{"nosuid"}, [][]string{nil, {"uid=3", "gid=4"}, {"ro", "size=64k"}}[r.IntN(3)]...)})
	}
	if coin() {
		all = append(all, specs.Mount{Destination: "/mnt/below/bound", Type: "bind", Source: "/run/plain/src", Options: []string{pick("bind", "rbind"), pick("ro", "rw"), pick("rprivate", "rslave", "private")}})
	}
	if coin() {
		all = append(all, specs.Mount{Destination: "/place/bound", Type: "bind", Source: "/run/plain/src", Options: []string{"rbind", pick("nosuid", "nodev", "noexec", "noatime", "rw"), "rprivate"}})
	}
	if coin() {
		all = append(all, specs.Mount{Destination: "/place/file", Type: "bind", Source: "/etc/hostname", Options: []string{"bind", "ro"}})
	}
	if coin() {
		all = append(all, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", pick("ro", "ro"), "relatime"}})
	}
	return all
}

// facts runs s and returns the probe's output, without the parts that must differ between two runs
// or are accepted.
func (n *node) facts(t *testing.T, rt core.Runtime, s *specs.Spec) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	id := core.ID(fmt.Sprintf("%032x%032x", time.Now().UnixNano(), os.Getpid()))
	out := n.run(ctx, t, rt, id, s)
	hidden := regexp.MustCompile(`\b(shared|master|propagate_from|peer):\d+`)
	var facts []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(strings.ReplaceAll(line, string(id), "ID"))
		line = hidden.ReplaceAllString(line, "$1")
		if f := strings.Fields(line); len(f) == 3 && f[0] == "ns" {
			host, _ := os.Readlink("/proc/self/ns/" + f[1])
			line = fmt.Sprint("ns ", f[1], " host:", f[2] == host)
		}
		for _, d := range accepted() {
			if line = d.match.ReplaceAllString(line, d.becoming); line == "" {
				break
			}
		}
		if line = strings.TrimSpace(line); line != "" {
			facts = append(facts, line)
		}
	}
	slices.Sort(facts)
	return facts
}

// run runs a container to its end and returns its output.
func (n *node) run(ctx context.Context, t *testing.T, rt core.Runtime, id core.ID, s *specs.Spec) string {
	t.Helper()
	bundle := filepath.Join(n.dir, string(id))
	rootfs := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(n.root, rootfs, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) }()
	ref, err := n.cgroups.Place(core.Cgroup{}, core.CgroupRef{}, string(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := n.cgroups.Create(ctx, ref, s.Linux.Resources); err != nil {
		t.Fatal(err)
	}
	s.Linux.CgroupsPath = ref.Path
	log := filepath.Join(bundle, "out")
	c := core.RuntimeCreate{
		ID: id, Bundle: bundle, Spec: s, Cgroup: ref, Levels: []core.CgroupRef{ref}, UID: s.Process.User.UID, GID: s.Process.User.GID,
		IO: core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: log}}},
	}
	for _, m := range s.Linux.UIDMappings {
		c.UID += m.HostID
		c.GID += m.HostID
	}
	me := core.Ref{Container: id}
	defer func() {
		if err := rt.Delete(context.WithoutCancel(ctx), id, true); err != nil {
			t.Error(err)
		}
		_ = n.keeper.Forget(context.WithoutCancel(ctx), me)
	}()
	if _, err := rt.Create(ctx, c); err != nil {
		t.Fatalf("%s: %v", rt.Name(), err)
	}
	if err := rt.Start(ctx, id); err != nil {
		t.Fatalf("%s: %v", rt.Name(), err)
	}
	for x, err := range n.keeper.Exits(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if x.Ref == me {
			_ = n.keeper.Ack(ctx, me)
			break
		}
	}
	out, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}
