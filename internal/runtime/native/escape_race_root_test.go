package native_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// TestEscapesByAnotherProcess: mechanisms of a process inside that acts while a container or an
// exec starts, or acted before.
func TestEscapesByAnotherProcess(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		for name, test := range map[string]func(*testing.T, *node){
			"a mount target renamed meanwhile":        renamedTarget,
			"a masked path swapped meanwhile":         swappedMask,
			"a /dev/null that is something else":      falseNull,
			"a /proc that takes our labels":           falseProc,
			"our binary overwritten by two of them":   twoProcesses,
			"exec where the program changed its root": changedRoot,
			"what an exec or a hook is left":          leftOver,
		} {
			t.Run(name, func(t *testing.T) { test(t, n) })
		}
	})
}

// swapper is a container that puts a link to a directory of the host in a
// directory's place on a shared volume, and back, without end.
func swapper(t *testing.T, n *node) (volume, outside string) {
	t.Helper()
	volume, outside = t.TempDir(), "/run/outside"
	for _, d := range []string{volume + "/t", outside, n.root + outside} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	ready := filepath.Join(volume, "ready")
	if err := unix.Mkfifo(ready, 0o666); err != nil {
		t.Fatal(err)
	}
	s := privileged("cd /vol; echo > ready; while :; do mv t o; ln -s " + outside + " t; rm t; mv o t; done 2>/dev/null")
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/vol", Type: "bind", Source: volume, Options: []string{"bind"}})
	if _, err := n.held(t.Context(), t, s); err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(ready); err != nil {
		t.Fatal(err)
	}
	return volume, outside
}

// attempts starts containers beside a swapper. One may fail to start when its path is gone just
// then; its mounts must be below its root and nowhere else.
func attempts(t *testing.T, n *node, outside string, spec func() *specs.Spec) {
	t.Helper()
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	started := 0
	for range 150 {
		id, err := n.parked(t, spec())
		if err != nil {
			continue
		}
		started++
		// Its program never runs: only its mounts count.
		if err := n.keeper.Signal(t.Context(), core.Ref{Container: id}, int(unix.SIGKILL)); err != nil {
			t.Error(err)
		}
	}
	if started == 0 {
		t.Error("none started")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("made outside: %v, %v", left, err)
	}
	after, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(after)) {
		if !strings.Contains(string(before), line) && !strings.Contains(line, n.dir) {
			t.Errorf("mounted outside: %s", line)
		}
	}
}

func renamedTarget(t *testing.T, n *node) {
	volume, outside := swapper(t, n)
	attempts(t, n, outside, func() *specs.Spec {
		s := script("true")
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: volume, Options: []string{"bind"}},
			specs.Mount{Destination: "/mnt/t/inner", Type: "tmpfs", Source: "tmpfs"}, specs.Mount{Destination: "/mnt/t", Type: "bind", Source: "/etc", Options: []string{"bind", "ro"}})
		return s
	})
}

func swappedMask(t *testing.T, n *node) {
	volume, outside := swapper(t, n)
	attempts(t, n, outside, func() *specs.Spec {
		s := script("true")
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: volume, Options: []string{"bind"}})
		s.Linux.MaskedPaths, s.Linux.ReadonlyPaths = []string{"/mnt/t"}, []string{"/mnt/t"}
		return s
	})
}

// falseNull: the host's /dev/null hides a file, with anything in its place in the image.
func falseNull(t *testing.T, n *node) {
	if err := os.Symlink("/proc/sys/kernel/core_pattern", n.root+"/dev/null"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(n.root + "/dev/null") }()
	s := privileged("stat -c %t:%T /proc/timer_list; cat /proc/timer_list | wc -c")
	var mounts []specs.Mount
	for _, m := range s.Mounts {
		if !strings.HasPrefix(m.Destination, "/dev") {
			mounts = append(mounts, m)
		}
	}
	s.Mounts, s.Linux.MaskedPaths = mounts, []string{"/proc/timer_list"}
	if out := n.output(t, s); out != "1:3\n0\n" {
		t.Errorf("%q", out)
	}
}

