package runtimetest

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// exec prepares a script as a further process of c.
func (c *container) exec(id core.ProcessID, script string) core.RuntimeExec {
	p := *c.Spec.Process
	p.Args = []string{"/bin/sh", "-c", script}
	return core.RuntimeExec{
		Ref: core.Ref{Container: c.ID, Process: id}, Bundle: c.Bundle, Spec: &p, Levels: c.Levels,
		IO: core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: filepath.Join(c.Bundle, "out-"+strings.ReplaceAll(string(id), "/", "_"))}}},
	}
}

func (c *container) forget(ref core.Ref) {
	c.Helper()
	if err := c.Supervisor.Forget(c.ctx(), ref); err != nil {
		c.Error(err)
	}
}

func execs(b *bench) {
	c := b.container("echo > /tmp/ready; sleep 1000", func(s *specs.Spec) { s.Hostname = "main" })
	ready := c.ready()
	c.start()
	ready()
	e := c.exec("e/1 \"x\"", "hostname; pwd; id -u; echo $VAR; tr '\\0' ' ' < /proc/1/cmdline | grep -c sleep; exit 3")
	e.Spec.Cwd, e.Spec.User.UID, e.UID = "/etc", 55, 55
	e.Spec.Env = append(slices.Clone(e.Spec.Env), "VAR=v")
	l, err := b.Runtime.Exec(b.ctx(), e)
	if err != nil {
		b.Fatal(err)
	}
	if l.Pid < 2 || l.Streams != nil {
		b.Errorf("launched %+v", l)
	}
	x := b.wait(e.Ref)
	b.want("exit code", x.Exit.Code, 3)
	b.want("pid", x.Pid, l.Pid)
	out, err := os.ReadFile(e.IO.Sinks[0].Path)
	if want := "main\n/etc\n55\nv\n1\n"; err != nil || string(out) != want {
		b.Errorf("output %q, %v, want %q", out, err, want)
	}
	c.forget(e.Ref)
	for name, bad := range map[string]struct {
		edit   func(*specs.Process)
		status int // that a shell shows; 0: runtimes do not tell
	}{
		"a program that is not there":     {func(p *specs.Process) { p.Args = []string{"/no/such/program"} }, 127},
		"a program that no directory has": {func(p *specs.Process) { p.Args = []string{"nosuch"} }, 127},
		"a directory":                     {func(p *specs.Process) { p.Args = []string{"/etc"} }, 126},
		"a file that cannot be run":       {func(p *specs.Process) { p.Args = []string{"/etc/passwd"} }, 126},
		"a directory to work in":          {func(p *specs.Process) { p.Cwd = "/no/such/dir" }, 0},
	} {
		e := c.exec("bad", "true")
		bad.edit(e.Spec)
		_, err := b.Runtime.Exec(b.ctx(), e)
		if err != nil && bad.status != 0 {
			b.want(name+": status of "+err.Error(), core.StartStatus(err), bad.status)
		}
		if err == nil {
			// A runtime may find out only in the process itself, with a
			// shell's status.
			if x := b.wait(e.Ref); x.Exit.Code != 126 && x.Exit.Code != 127 && x.Exit.Code != 255 && x.Exit.Code != 1 {
				b.Errorf("%s: exit %+v", name, x.Exit)
			}
		} else if errdefs.IsUnknown(err) || errdefs.IsInternal(err) {
			b.Errorf("%s has no class: %v", name, err)
		}
		c.forget(e.Ref)
	}
	c.delete(true)
	c.wait(c.ref)
	late := c.exec("late", "true")
	if _, err := b.Runtime.Exec(b.ctx(), late); !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
		b.Errorf("exec in what is gone: %v", err)
	}
	if _, err := b.Runtime.Exec(b.ctx(), c.exec(core.Main, "true")); !errdefs.IsInvalidArgument(err) {
		b.Errorf("exec as main: %v", err)
	}
}

