package keeper_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/roottest"
)

// env is one state directory with a keeper built for the test.
type env struct {
	t      *testing.T
	dir    string
	binary string
	c      *keeper.Client
	seq    int
}

func newEnv(t *testing.T) *env {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "longshore-keeper")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", binary, "github.com/longshore/longshore/cmd/longshore-keeper")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	e := &env{t: t, dir: t.TempDir(), binary: binary}
	e.c = e.client()
	t.Cleanup(func() {
		if t.Failed() {
			if b, err := os.ReadFile(filepath.Join(e.dir, "keeper.log")); err == nil {
				t.Logf("keeper.log:\n%s", b)
			}
		}
		e.killPairs()
	})
	return e
}

// ctx is a context that outlives the test's own, for clean-up too.
func (e *env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), roottest.Patience())
	e.t.Cleanup(cancel)
	return ctx
}

func (e *env) client(set ...func(*keeper.Options)) *keeper.Client {
	e.t.Helper()
	opts := keeper.Options{StateDir: e.dir, Binary: e.binary}
	for _, fn := range set {
		fn(&opts)
	}
	c, err := keeper.New(e.ctx(), opts)
	if err != nil {
		e.t.Fatalf("New: %v", err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// killPairs ends the test's processes: it is in a pid namespace of its own, so that all that runs
// in it is ours.
func (e *env) killPairs() {
	st, err := e.c.Status(e.ctx())
	_ = e.c.Close() // it would start them again
	if err != nil {
		return
	}
	pids := []int{st.NestPid, st.KeeperPid}
	for _, pid := range pids { // a running one would start the other again
		if pid > 1 {
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
	}
	for _, pid := range pids { // until they are gone: they write to the directory that the test removes
		if pid > 1 {
			killAndWait(e.t, pid)
		}
	}
}

// status waits for a keeper that answers: where the processors are busy, the next one may
// take longer than a client's patience.
func (e *env) status() (st core.SupervisorStatus) {
	e.t.Helper()
	var err error
	roottest.Eventually(e.t, "a keeper answers", func() bool {
		st, err = e.c.Status(e.ctx())
		return !errdefs.IsUnavailable(err)
	})
	if err != nil {
		e.t.Fatalf("Status: %v", err)
	}
	return st
}

// scriptEnv and pidFileEnv make this test program a launcher, see TestMain.
const (
	scriptEnv  = "KEEPER_TEST_SCRIPT"
	pidFileEnv = "KEEPER_TEST_PIDFILE"
)

// TestMain is also the program that launches use: it starts a shell, writes its
// pid and ends, without ever reaping it, as runtimes do.
func TestMain(m *testing.M) {
	if path := os.Getenv(pidFileEnv); path != "" {
		pid, err := syscall.ForkExec("/bin/busybox", []string{"sh", "-c", os.Getenv(scriptEnv)},
			&syscall.ProcAttr{Files: []uintptr{0, 1, 2}, Env: []string{"PATH=/bin:/usr/bin"}})
		if err == nil {
			err = os.WriteFile(path, []byte(strconv.Itoa(pid)), 0o600)
		}
		if err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// shell is a launch of a shell that runs script.
func (e *env) shell(id, script string) core.CommandLaunch {
	e.t.Helper()
	e.seq++
	pid := filepath.Join(e.dir, fmt.Sprintf("pid-%d", e.seq))
	self, err := os.Executable()
	if err != nil {
		e.t.Fatal(err)
	}
	return core.CommandLaunch{
		Launch: core.Launch{Ref: core.Ref{Container: core.ID(id)}}, PidFile: pid,
		Command: core.Command{Args: []string{self}, Env: []string{scriptEnv + "=" + script, pidFileEnv + "=" + pid}},
	}
}

func (e *env) launch(l core.CommandLaunch) core.Launched {
	e.t.Helper()
	got, err := e.c.LaunchCommand(e.ctx(), l)
	if err != nil {
		e.t.Fatalf("Launch %v: %v", l.Ref, err)
	}
	return got
}

// exit waits for the exit of one process.
func (e *env) exit(ref core.Ref) core.ProcessExit {
	e.t.Helper()
	return e.exits(ref)[ref]
}

// exits waits until all refs have ended, asking again when a keeper goes.
func (e *env) exits(refs ...core.Ref) map[core.Ref]core.ProcessExit {
	e.t.Helper()
	got := map[core.Ref]core.ProcessExit{}
	ctx := e.ctx()
	for ctx.Err() == nil {
		for x, err := range e.c.Exits(ctx) {
			if err != nil {
				break
			}
			got[x.Ref] = x
			missing := false
			for _, r := range refs {
				if _, ok := got[r]; !ok {
					missing = true
				}
			}
			if !missing {
				return got
			}
		}
	}
	e.t.Fatalf("waited in vain for exits of %v; got %v", refs, got)
	return nil
}

func (e *env) file(name string) string { return filepath.Join(e.dir, name) }

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// texts takes the texts of CRI records of one stream, joined as a reader would.
func texts(t *testing.T, log, stream string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(log) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)
		if len(f) != 4 {
			t.Fatalf("no record: %q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			t.Fatalf("time of %q: %v", line, err)
		}
		if f[1] != stream {
			continue
		}
		out.WriteString(f[3])
		switch f[2] {
		case "F":
			out.WriteByte('\n')
		case "P":
		default:
			t.Fatalf("tag of %q", line)
		}
	}
	return out.String()
}

// bundle makes an OCI bundle of busybox that runs args.
func (e *env) bundle(id string, tty bool, args ...string) string {
	e.t.Helper()
	dir := e.file("bundle-" + id)
	bin := filepath.Join(dir, "rootfs", "bin")
	for _, d := range []string{bin, filepath.Join(dir, "rootfs", "proc"), filepath.Join(dir, "rootfs", "dev")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			e.t.Fatal(err)
		}
	}
	b, err := os.ReadFile("/bin/busybox")
	if err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), b, 0o755); err != nil {
		e.t.Fatal(err)
	}
	if err := os.Symlink("busybox", filepath.Join(bin, "sh")); err != nil {
		e.t.Fatal(err)
	}
	type m map[string]any
	spec := m{
		"ociVersion": "1.0.2",
		"root":       m{"path": "rootfs"},
		"process": m{
			"terminal": tty, "cwd": "/", "args": args, "env": []string{"PATH=/bin"},
			"user": m{"uid": 0, "gid": 0},
		},
		"mounts": []m{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"mode=755"}},
			{"destination": "/dev/pts", "type": "devpts", "source": "devpts", "options": []string{"newinstance", "ptmxmode=0666"}},
		},
		"linux": m{"namespaces": []m{{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}}, "cgroupsPath": "/longshore-test-keeper-" + id},
	}
	j, err := json.Marshal(spec)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), j, 0o600); err != nil {
		e.t.Fatal(err)
	}
	return dir
}