// falseProc: a container's /proc may be a volume with files of the right names. We write about
// ourselves to the host's, which was opened before.
func falseProc(t *testing.T, n *node) {
	fake := t.TempDir()
	files := []string{"/thread-self/attr/exec", "/thread-self/attr/apparmor/exec", "/self/oom_score_adj", "/self/attr/exec"}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(fake+f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(fake+f, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for name, m := range map[string]specs.Mount{
		"a volume": {Destination: "/proc", Type: "bind", Source: fake, Options: []string{"bind"}},
		"a tmpfs":  {Destination: "/proc", Type: "tmpfs", Source: "tmpfs"},
	} {
		s := script("true")
		s.Mounts[0] = m
		adj := 517
		s.Process.OOMScoreAdj = &adj
		id, err := n.parked(t, s)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", n.pidOf(t, id))); err != nil || string(b) != "517\n" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		// There is no AppArmor here, so the host's file is not there: had the
		// container's been taken, it would start.
		if _, err := os.Stat("/proc/self/attr/apparmor"); err == nil {
			continue
		}
		s.Process.ApparmorProfile = "confined"
		if _, err := n.parked(t, s); err == nil || !strings.Contains(err.Error(), "open /proc/thread-self/attr/apparmor/exec") {
			t.Errorf("%s: unconfined: %v", name, err)
		}
	}
	for _, f := range files {
		if b, err := os.ReadFile(fake + f); err != nil || len(b) > 0 {
			t.Errorf("%s was written: %q, %v", f, b, err)
		}
	}
}

// twoProcesses: one is started as /proc/self/exe, which is ours, the other
// catches the file by its process and writes to it once nobody runs it.
func twoProcesses(t *testing.T, n *node) {
	st, err := n.keeper.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	exe := fmt.Sprintf("/proc/%d/exe", st.KeeperPid)
	sum := func() [32]byte {
		b, err := os.ReadFile(exe)
		if err != nil {
			t.Fatal(err)
		}
		return sha256.Sum256(b)
	}
	before := sum()
	if err := os.Symlink("/proc/self/exe", n.root+"/evil"); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(n.root + "/evil") }()
	_ = os.Remove(n.root + "/tmp/ready")
	if err := unix.Mkfifo(n.root+"/tmp/ready", 0o666); err != nil {
		t.Fatal(err)
	}
	s := privileged(`echo > /tmp/ready; while :; do for p in /proc/[0-9]*; do
		[ $p/exe -ef /bin/busybox ] && continue
		{ echo caught > /tmp/caught; (echo overwritten > /proc/self/fd/5) && echo won > /tmp/won; (echo overwritten > $p/exe) && echo won > /tmp/won; } 5< $p/exe
		done 2>/dev/null; done`)
	id, err := n.held(t.Context(), t, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(n.root + "/tmp/ready"); err != nil {
		t.Fatal(err)
	}
	_, _ = os.Remove(n.root+"/tmp/caught"), os.Remove(n.root+"/tmp/won")
	caught := false
	for i := 0; i < 60 || !caught && i < 1000; i++ {
		p := *s.Process
		p.Args = []string{"/evil"}
		ref := core.Ref{Container: id, Process: core.ProcessID(fmt.Sprint("e", i))}
		if _, err := n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: &p}); err != nil {
			continue // refused is fine too
		}
		for x, err := range n.keeper.Exits(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if x.Ref == ref {
				break
			}
		}
		_ = n.keeper.Forget(t.Context(), ref)
		if _, err := os.Stat(n.root + "/tmp/caught"); err == nil {
			caught = true
		}
	}
	if !caught {
		t.Error("our binary was never caught: nothing was tried")
	}
	if _, err := os.Stat(n.root + "/tmp/won"); err == nil || sum() != before {
		t.Error("our binary was overwritten")
	}
	if out := n.output(t, script("echo next")); out != "next\n" {
		t.Errorf("the next container wrote %q", out)
	}
}

// changedRoot: an exec has the container's root, also after its program has changed its own.
func changedRoot(t *testing.T, n *node) {
	if err := os.WriteFile("/run/of-the-host", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"chroot":       "mkdir -p /tmp/r/bin; cp /bin/busybox /tmp/r/bin/sh; echo > /tmp/ready; exec chroot /tmp/r /bin/sh -c 'while :; do :; done'",
		"pivot_root":   "mkdir -p /tmp/p; mount --rbind / /tmp/p; cd /tmp/p; mkdir -p old; pivot_root . old; echo > /tmp/ready; umount -l /old; sleep 1000",
		"a mount on /": "mount -t tmpfs tmpfs /; echo > /tmp/ready; sleep 1000",
	} {
		_ = os.Remove(n.root + "/tmp/ready")
		if err := unix.Mkfifo(n.root+"/tmp/ready", 0o666); err != nil {
			t.Fatal(err)
		}
		id, err := n.held(t.Context(), t, privileged(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.ReadFile(n.root + "/tmp/ready"); err != nil {
			t.Fatal(err)
		}
		p := *script("ls -d /run/of-the-host /boot /usr/lib 2>/dev/null; readlink /proc/self/root; readlink /proc/self/cwd; echo done").Process
		log := n.dir + "/exec.out"
		_ = os.Remove(log)
		ref := core.Ref{Container: id, Process: "e"}
		_, err = n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: &p, IO: core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: log}}}})
		if err != nil {
			// Where nothing is, nothing can be run: said, and not gone elsewhere.
			if name != "a mount on /" || !strings.Contains(err.Error(), "no such file") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		for x, err := range n.keeper.Exits(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if x.Ref == ref {
				break
			}
		}
		_ = n.keeper.Forget(context.WithoutCancel(t.Context()), ref)
		if out, err := os.ReadFile(log); err != nil || string(out) != "/\n/\ndone\n" {
			t.Errorf("%s: %q, %v", name, out, err)
		}
	}
}

// leftOver: execs and hooks have their streams, a directory of the container's
// and nothing else of ours.
func leftOver(t *testing.T, n *node) {
	const look = "ls /proc/self/fd | tr '\\n' ' '; readlink /proc/self/cwd"
	s := privileged("sleep 1000")
	s.Process.Cwd = "/tmp"
	note := n.dir + "/hook"
	s.Hooks = &specs.Hooks{
		CreateContainer: []specs.Hook{{Path: "/bin/busybox", Args: []string{"sh", "-c", "(" + look + ") > " + note}}},
		StartContainer:  []specs.Hook{{Path: "/bin/busybox", Args: []string{"sh", "-c", "(" + look + ") > /tmp/hook"}, Env: []string{"PATH=/bin"}}},
	}
	s.Hooks.CreateContainer[0].Env = []string{"PATH=/bin:/usr/bin"}
	id, err := n.held(t.Context(), t, s)
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{note: "0 1 2 3 /\n", n.root + "/tmp/hook": "0 1 2 3 /tmp\n"} {
		if b, err := os.ReadFile(file); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", file, b, err)
		}
	}
	p := *s.Process
	p.Args = []string{"/bin/sh", "-c", look}
	if out := n.ran(t, id, &p); out != "0 1 2 3 /tmp\n" {
		t.Errorf("exec: %q", out)
	}
}
