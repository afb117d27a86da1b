package runtimetest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// refusesGiven reports whether the runtime refuses c because it cannot give descriptors, and checks
// that it says so.
func (c *container) refusesGiven() bool {
	c.Helper()
	pid, err := c.Runtime.Create(c.ctx(), c.RuntimeCreate)
	c.pid = pid
	if err == nil {
		return false
	}
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), c.Runtime.Name()) || !strings.Contains(err.Error(), "descriptors") || c.listed() {
		c.Fatalf("refused: %v", err)
	}
	return true
}

func (b *bench) pipe(text string) (file core.Given) {
	b.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.Close() })
	if _, err := w.WriteString(text); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	return core.Given{File: r}
}

// given: the parked process holds the descriptors, so that those of the caller can be closed.
func given(b *bench) {
	// The shell counts its own descriptors, with the directory that it reads: in a pipe it could
	// still hold the pipe's ends.
	c := b.container("cat <&4; cat <&3; set -- /proc/$$/fd/*; echo $#")
	c.Given = []core.Given{b.pipe("three "), b.pipe("four ")}
	if c.refusesGiven() {
		return
	}
	for _, g := range c.Given {
		_ = g.File.Close()
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); err != nil {
		b.Fatal(err)
	}
	b.want("output", c.output(), "four three 6\n")
	c.delete(false)
}

// confined: the program is executed by a descriptor that it does not keep, in an empty root, and
// has the rights of its descriptor in a directory.
func confined(b *bench) {
	dirs := map[string]core.Given{}
	for name, access := range map[string]core.Access{"read": core.AccessRead, "write": core.AccessRead | core.AccessWrite} {
		path := filepath.Join(b.Dir, "confined-"+name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(path+"/text", []byte("text of "+name+"\n"), 0o644); err != nil {
			b.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = f.Close() })
		dirs[name] = core.Given{File: f, Access: access}
	}
	program, err := os.OpenFile("/bin/busybox", unix.O_PATH, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = program.Close() })
	root := filepath.Join(b.Dir, "empty")
	if err := os.MkdirAll(root, 0o555); err != nil {
		b.Fatal(err)
	}
	c := b.container("")
	own := specs.Spec{
		Version: c.Spec.Version, Root: &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{Cwd: "/", NoNewPrivileges: true, Args: []string{"sh", "-c", confinedScript}, Capabilities: &specs.LinuxCapabilities{}},
		Linux:   &specs.Linux{Namespaces: c.Spec.Linux.Namespaces, Seccomp: &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, Architectures: []specs.Arch{specs.ArchX86_64, specs.ArchAARCH64}}},
	}
	var took core.Confinement
	c.Given = []core.Given{dirs["read"], dirs["write"]}
	c.Confine, c.Confined = &core.Confine{Program: program, Spec: &own}, func(k core.Confinement) { took = k }
	if c.refusesGiven() {
		return
	}
	if !took.Seccomp || !took.NoNewPrivileges || !took.NoCapabilities || took.Landlock == 0 && len(took.Left) == 0 {
		b.Errorf("confined by %+v", took)
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); err != nil {
		b.Fatal(err)
	}
	// The shell itself holds the descriptors 0 to 4, and opens nothing beside them.
	b.want("output", c.output(), "entries /*\nno proc\nno host\nsh: 5: Bad file descriptor\nno more descriptors\n")
	c.delete(false)
}

// confinedScript uses only builtins of the shell, because it can execute no program.
const confinedScript = `echo entries /*
[ -e /proc/self ] || echo no proc
[ -e /bin/sh ] || [ -e /etc/passwd ] || echo no host
(exec 7<&5) 2>&1 || echo no more descriptors`
