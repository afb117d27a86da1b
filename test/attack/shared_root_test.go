package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// sharedAttempts use up quotas that uid 0 of a container and the node's programs share, and services
// for all containers. Meanwhile the node must work for others.
func sharedAttempts() []attempt {
	return []attempt{
		{name: "inotify instances without end", actor: containerRoot, weak: weaken.InotifyPolling, run: func(t *testing.T, w *world) result {
			return w.whileHeld(t, containerRoot, "take inotify", func() result { return w.followed(t) })
		}},
		{name: "keys without end", actor: withPtrace, weak: weaken.KeyringQuota, run: func(t *testing.T, w *world) result {
			awaitKeys(t)
			return w.whileHeld(t, withPtrace, "take keys", func() result { return w.started(t) })
		}},
		{name: "keys without end", actor: containerRoot, run: func(t *testing.T, w *world) result {
			awaitKeys(t)
			return w.whileHeld(t, containerRoot, "take keys", func() result { return w.started(t) })
		}},
		// Before the attempts that take all keys of uid 0: the kernel frees keys some time after their holder.
		{name: "a keyring with the name of another container's", actor: withPtrace, alone: true, weak: weaken.SessionKeyring, run: namedKeyring},
		{name: "the host's keys, with keys without end", actor: withPtrace, alone: true, weak: weaken.SessionKeyring, run: hostKeys},
		{name: "descriptors in flight without end", actor: containerRoot, weak: weaken.BoardShortage, run: flight},
		{name: "questions for names without end", actor: containerRoot, weak: weaken.NameBudget, run: questionFlood},
	}
}

// awaitKeys waits until the kernel has freed the keys of an attempt before this one, which it does some time after their holder
// has ended.
func awaitKeys(t *testing.T) {
	t.Helper()
	nodetest.Eventually(t, "uid 0 has half of its quota of keys", func() bool {
		b, err := os.ReadFile("/proc/key-users")
		if err != nil {
			t.Fatal(err)
		}
		var uid, usage, keys, instantiated, counted, most, bytes, mostBytes int
		_, err = fmt.Sscanf(strings.TrimSpace(string(b)), "%d: %d %d/%d %d/%d %d/%d", &uid, &usage, &keys, &instantiated, &counted, &most, &bytes, &mostBytes)
		if err != nil || uid != 0 {
			t.Fatalf("/proc/key-users begins with uid %d: %v\n%s", uid, err, b)
		}
		return 2*counted < most && 2*bytes < mostBytes
	})
}

// whileHeld runs a probe in a container of an actor that takes all there is of something, and calls others while
// the probe holds it.
func (w *world) whileHeld(t *testing.T, a actor, probe string, others func() result, args ...string) result {
	t.Helper()
	w.jobs++
	dir := t.TempDir()
	c := w.attacker(fmt.Sprint("holder", w.jobs), a) // each has a log of its own
	c.Command = append([]string{"/attacker", probeArg, probe, "/hold"}, args...)
	c.Mounts = append(c.Mounts, &runtimeapi.Mount{HostPath: dir, ContainerPath: "/hold"})
	made := w.container(t, a).Pod.Run(t, c)
	nodetest.Eventually(t, "all is taken, or the attacker has ended", func() bool {
		_, err := os.Stat(filepath.Join(dir, "ready"))
		return err == nil || made.Status(t).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
	})
	r := others()
	if err := os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600); err != nil {
		return is(unmade, "%v", err)
	}
	made.WaitExited(t)
	_, said, _ := strings.Cut(made.ReadLog(t), " F ")
	_, _ = w.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ID})
	taken := decode([]byte(said))
	if taken.Outcome != bounded {
		return taken
	}
	r.Evidence = taken.Evidence + "; " + r.Evidence
	return r
}

// followed follows the log of another container, which writes a line later.
func (w *world) followed(t *testing.T) result {
	t.Helper()
	w.jobs++
	name := fmt.Sprint("followed", w.jobs)
	w.must(t, "run", "-d", "--name", name, w.image, "/bin/sh", "-c", "sleep 0.5; echo late")
	defer func() { _, _ = w.CLI("rm", "-f", name) }()
	out, err := w.CLI("logs", "-f", name)
	if err != nil || !strings.Contains(out, "late") {
		return is(reached, "another container's log is not followed: %q, %v", out, err)
	}
	return is(bounded, "another container's log was followed: %s", one(out))
}

// started starts another container.
func (w *world) started(t *testing.T) result {
	t.Helper()
	out, err := w.CLI("run", "--rm", w.image, "/bin/echo", "started")
	if err != nil || !strings.Contains(out, "started") {
		return is(reached, "no other container starts: %q, %v", out, err)
	}
	return is(bounded, "another container has started")
}