func streamed(b *bench) {
	c := b.container("echo > /tmp/ready; sleep 1000")
	ready := c.ready()
	c.start()
	ready()
	e := c.exec("s", "cat; echo end >&2; exit 4")
	e.IO = core.IO{Stdin: core.StdinOpen, Hold: true}
	e.Attach = &core.StreamOptions{Stdin: true, Stdout: true, Stderr: true, Exclusive: true}
	l, err := b.Runtime.Exec(b.ctx(), e)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Streams.Close() }()
	errs := make(chan string, 1)
	go func() {
		out, _ := io.ReadAll(l.Streams.Stderr)
		errs <- string(out)
	}()
	if _, err := io.WriteString(l.Streams.Stdin, "through"); err != nil {
		b.Fatal(err)
	}
	if err := l.Streams.Stdin.Close(); err != nil {
		b.Error(err)
	}
	out, err := io.ReadAll(l.Streams.Stdout)
	if err != nil || string(out) != "through" {
		b.Errorf("stdout %q, %v", out, err)
	}
	b.want("stderr", <-errs, "end\n")
	b.want("exit code", b.wait(e.Ref).Exit.Code, 4)
	c.forget(e.Ref)
	c.delete(true)
	c.wait(c.ref)
}

func terminal(b *bench) {
	c := b.container("test -t 0 && test -t 1 && echo yes; stty size; echo > /tmp/ready; sleep 1000", func(s *specs.Spec) { s.Process.Terminal = true })
	c.IO.TTY, c.IO.Size = true, core.Size{Cols: 91, Rows: 17}
	ready := c.ready()
	c.create()
	// The size may be set after the create only: it is the Supervisor's.
	if err := b.Supervisor.Resize(b.ctx(), c.ref, c.IO.Size); err != nil {
		b.Error(err)
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); err != nil {
		b.Fatal(err)
	}
	ready()
	e := c.exec("tty", "test -t 0 && echo exec")
	e.IO.TTY, e.Spec.Terminal = true, true
	if _, err := b.Runtime.Exec(b.ctx(), e); err != nil {
		b.Fatal(err)
	}
	b.want("exit code", b.wait(e.Ref).Exit.Code, 0)
	out, err := os.ReadFile(e.IO.Sinks[0].Path)
	if err != nil || string(out) != "exec\r\n" {
		b.Errorf("output of the exec %q, %v", out, err)
	}
	c.forget(e.Ref)
	c.delete(true)
	b.want("output", c.output(), "yes\r\n17 91\r\n")
}

// failures: each error names operation and object, and nothing is left. impossible are specs that
// no runtime can do, by the text that the error must contain.
func impossible() map[string]func(*specs.Spec) {
	return map[string]func(*specs.Spec){
		"/no/such/program": func(s *specs.Spec) { s.Process.Args = []string{"/no/such/program"} },
		"no-such-program":  func(s *specs.Spec) { s.Process.Args = []string{"no-such-program"} },
		"/gone/source": func(s *specs.Spec) {
			s.Mounts = append(s.Mounts, specs.Mount{Destination: "/mnt", Type: "bind", Source: "/gone/source", Options: []string{"rbind"}})
		},
		"/gone/ns": func(s *specs.Spec) {
			s.Linux.Namespaces = append(slices.DeleteFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace }),
				specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: "/gone/ns"})
		},
	}
}

// runFailures: the name can be used at once.
func runFailures(b *bench) {
	for name, edit := range impossible() {
		c := b.container("echo ran", edit)
		c.Run = true
		_, err := b.Runtime.Create(b.ctx(), c.RuntimeCreate)
		if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), strings.TrimPrefix(name, "/gone")) {
			b.Errorf("%s: %v", name, err)
		}
		if strings.Contains(name, "program") {
			b.want("status of "+err.Error(), core.StartStatus(err), 127)
		}
		if c.listed() {
			b.Errorf("%s: still listed", name)
		}
		c.forget(c.ref)
	}
}

func failures(b *bench) {
	for name, edit := range impossible() {
		c := b.container("echo ran", edit)
		pid, err := b.Runtime.Create(b.ctx(), c.RuntimeCreate)
		if err == nil {
			// The program may be searched only at the start.
			if err = b.Runtime.Start(b.ctx(), c.ID); err == nil {
				b.Errorf("%s: went through as %d", name, pid)
			}
		}
		switch {
		case err == nil:
		case !errdefs.IsNotFound(err):
			b.Errorf("%s: class of %v", name, err)
		case !strings.Contains(err.Error(), strings.TrimPrefix(name, "/gone")):
			b.Errorf("%s is not named in %v", name, err)
		}
		c.delete(true)
		if c.listed() {
			b.Errorf("%s: still listed", name)
		}
		if pids, _ := b.Cgroups.Pids(b.ctx(), c.Cgroup); len(pids) > 0 {
			b.Errorf("%s: processes left %v", name, pids)
		}
		c.forget(c.ref)
	}
}
