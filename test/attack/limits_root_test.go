package attack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// roundsEnv is how many rounds the repeated attempts make; 1 is the short form.
const roundsEnv = "LONGSHORE_ATTACK_ROUNDS"

func rounds() int {
	n, err := strconv.Atoi(os.Getenv(roundsEnv))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// limitAttempts take as many resources as they can get. Afterwards the node must answer,
// and its file systems must have their free space back.
func limitAttempts() []attempt {
	var all []attempt
	add := func(name string, run func(t *testing.T, w *world) result) {
		all = append(all, attempt{name: name, actor: containerRoot, run: func(t *testing.T, w *world) result {
			before := w.space(t)
			r := run(t, w)
			if _, err := w.CRI.Version(t.Context(), &runtimeapi.VersionRequest{}); err != nil {
				return is(reached, "the agent does not answer: %v", err)
			}
			if after := w.space(t); after-before > 64<<20 {
				return is(reached, "%d bytes of the node's disk are gone", after-before)
			}
			return r
		}})
	}
	add("processes without end", forkBomb)
	add("memory without end", memoryBomb)
	add("descriptors without end", func(t *testing.T, w *world) result {
		return w.probe(t, w.container(t, containerRoot), "take descriptors")
	})
	for _, dir := range []string{"/dev", "/dev/shm"} {
		add("fill "+dir, func(t *testing.T, w *world) result {
			return w.fills(t, "dd if=/dev/zero of="+dir+"/full bs=1048576 count=1024; rm -f "+dir+"/full")
		})
	}
	add("fill /dev/shm with files", func(t *testing.T, w *world) result { return eats(t, w, "take inodes", "/dev/shm") })
	add("fill /dev with files", func(t *testing.T, w *world) result { return eats(t, w, "take inodes", "/dev") })
	add("a log without end", logFlood)
	add("a line without end", lineFlood)
	add("an exec's output without end", execFlood)
	add("exits without end", exitStorm)
	add("execs without end", execStorm)
	add("the agent's abstract sockets", func(t *testing.T, w *world) result {
		return w.probe(t, w.amongSockets(t), "abstract sockets")
	})
	return all
}

// space returns how much the node's files take, logs included.
func (w *world) space(t *testing.T) (size int64) {
	t.Helper()
	_ = filepath.WalkDir(w.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				size += st.Size()
			}
		}
		return nil
	})
	return size
}

// fills runs a script that must reach the end of a file system or be refused.
func (w *world) fills(t *testing.T, script string) result {
	t.Helper()
	out, _ := w.sh(t, w.container(t, containerRoot), script)
	switch {
	case strings.Contains(out, "No space left") || strings.Contains(out, "File too large") || strings.Contains(out, "quota exceeded"):
		return is(bounded, "%s", strings.TrimSpace(out))
	case strings.Contains(out, "Read-only file system") || strings.Contains(out, "ermission denied") || strings.Contains(out, "not permitted"):
		return is(refused, "%s", strings.TrimSpace(out))
	case strings.Contains(out, "1024+0 records out"):
		return is(reached, "a gibibyte was written: %s", strings.TrimSpace(out))
	}
	return is(unmade, "%s", out)
}

func forkBomb(t *testing.T, w *world) result {
	r := w.job(t, table{
		"pids_limit": 40, "args": []string{"-c", "i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); echo $i > /alloc/data/forked; done; true"},
	}, nil)
	b, err := os.ReadFile(filepath.Join(w.Dir, "alloc", allocID, "alloc/data/forked"))
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	switch {
	case err != nil || n == 0:
		return is(unmade, "%v: %s", err, r)
	case n > 40:
		return is(reached, "%d processes with a limit of 40", n)
	}
	return is(bounded, "%d processes with a limit of 40", n)
}

func memoryBomb(t *testing.T, w *world) result { return eats(t, w, "take memory") }

