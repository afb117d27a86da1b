package attack

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/sleep/sleeptest"
	"github.com/longshore/longshore/test/nodetest"
)

// sleepAttempts are those on the memory of a sleeping container, and those of a container that disturbs its own sleep.
func sleepAttempts() []attempt {
	all := []attempt{byHostUser("walk the memory of sleeping containers", "tree", func(t *testing.T, w *world) []string {
		w.sleeper(t)
		return found(t, filepath.Join(w.Dir, "root/sleep"), func(_ string, d fs.DirEntry) bool { return d.IsDir() })
	})}
	for _, file := range []string{"pages", "index"} {
		all = append(all,
			byHostUser("read the "+file+" of a sleeping container", "read", func(t *testing.T, w *world) []string { return []string{w.sleeper(t) + "/" + file} }),
			attempt{name: "read the " + file + " of a sleeping neighbour", actor: containerRoot, run: func(t *testing.T, w *world) result {
				return readInside(t, w, w.container(t, containerRoot), w.sleeper(t)+"/"+file)
			}},
			attempt{name: "read the " + file + " of a sleeping neighbour through the agent", actor: containerRoot, run: func(t *testing.T, w *world) result {
				return readInside(t, w, w.amongProcesses(t), fmt.Sprintf("/proc/%d/root%s/%s", w.Pid(), w.sleeper(t), file))
			}},
		)
	}
	for mode, allowed := range map[string]string{
		sleeptest.OwnFaults: "", sleeptest.Locks: "", sleeptest.Signals: "", sleeptest.Forks: "", sleeptest.Traces: "traces it", "": "larger than the limit",
	} {
		name := "disturb its sleep: " + mode
		if mode == "" {
			name = "fill the disk by its sleep"
		}
		all = append(all, attempt{name: name, actor: containerRoot, run: func(t *testing.T, w *world) result { return disturbs(t, w, mode, allowed) }})
	}
	return all
}

// sleepLimit is the size of the file of a sleeping container at most.
const sleepLimit = 24 << 20

// sleeper returns the directory with the memory of a container that sleeps.
func (w *world) sleeper(t *testing.T) string {
	t.Helper()
	if _, err := w.CLI("inspect", "victim"); err != nil {
		w.work(t, "victim", "8")
	}
	if out, err := w.CLI("sleep", "victim"); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	dirs, err := filepath.Glob(filepath.Join(w.Dir, "root/sleep/*"))
	if err != nil || len(dirs) != 1 {
		t.Fatalf("%v sleep, %v", dirs, err)
	}
	return dirs[0]
}

// work starts a container with the program of the tests of sleep, and waits for its server.
func (w *world) work(t *testing.T, name, mib string, modes ...string) {
	t.Helper()
	args := []string{"run", "-d", "--name", name, "-v", w.self + ":/attacker:ro", "--security-opt", "seccomp=unconfined", w.image, "/attacker", sleeptest.WorkArg, ":80", mib}
	if out, err := w.CLI(append(args, modes...)...); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	nodetest.Eventually(t, name+"'s server", func() bool {
		out, _ := w.CLI("logs", name)
		return strings.Contains(out, ":80")
	})
}

// readInside reads a file in a container. Its control is root on the host.
func readInside(t *testing.T, w *world, c *nodetest.Container, path string) result {
	t.Helper()
	r := w.probe(t, c, "read", path)
	if control := w.on(t, asRoot, "read", path); control.Outcome != reached {
		return is(unmade, "root does not reach it either: %s", control)
	}
	if r.Outcome == absent {
		return is(refused, "%s", r.Evidence)
	}
	return r
}

// disturbs has a container fall asleep that disturbs it. It sleeps all the same, or gets an allowed error and runs on. Its neighbour
// sleeps on.
func disturbs(t *testing.T, w *world, mode, allowed string) result {
	t.Helper()
	dir := w.sleeper(t)
	before, err := os.ReadFile(filepath.Join(dir, "pages"))
	if err != nil {
		return is(unmade, "%v", err)
	}
	mib, modes := "8", []string{mode}
	if mode == "" {
		mib, modes = "96", nil // half of it does not compress
	}
	w.work(t, "fighter", mib, modes...)
	defer func() { _, _ = w.CLI("rm", "-f", "fighter") }()
	out, err := w.CLI("sleep", "fighter")
	after, err2 := os.ReadFile(filepath.Join(dir, "pages"))
	switch {
	case err2 != nil || string(after) != string(before):
		return is(reached, "the memory of its neighbour has changed: %v", err2)
	case allowed == "" && err != nil:
		return is(reached, "it cannot sleep: %v", err)
	case allowed != "" && (err == nil || !strings.Contains(err.Error(), allowed)):
		return is(reached, "it sleeps: %s, %v", out, err)
	case err != nil:
		if status, _ := w.CLI("inspect", "-f", "{{.State.Status}}", "fighter"); !strings.Contains(status, "running") {
			return is(reached, "after the refusal it is %s", status)
		}
		return is(refused, "sleep: %v", err)
	}
	for _, path := range found(t, filepath.Join(w.Dir, "root/sleep"), func(_ string, d fs.DirEntry) bool { return d.Type().IsRegular() }) {
		if st, err := os.Stat(path); err == nil && st.Size() > sleepLimit {
			return is(reached, "%s has %d bytes", path, st.Size())
		}
	}
	return is(bounded, "it sleeps: %s", strings.TrimSpace(out))
}
