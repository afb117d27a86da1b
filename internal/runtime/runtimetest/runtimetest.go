// Package runtimetest is the contract of core.Runtime: every runtime must pass it with a
// real Supervisor on a real kernel.
//
// It must not know which runtime it has. Start reading at Run.
package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
)

// Env is one runtime with the context of its tests.
type Env struct {
	Runtime    core.Runtime
	Supervisor core.Supervisor
	Cgroups    core.Cgroups
	// Root is a root filesystem with busybox at /bin and passwd and group at
	// /etc. Containers share it.
	Root string
	// Dir is a directory with a short path, for bundles.
	Dir string
	// ExactHooks means that hooks run at the time and place of the runtime spec, and that their
	// failures have the specified effects. crun 1.8 and runc 1.1 are tested only for their common
	// behaviour: crun runs createContainer hooks in the container's mount namespace only, and no
	// poststop hook after a failed creation; runc runs poststart hooks in create; and with both a
	// start succeeds although its hook fails.
	ExactHooks bool
}

// Run runs the whole contract against the runtime that newEnv makes, once per
// test. It must be called inside roottest.Run.
func Run(t *testing.T, newEnv func(t *testing.T) Env) {
	for _, c := range []struct {
		name string
		test func(*bench)
	}{
		{"a container lives and is gone", life},
		{"a created container does not run yet", parked},
		{"a start that is made again", startsAgain},
		{"a create that runs", runs},
		{"a program sees what the spec says", inside},
		{"streams belong to the user", unprivileged},
		{"an exec runs beside the program", execs},
		{"an exec is streamed", streamed},
		{"a terminal is one", terminal},
		{"a signal ends it", signals},
		{"pause holds it", pause},
		{"limits change", update},
		{"delete by force kills", force},
		{"namespaces are joined", joins},
		{"a network of its own beside joined namespaces", ownNetwork},
		{"adopted cgroups are joined and stay", adopts},
		{"a program gets its descriptors or the runtime is named", given},
		{"a program holds only its descriptors", confined},
		{"failed creates leave nothing", failures},
		{"a create that cannot run leaves nothing", runFailures},
		{"what is not there is said", unknown},
		{"the exit record tells of memory", memory},
		{"hooks run at six points", hooks},
		{"a hook that fails", hookFailures},
		{"a user namespace holds its root", users},
		{"an exec is in the user namespace", usersExec},
		{"a user namespace is joined", usersJoined},
		{"a mount shows mapped owners", usersMounts},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(newBench(t, newEnv(t))) })
	}
}

// bench is an Env within one test.
type bench struct {
	*testing.T
	Env
	n     int
	above core.CgroupRef
}

func newBench(t *testing.T, e Env) *bench {
	t.Helper()
	above, err := e.Cgroups.Place(core.Cgroup{}, core.CgroupRef{}, "rt")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, Env: e, above: above}
	if err := e.Cgroups.Create(t.Context(), above, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(e.Cgroups.Kill(ctx, above), e.Cgroups.Remove(ctx, above)); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return b
}

func (b *bench) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), roottest.Patience())
	b.Cleanup(cancel)
	return ctx
}

// container is a container that is being prepared or has been created.
type container struct {
	*bench
	core.RuntimeCreate
	ref core.Ref
	pid int
	log string
}