// eats runs a probe in a container of its own with 64 MiB.
func eats(t *testing.T, w *world, probe ...string) result {
	t.Helper()
	w.jobs++
	c := w.attacker(fmt.Sprint("eater", w.jobs), containerRoot) // each has a log of its own
	c.Command = append([]string{"/attacker", probeArg}, probe...)
	c.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
	made := w.container(t, containerRoot).Pod.Run(t, c)
	st := made.WaitExited(t)
	out := made.ReadLog(t)
	_, _ = w.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ID})
	if st.GetReason() == "OOMKilled" {
		return is(bounded, "killed: %s, exit code %d", st.GetReason(), st.GetExitCode())
	}
	_, said, _ := strings.Cut(out, " F ")
	return decode([]byte(said))
}

// flood runs a container that writes to its log, and returns the size of its log files.
func (w *world) flood(t *testing.T, script string) (int64, result) {
	t.Helper()
	cfg := w.PodConfig("flood")
	pod := w.RunPod(t, cfg)
	defer pod.Remove(t)
	made := pod.Run(t, nodetest.ContainerConfig("flood", w.image, "/bin/sh", "-c", script))
	if st := made.WaitExited(t); st.GetExitCode() != 0 {
		return 0, is(unmade, "it ended with %d", st.GetExitCode())
	}
	var size int64
	files := 0
	_ = filepath.WalkDir(cfg.GetLogDirectory(), func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				size, files = size+st.Size(), files+1
			}
		}
		return nil
	})
	return size, is(bounded, "%d bytes in %d files", size, files)
}

func logFlood(t *testing.T, w *world) result {
	size, r := w.flood(t, fmt.Sprintf("yes 0123456789012345678901234567890123456789 | head -c %d", 16<<20*rounds()))
	if r.Outcome == bounded && (size == 0 || size > 4<<20) {
		return is(reached, "%s, and two of a mebibyte are allowed", r.Evidence)
	}
	return r
}

func lineFlood(t *testing.T, w *world) result {
	size, r := w.flood(t, fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", 16<<20*rounds()))
	if r.Outcome == bounded && (size == 0 || size > 4<<20) {
		return is(reached, "%s, and two of a mebibyte are allowed", r.Evidence)
	}
	return r
}

func execFlood(t *testing.T, w *world) result {
	r, err := w.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: w.container(t, containerRoot).ID, Cmd: []string{"/bin/sh", "-c", "yes | head -c 50331648"}, Timeout: 60})
	switch {
	case err != nil:
		return is(refused, "%v", err)
	case len(r.GetStdout()) > 32<<20:
		return is(reached, "%d bytes are held in memory", len(r.GetStdout()))
	}
	return is(bounded, "%d of 50331648 bytes are kept", len(r.GetStdout()))
}

func exitStorm(t *testing.T, w *world) result {
	n := 2000 * rounds()
	out, code := w.sh(t, w.container(t, containerRoot), fmt.Sprintf("i=0; while [ $i -lt %d ]; do (true &); i=$((i+1)); done; echo stormed $i", n))
	if code != 0 || !strings.Contains(out, "stormed") {
		return is(unmade, "%d %s", code, out)
	}
	return is(bounded, "%d orphans have ended", n)
}

func execStorm(t *testing.T, w *world) result {
	const each = 8
	n, errs := 32*rounds(), make(chan error, each)
	c := w.container(t, containerRoot)
	for range each {
		go func() {
			var all error
			for range n / each {
				_, err := w.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/true"}, Timeout: 60})
				all = errors.Join(all, err)
			}
			errs <- all
		}()
	}
	for range each {
		if err := <-errs; err != nil {
			return is(unmade, "%v", err)
		}
	}
	return is(bounded, "%d execs, eight at a time", n)
}

// amongSockets returns a container in the node's network namespace.
func (w *world) amongSockets(t *testing.T) *nodetest.Container {
	t.Helper()
	const as = "container root among the node's sockets"
	if c := w.inside[as]; c != nil {
		return c
	}
	cfg := w.PodConfig("hostnet")
	cfg.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	cfg.Hostname = ""
	c := w.attacker("attacker", as)
	c.Linux.SecurityContext.NamespaceOptions = cfg.Linux.SecurityContext.NamespaceOptions
	w.inside[as] = w.RunPod(t, cfg).Run(t, c)
	return w.inside[as]
}
