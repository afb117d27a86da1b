package native_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
)

func TestAUserNamespaceIsWhatItsSpecSays(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := nativetest.InUserns(nativetest.Spec("sh", "-c", `
			cat /proc/self/uid_map /proc/self/gid_map /proc/self/setgroups; id; hostname
			grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status
			ls -ln /dev; ls -l /proc/kcore; echo x > /dev/null && echo null
			touch /proc/sys/kernel/domainname 2>&1; touch /tmp/x 2>&1
			cat /proc/self/mountinfo; ls -ld /proc/self
			ls /proc/self/fd; cat /proc/self/cgroup; exit 7`))
		s.Linux.Sysctl = map[string]string{"net.ipv4.ip_unprivileged_port_start": "80", "kernel.shmmax": "1234567", "fs.mqueue.queues_max": "99"}
		in := compile.Input{ID: "c1", Root: rootfs(t), Host: host(t), Spec: s}
		if err := unix.Chown(in.Root, 100000, 100000); err != nil {
			t.Fatal(err)
		}
		out, ws, err := runPlan(t, in)
		t.Log(out)
		if err != nil || ws.ExitStatus() != 7 {
			t.Fatalf("status %d, %v", ws.ExitStatus(), err)
		}
		for _, want := range []string{"uid=1000 gid=1000 groups=5,6", "native\n", "CapBnd:\t0000000000000021", "null\n", "allow"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q", want)
			}
		}
	})
}

func TestATimeNamespaceHasItsClocks(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		for name, edit := range map[string]func(*specs.Spec) *specs.Spec{
			"ours":                func(s *specs.Spec) *specs.Spec { return s },
			"of a user namespace": nativetest.InUserns,
		} {
			s := edit(script("echo > /tmp/ready; sleep 1000"))
			nativetest.AddNamespace(s, specs.LinuxNamespace{Type: specs.TimeNamespace})
			s.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 1000000000}, "monotonic": {Secs: 86400, Nanosecs: 5}}
			id, pid, ready := n.waiting(t, s)
			ready()
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/time", pid))
			if err != nil {
				t.Fatal(err)
			}
			host, _ := os.Readlink("/proc/self/ns/time")
			f := n.execOutput(t, id, s, "cut -d. -f1 /proc/uptime; cat /proc/1/timens_offsets; readlink /proc/1/ns/time; readlink /proc/self/ns/time; id -u")
			if len(f) != 10 || len(f[0]) != 10 || strings.Join(f[1:7], " ") != "monotonic 86400 5 boottime 1000000000 0" || f[7] != ns || f[8] != ns || f[9] != "0" || ns == host {
				t.Errorf("%s: %q, its namespace is %s, ours %s", name, f, ns, host)
			}
			// Another container joins it.
			j := script("cut -d. -f1 /proc/uptime")
			nativetest.AddNamespace(j, specs.LinuxNamespace{Type: specs.TimeNamespace, Path: fmt.Sprintf("/proc/%d/ns/time", pid)})
			if out := n.output(t, j); len(strings.TrimSpace(out)) != 10 {
				t.Errorf("%s: joined: %q", name, out)
			}
		}
	})
}

// waiting starts a container that writes to /tmp/ready; ready waits for it.
func (n *node) waiting(t *testing.T, s *specs.Spec) (id core.ID, pid int, ready func()) {
	t.Helper()
	fifo := n.root + "/tmp/ready"
	_ = os.Remove(fifo)
	if err := errors.Join(unix.Mkfifo(fifo, 0o666), os.Chmod(fifo, 0o666)); err != nil {
		t.Fatal(err)
	}
	id, err := n.held(t.Context(), t, s)
	if err != nil {
		t.Fatal(err)
	}
	all, err := n.keeper.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Ref == (core.Ref{Container: id}) {
			pid = p.Pid
		}
	}
	return id, pid, func() {
		t.Helper()
		if _, err := os.ReadFile(fifo); err != nil {
			t.Fatal(err)
		}
	}
}

// execOutput runs a script beside a container's program and returns the words
// that it writes.
func (n *node) execOutput(t *testing.T, id core.ID, s *specs.Spec, text string) []string {
	t.Helper()
	p := *s.Process
	p.Args = []string{"/bin/sh", "-c", text}
	log, ref := filepath.Join(n.dir, "exec.out"), core.Ref{Container: id, Process: "e"}
	_ = os.Remove(log)
	io := core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: log}}}
	if _, err := n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: &p, IO: io}); err != nil {
		t.Error(err)
		return nil
	}
	for x, err := range n.keeper.Exits(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if x.Ref == ref {
			break
		}
	}
	out, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.keeper.Forget(t.Context(), ref); err != nil {
		t.Error(err)
	}
	return strings.Fields(string(out))
}