// container prepares a shell script as container; edit changes the spec.
func (b *bench) container(script string, edit ...func(*specs.Spec)) *container {
	b.Helper()
	b.n++
	id := core.ID(fmt.Sprintf("%016x%048x", b.n, time.Now().UnixNano()))
	bundle := filepath.Join(b.Dir, string(id))
	for _, dir := range []string{bundle, filepath.Join(bundle, "rootfs")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
	}
	rootfs := filepath.Join(bundle, "rootfs")
	if err := unix.Mount(b.Root, rootfs, "", unix.MS_BIND, ""); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Unmount(rootfs, unix.MNT_DETACH) })
	ref, err := b.Cgroups.Place(core.Cgroup{}, b.above, id.Short())
	if err != nil {
		b.Fatal(err)
	}
	if err := b.Cgroups.Create(b.Context(), ref, nil); err != nil {
		b.Fatal(err)
	}
	s := ocispec.New()
	s.Version = specs.Version
	s.Root = &specs.Root{Path: "rootfs"}
	s.Process.Args = []string{"/bin/sh", "-c", script}
	s.Process.Env = ocispec.BaseEnv("/root", "", false)
	s.Linux.CgroupsPath = ref.Path
	for _, k := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.NetworkNamespace} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: k})
	}
	for _, e := range edit {
		e(s)
	}
	c := &container{bench: b, ref: core.Ref{Container: id}, log: filepath.Join(bundle, "out")}
	c.RuntimeCreate = core.RuntimeCreate{
		ID: id, Bundle: bundle, Spec: s, Cgroup: ref, Levels: []core.CgroupRef{ref, b.above},
		UID: s.Process.User.UID, GID: s.Process.User.GID,
		IO: core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: c.log}}},
	}
	b.Cleanup(func() {
		ctx := context.Background()
		_ = b.Runtime.Delete(ctx, id, true)
		_ = b.Supervisor.Forget(ctx, c.ref)
	})
	return c
}

func (c *container) create() *container {
	c.Helper()
	pid, err := c.Runtime.Create(c.ctx(), c.RuntimeCreate)
	if err != nil {
		c.Fatal(err)
	}
	if c.pid = pid; pid < 2 {
		c.Fatalf("pid %d", pid)
	}
	return c
}

func (c *container) start() *container {
	c.Helper()
	c.create()
	if err := c.Runtime.Start(c.ctx(), c.ID); err != nil {
		c.Fatal(err)
	}
	return c
}

// wait returns the exit of a process, and acknowledges it.
func (b *bench) wait(ref core.Ref) core.ProcessExit {
	b.Helper()
	for x, err := range b.Supervisor.Exits(b.ctx()) {
		if err != nil {
			b.Fatalf("wait for %v: %v", ref, err)
		}
		if x.Ref == ref {
			if err := b.Supervisor.Ack(b.ctx(), ref); err != nil {
				b.Error(err)
			}
			return x
		}
	}
	b.Fatalf("waited in vain for %v", ref)
	return core.ProcessExit{}
}

// output returns a container's output, after its end.
func (c *container) output() string {
	c.Helper()
	c.wait(c.ref)
	out, err := os.ReadFile(c.log)
	if err != nil {
		c.Fatal(err)
	}
	return string(out)
}

// ready makes /tmp/ready a FIFO, and returns a function that waits until the program has
// written to it.
func (c *container) ready() (wait func()) {
	c.Helper()
	path := filepath.Join(c.Root, "tmp", "ready")
	_ = os.Remove(path)
	if err := errors.Join(unix.Mkfifo(path, 0o666), os.Chmod(path, 0o666)); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { _ = os.Remove(path) })
	return func() {
		c.Helper()
		done := make(chan error, 1)
		go func() {
			f, err := os.Open(path)
			if err == nil {
				_, _ = io.Copy(io.Discard, f)
				err = f.Close()
			}
			done <- err
		}()
		select {
		case err := <-done:
			if err != nil {
				c.Fatal(err)
			}
		case <-time.After(roottest.Patience()):
			c.Fatal("the program never wrote to /tmp/ready")
		}
	}
}

func (c *container) listed() bool {
	c.Helper()
	ids, err := c.Runtime.List(c.ctx())
	if err != nil {
		c.Fatal(err)
	}
	return slices.Contains(ids, c.ID)
}

func (c *container) delete(force bool) {
	c.Helper()
	if err := c.Runtime.Delete(c.ctx(), c.ID, force); err != nil {
		c.Errorf("delete: %v", err)
	}
}

func (b *bench) want(what string, got, want any) {
	b.Helper()
	if got != want {
		b.Errorf("%s: %v, want %v", what, got, want)
	}
}

// lines splits a program's output into "key: value" lines.
func lines(out string) map[string]string {
	m := map[string]string{}
	for l := range strings.Lines(out) {
		k, v, _ := strings.Cut(l, ":")
		m[k] = strings.TrimSpace(v)
	}
	return m
}