// crun builds a command line of crun's.
func (e *env) crun(args ...string) core.Command {
	return core.Command{
		Args: append([]string{"/usr/bin/crun", "--root", e.file("crun"), "--cgroup-manager=cgroupfs"}, args...),
		Env:  []string{"PATH=/usr/bin:/bin"}, HideUnified: true,
	}
}

// container is the launch of a bundle by crun create.
func (e *env) container(id string, io core.IO, args ...string) core.CommandLaunch {
	e.t.Helper()
	dir := e.bundle(id, io.TTY, args...)
	pid := filepath.Join(dir, "pid")
	l := core.CommandLaunch{Launch: core.Launch{Ref: core.Ref{Container: core.ID(id)}, IO: io}, PidFile: pid}
	cmd := []string{"create", "--bundle", dir, "--pid-file", pid}
	if io.TTY {
		l.ConsoleSocket = "/run/console-" + id
		cmd = append(cmd, "--console-socket", l.ConsoleSocket)
	}
	l.Command = e.crun(append(cmd, id)...)
	e.t.Cleanup(func() {
		_, _ = e.c.Run(e.ctx(), e.crun("delete", "--force", id))
	})
	return l
}

func (e *env) mustRun(cmd core.Command) core.CommandResult {
	e.t.Helper()
	r, err := e.c.Run(e.ctx(), cmd)
	if err != nil || r.Status != 0 {
		e.t.Fatalf("Run %v: status %d, %v\n%s", cmd.Args, r.Status, err, r.Stderr)
	}
	return r
}

// readAll reads a stream to its end.
func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	var b bytes.Buffer
	if _, err := io.Copy(&b, r); err != nil && !errors.Is(err, io.EOF) {
		t.Errorf("read: %v", err)
	}
	return b.String()
}