// questionFlood asks the node's name server for a container's name.
func questionFlood(t *testing.T, w *world) result {
	w.must(t, "network", "create", "flooded")
	defer func() { _, _ = w.CLI("network", "rm", "flooded") }()
	w.must(t, "run", "-d", "--name", "flood", "--network", "flooded", "-v", w.self+":/attacker:ro", w.image, "/bin/sleep", "100000")
	defer func() { _, _ = w.CLI("rm", "-f", "flood") }()
	out, err := w.CLI("exec", "flood", "/attacker", probeArg, "flood names", "flood")
	if err != nil {
		return is(unmade, "%v: %s", err, out)
	}
	return decode([]byte(out))
}

// server starts a program that becomes a server on the board again and again. state returns the last result.
func (w *world) server(t *testing.T) (state func() string) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "board")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "./testdata/board")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ref := imagetest.NewRegistry(t).Push("board", "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "program", Body: program, Mode: 0o755}}}}.Build())
	if err := w.pull(t, ref); err != nil {
		t.Fatal(err)
	}
	c := nodetest.ContainerConfig("server", ref, "/program")
	c.Annotations = map[string]string{core.GrantAnnotation: "{serve: !server {app: db}, data: !mount /data}"}
	c.Mounts = []*runtimeapi.Mount{{HostPath: dir, ContainerPath: "/data"}}
	w.container(t, containerRoot).Pod.Run(t, c)
	return func() string {
		b, _ := os.ReadFile(filepath.Join(dir, "state"))
		return string(b)
	}
}

// flight keeps descriptors in flight while another program becomes a server on the board. The board's limit is
// low in this test, so that a thousand exceed it. Afterwards the program must become a server with the same handle.
func flight(t *testing.T, w *world) result {
	state := w.server(t)
	nodetest.Eventually(t, "the server serves", func() bool { return state() == "serves" })
	board := w.Finding(t, "board")
	var pid int
	if n, err := fmt.Sscanf(board, "process %d", &pid); n != 1 {
		return is(unmade, "no process in %q: %v", board, err)
	}
	restore := roottest.LimitFiles(t, pid, 64)
	r := w.whileHeld(t, containerRoot, "send descriptors", func() result {
		nodetest.Eventually(t, "the server is refused", func() bool { return state() != "serves" })
		return is(bounded, "meanwhile a server hears %q", state())
	})
	restore()
	if r.Outcome != bounded {
		return r
	}
	for range 50 {
		if state() == "serves" {
			return is(bounded, "%s, and serves again afterwards", r.Evidence)
		}
		nodetest.Pause(50)
	}
	return is(reached, "%s, and long afterwards %q", r.Evidence, state())
}

// hostKeys searches the session keyring for a key of the host's session that started the node, in a
// container that starts while there is no quota for a keyring of its own.
func hostKeys(t *testing.T, w *world) result {
	const name = "the host's key"
	runtime.LockOSThread() // a session is a thread's and its children's; the thread ends with this test
	if _, err := unix.KeyctlJoinSessionKeyring("longshore-attack"); err != nil {
		return is(unmade, "%v", err)
	}
	if _, err := unix.AddKey("user", name, []byte(secretText), unix.KEY_SPEC_SESSION_KEYRING); err != nil {
		return is(unmade, "%v", err)
	}
	// The test is the first process of its pid namespace and reaps no orphans: a pod with a killed
	// keeper would not end.
	for a, c := range w.inside {
		c.Pod.Remove(t)
		delete(w.inside, a)
	}
	w.Kill()
	w.KillPair()
	w.Up()
	if r := w.on(t, func(*exec.Cmd) {}, "find a key", name); r.Outcome != reached {
		return is(unmade, "the host's root does not find its key: %s", r)
	}
	return w.whileHeld(t, withPtrace, "take keys", func() result {
		out, _ := w.alone(t, withPtrace, nil, "/attacker", probeArg, "find a key", name)
		_, said, _ := strings.Cut(out, " F ")
		return decode([]byte(said))
	})
}

// namedKeyring gives a keyring the name that the keyrings of another container might have, and searches it from an
// exec there.
func namedKeyring(t *testing.T, w *world) result {
	const name = "the attacker's key"
	other := w.container(t, withoutAdmin)
	return w.whileHeld(t, withPtrace, "name a keyring", func() result { return w.probe(t, other, "find a key", name) }, "_ses."+other.ID, name)
}
