package attack

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/test/nodetest"
)

// nobody is the uid of the host user.
const nobody = 65534

func asNobody(c *exec.Cmd) {
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

func asRoot(c *exec.Cmd) { c.Dir = "/" }

// byHostUser is an attempt by nobody with a probe. Its control is the same probe as
// root.
func byHostUser(name, probe string, args func(t *testing.T, w *world) []string) attempt {
	return attempt{name: name, actor: hostUser, run: func(t *testing.T, w *world) result {
		with := args(t, w)
		r := w.on(t, asNobody, probe, with...)
		if control := w.on(t, asRoot, probe, with...); control.Outcome != reached {
			return is(unmade, "root does not reach it either: %s", control)
		}
		return r
	}}
}

// hostUserAttempts are those of a user of the host without any rights on the node.
func hostUserAttempts() []attempt {
	var all []attempt
	for _, s := range []string{"control.sock", "control-http.sock", "cri.sock", "nomad.sock", "mesos.sock"} {
		all = append(all, byHostUser("connect to "+s, "connect", func(_ *testing.T, w *world) []string { return []string{filepath.Join(w.State, s)} }))
	}
	all = append(all, byHostUser("connect to the keeper", "connect", func(t *testing.T, w *world) []string {
		return found(t, filepath.Join(w.State, "keeper"), func(_ string, d fs.DirEntry) bool { return d.Type()&fs.ModeSocket != 0 })
	}))
	for _, p := range processProbes() {
		for _, of := range []string{"agent", "keeper", "nest"} {
			if p.outside == "" && p.name != "process: enter its mount namespace" {
				all = append(all, byHostUser("the "+of+", "+p.name, p.name, func(t *testing.T, w *world) []string { return []string{strconv.Itoa(w.processOf(t, of))} }))
			}
		}
	}
	for _, below := range []string{"run", "root"} {
		walk := byHostUser("walk the directories of "+below, "tree", func(t *testing.T, w *world) []string {
			w.container(t, containerRoot)
			return found(t, filepath.Join(w.Dir, below), func(_ string, d fs.DirEntry) bool { return d.IsDir() })
		})
		all = append(all, walk)
	}
	for _, f := range []string{"secret", "config.toml", "credentials", "token"} {
		all = append(all, byHostUser("read "+f, "read", func(_ *testing.T, w *world) []string { return []string{filepath.Join(w.Dir, f)} }))
	}
	return append(all,
		attempt{name: "a setuid file of a container", actor: hostUser, run: setuidFile},
		attempt{name: "a setuid file through a process's root", actor: hostUser, run: setuidThroughProc},
	)
}

// found lists those of the wanted names that are below dir.
func found(t *testing.T, dir string, want func(path string, d fs.DirEntry) bool) []string {
	t.Helper()
	var all []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && want(path, d) && len(all) < 2000 {
			all = append(all, path)
		}
		return nil
	})
	return all
}

// makeSetuid makes, as a container's root, a file that runs as root.
func makeSetuid(t *testing.T, w *world, c *nodetest.Container) result {
	t.Helper()
	const script = "mkdir -p /suid; cp /attacker /suid/id; /bin/busybox chmod 4755 /suid/id; /bin/busybox ls -l /suid/id"
	if out, code := w.sh(t, c, script); code != 0 || !strings.HasPrefix(out, "-rws") {
		return is(unmade, "inside: %d %s", code, out)
	}
	return result{}
}

func setuidFile(t *testing.T, w *world) result {
	if r := makeSetuid(t, w, w.container(t, containerRoot)); r.Outcome != "" {
		return r
	}
	files := found(t, w.Dir, func(path string, d fs.DirEntry) bool {
		return strings.HasSuffix(path, "/suid/id") && d.Type().IsRegular()
	})
	if len(files) == 0 {
		return is(unmade, "the file is not found below %s", w.Dir)
	}
	r := w.runs(t, files...)
	// The control: with the directories' former modes, the file can be run.
	loose := found(t, w.Dir, func(_ string, d fs.DirEntry) bool { return d.IsDir() })
	for _, dir := range loose {
		if st, err := os.Stat(dir); err == nil && st.Mode().Perm()&0o011 != 0o011 {
			if err := os.Chmod(dir, st.Mode()|0o011); err != nil {
				return is(unmade, "%v", err)
			}
			defer func() { _ = os.Chmod(dir, st.Mode()) }()
		}
	}
	if control := w.runs(t, files...); control.Outcome != reached {
		return is(unmade, "with directories of mode 0711 it is %s", control)
	}
	return r
}

// runs makes nobody run files that are setuid copies of id.
func (w *world) runs(t *testing.T, files ...string) result {
	t.Helper()
	var last result
	for _, f := range files {
		if last = w.on(t, asNobody, "setuid file", f); last.Outcome != refused {
			return last
		}
	}
	last.Evidence = fmt.Sprintf("%d files, such as %s", len(files), last.Evidence)
	return last
}

// setuidThroughProc: a process that runs as nobody in a container has the same uid
// outside, so its /proc/PID/root is open to the host's nobody.
func setuidThroughProc(t *testing.T, w *world) result {
	c := w.attacker("nobodys", containerRoot)
	c.Command = []string{"/bin/sleep", "65534"}
	c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: nobody}
	pod := w.container(t, containerRoot).Pod
	made := pod.Run(t, c)
	defer func() {
		_, _ = w.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ID})
	}()
	pids := nodetest.Processes("sleep", "65534")
	if len(pids) == 0 {
		pids = nodetest.Processes("busybox", "65534")
	}
	if len(pids) != 1 {
		return is(unmade, "%d processes", len(pids))
	}
	root := fmt.Sprintf("/proc/%d/root", pids[0])
	if err := os.MkdirAll(root+"/suid", 0o755); err != nil {
		return is(unmade, "%v", err)
	}
	b, err := os.ReadFile(w.self)
	if err != nil {
		return is(unmade, "%v", err)
	}
	if err := os.WriteFile(root+"/suid/id", b, 0o755); err != nil {
		return is(unmade, "%v", err)
	}
	if err := os.Chmod(root+"/suid/id", 0o755|fs.ModeSetuid); err != nil {
		return is(unmade, "%v", err)
	}
	return w.runs(t, root+"/suid/id")
}
