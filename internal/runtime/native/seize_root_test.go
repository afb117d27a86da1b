package native_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native"
)

// seizeRounds is how many processes are started beside an attacker:
// LONGSHORE_SEIZE_ROUNDS, or some.
func seizeRounds() int {
	if n, err := strconv.Atoi(os.Getenv("LONGSHORE_SEIZE_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return 40
}

// markHost puts a mount with a secret in the host's tree.
func markHost(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(hostMark, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", hostMark, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(hostMark+"/secret", []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// attacker is the container that an attacker is in.
type attacker struct {
	id   core.ID
	pid  int
	out  string
	end  time.Time
	done int
}

// more reports whether another process is to be started beside it: until there
// were so many, and it has said what it was to find.
func (a *attacker) more(rounds int, what ...string) bool {
	said := true
	for _, w := range what {
		_, err := os.Stat(a.out + "/" + w)
		said = said && err == nil
	}
	a.done++
	return a.done <= rounds || !said && time.Now().Before(a.end)
}

// attacked runs body beside an attacker in a container's pid namespace and
// returns what that has seen.
func attacked(t *testing.T, n *node, caps []string, body func(a *attacker)) (seen, seized int, found []string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	var host []string
	for _, ns := range []string{"mnt", "net", "ipc", "uts", "cgroup"} {
		name, err := os.Readlink("/proc/self/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		host = append(host, name)
	}
	s := script("")
	kind := "look"
	if slices.Contains(caps, "CAP_SYS_PTRACE") {
		kind = "seize"
	}
	s.Process.Args = []string{"/attack", "-test.run=^TestSeizer$", "-test.count=1", "-test.timeout=30m"}
	s.Process.Env = append(s.Process.Env, seizerEnv+"="+kind, seizerHostEnv+"="+strings.Join(host, ","), "GOMAXPROCS=1")
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps}
	s.Mounts = append(s.Mounts,
		specs.Mount{Destination: "/attack", Type: "bind", Source: exe, Options: []string{"bind", "ro"}},
		specs.Mount{Destination: seizerOut, Type: "bind", Source: out, Options: []string{"bind"}})
	id, err := n.held(t.Context(), t, s)
	if err != nil {
		t.Fatal(err)
	}
	await(t, out+"/ready")
	body(&attacker{id: id, pid: n.pidOf(t, id), out: out, end: time.Now().Add(roottest.Patience())})
	if err := os.WriteFile(out+"/stop", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	text := await(t, out+"/result")
	var all int
	if _, err := fmt.Sscanf(text, "%d %d %d", &seen, &seized, &all); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(text), "\n")[1:]
	if len(lines) != all {
		t.Fatalf("%d findings, told of %d", len(lines), all)
	}
	t.Logf("with %v: %d processes seen before their program ran, %d of them seized, %d findings", caps, seen, seized, all)
	return seen, seized, lines
}

// await reads a file that is to come, whole.
func await(t *testing.T, file string) string {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := unix.InotifyAddWatch(fd, filepath.Dir(file), unix.IN_CLOSE_WRITE); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(roottest.Patience()); ; {
		if b, err := os.ReadFile(file); err == nil && (len(b) > 0 || filepath.Base(file) == "ready") {
			return string(b)
		}
		if time.Now().After(end) {
			t.Fatalf("no %s came", file)
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
	}
}

// execs runs a program in the attacker's container again and again.
func (n *node) execs(t *testing.T, a *attacker, caps []string) {
	t.Helper()
	id := a.id
	p := *script("").Process
	p.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps}
	p.Args = []string{"/bin/true"}
	for a.more(seizeRounds(), "tried") {
		ref := core.Ref{Container: id, Process: core.ProcessID(fmt.Sprintf("e%d", a.done))}
		if _, err := n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: &p}); err != nil {
			t.Fatal(err)
		}
		for x, err := range n.keeper.Exits(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if x.Ref == ref {
				if x.Exit.Code != 0 || x.Exit.Signal != 0 {
					t.Fatalf("exec %d: %+v", a.done, x.Exit)
				}
				break
			}
		}
		if err := n.keeper.Ack(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if err := n.keeper.Forget(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNobodySeesAProcessThatIsNotInsideYet: who is in a pid namespace that a
// process of ours joins finds nothing of the host's in it, and nothing to take
// over but what it could be itself.
func TestNobodySeesAProcessThatIsNotInsideYet(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		markHost(t)
		ptrace := []string{"CAP_SYS_PTRACE", "CAP_SETUID", "CAP_SETGID", "CAP_KILL", "CAP_CHOWN", "CAP_DAC_OVERRIDE"}
		for name, caps := range map[string][]string{"CAP_SYS_PTRACE": ptrace, "no capability": {}} {
			check := func(t *testing.T, seen, seized int, found []string) {
				t.Helper()
				if seen == 0 || len(caps) > 0 && seized == 0 {
					t.Errorf("%d seen, %d seized: no attempt was made", seen, seized)
				}
				for _, f := range found[:min(len(found), 10)] {
					t.Error(f)
				}
			}
			t.Run("exec with "+name, func(t *testing.T) {
				seen, seized, found := attacked(t, n, caps, func(a *attacker) { n.execs(t, a, caps) })
				check(t, seen, seized, found)
			})
			for how, r := range map[string]*native.Runtime{"start": n.runtime, "start without pidns=": n.older(t)} {
				t.Run(how+" with "+name, func(t *testing.T) {
					seen, seized, found := attacked(t, n, caps, func(a *attacker) {
						for a.more(seizeRounds(), "tried") {
							s := script("ls -d /proc/[0-9]* | wc -l")
							s.Process.Capabilities = &specs.LinuxCapabilities{}
							at := slices.IndexFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.PIDNamespace })
							s.Linux.Namespaces[at].Path = fmt.Sprintf("/proc/%d/ns/pid", a.pid)
							// The attacker, the shell, and its two.
							if out := n.run(t.Context(), t, r, containers(), s); out != "4\n" && out != "3\n" {
								t.Fatalf("%q processes", out)
							}
						}
					})
					check(t, seen, seized, found)
				})
			}
		}
	})
}

// older is a runtime as on a kernel that mounts no proc for another pid
// namespace than the mounter's.
func (n *node) older(t *testing.T) *native.Runtime {
	t.Helper()
	h := host(t)
	h.ProcPidNS = false
	r, err := native.New(native.Options{Dir: "/run/older", Supervisor: n.keeper, Cgroups: n.cgroups, Host: h})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTheAttackerFindsAProcessThatIsNotInside: it works, on a process that is in
// the pid namespace from its first moment, as one of a createContainer hook is,
// which is to run in the host's files.
func TestTheAttackerFindsAProcessThatIsNotInside(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		markHost(t)
		for _, caps := range [][]string{{"CAP_SYS_PTRACE"}, {}} {
			want := []string{"mounts"}
			if len(caps) > 0 {
				want = append(want, "files")
			}
			seen, _, found := attacked(t, n, caps, func(a *attacker) {
				spec := script("")
				blob, err := native.HookPlan("createContainer", specs.Hook{Path: "/bin/true"}, native.ExecInput{ID: string(a.id), Process: spec.Process, Spec: spec, Host: host(t), Pid: a.pid})
				if err != nil {
					t.Fatal(err)
				}
				for a.more(40, want...) {
					if _, err := n.keeper.Run(t.Context(), core.Command{Plan: blob, Target: core.Ref{Container: a.id}}); err != nil {
						t.Fatal(err)
					}
				}
			})
			mounts := slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, "the host's mounts") })
			files := slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, "the host's files") })
			if seen == 0 || !mounts || len(caps) > 0 && !files {
				t.Errorf("with %v: %d seen, found %v", caps, seen, found)
			}
		}
	})
}
