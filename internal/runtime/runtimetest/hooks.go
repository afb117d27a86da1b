package runtimetest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// hookShell is a program with the same path on the host and in the container.
const hookShell = "/bin/busybox"

// noted is the output of one hook.
type noted struct {
	kind, host string
	state      specs.State
}

// hooked gives c a hook at each of the six points. Each hook adds a line to a file: its
// kind, the host name it sees, and the state it has read. edit changes the hook of a
// kind.
func (c *container) hooked(edit map[string]func(*specs.Hook)) (notes func() []noted) {
	c.Helper()
	outside, inside := filepath.Join(c.Bundle, "notes"), filepath.Join(c.Root, "tmp", "notes")
	_ = os.Remove(inside)
	c.Cleanup(func() { _ = os.Remove(inside) })
	hook := func(kind string) []specs.Hook {
		file := outside
		if kind == "startContainer" {
			file = "/tmp/notes"
		}
		h := specs.Hook{
			Path: hookShell, Args: []string{"sh", "-c", `echo "$STAGE $(cat /proc/sys/kernel/hostname) $(cat)" >> "$FILE"; exit $STATUS`},
			Env: []string{"PATH=/bin", "STAGE=" + kind, "FILE=" + file, "STATUS=0"},
		}
		if e := edit[kind]; e != nil {
			e(&h)
		}
		return []specs.Hook{h}
	}
	c.Spec.Hostname = "hooked"
	c.Spec.Annotations = map[string]string{"note": "x"}
	c.Spec.Hooks = &specs.Hooks{
		Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), CreateContainer: hook("createContainer"), //nolint:staticcheck // still sent
		StartContainer: hook("startContainer"), Poststart: hook("poststart"), Poststop: hook("poststop"),
	}
	return func() (all []noted) {
		c.Helper()
		for _, file := range []string{outside, inside} {
			text, err := os.ReadFile(file)
			if err != nil && !os.IsNotExist(err) {
				c.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				f := strings.SplitN(strings.TrimSpace(line), " ", 3)
				n := noted{kind: f[0], host: f[1]}
				if err := json.Unmarshal([]byte(f[2]), &n.state); err != nil {
					c.Fatalf("%s: %v", line, err)
				}
				all = append(all, n)
			}
		}
		return all
	}
}

func kindsOf(all []noted) (s []string) {
	for _, n := range all {
		s = append(s, n.kind)
	}
	return s
}

func hooks(b *bench) {
	c := b.container("sleep 1000")
	notes := c.hooked(nil)
	c.create()
	early := notes()
	if !b.ExactHooks && len(early) > 3 {
		early = early[:3]
	}
	if d := cmp.Diff([]string{"prestart", "createRuntime", "createContainer"}, kindsOf(early)); d != "" {
		b.Fatalf("after create: %s", d)
	}
	host, err := os.Hostname()
	if err != nil {
		b.Fatal(err)
	}
	for i, n := range early {
		want := specs.State{Version: n.state.Version, ID: string(c.ID), Status: n.state.Status, Bundle: c.Bundle, Annotations: map[string]string{"note": "x"}, Pid: n.state.Pid}
		if n.state.Version == "" || n.state.Status != specs.StateCreating && n.state.Status != specs.StateCreated {
			b.Errorf("%+v", n)
		}
		if d := cmp.Diff(want, n.state); d != "" {
			b.Errorf("%s: %s", n.kind, d)
		}
		// The last one runs in the container's namespaces.
		if in := i == 2; b.ExactHooks && in != (n.host == "hooked") || !in && (n.host != host || n.state.Pid != c.pid) || b.ExactHooks && in && n.state.Pid != 1 {
			b.Errorf("%+v, the container's pid is %d", n, c.pid)
		}
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); err != nil {
		b.Fatal(err)
	}
	late := notes()
	if !b.ExactHooks { // their poststop hooks may still be running
		late = late[:min(4, len(late))]
	} else if len(late) != 5 || late[4].kind != "startContainer" || late[4].host != "hooked" || late[4].state.Pid != 1 || late[4].state.Status != specs.StateCreated {
		b.Fatalf("after start: %+v", late)
	}
	if d := cmp.Diff([]string{"prestart", "createRuntime", "createContainer", "poststart"}, kindsOf(late[:4])); d != "" {
		b.Fatalf("after start: %s", d)
	}
	if err := b.Runtime.Start(b.ctx(), c.ID); err != nil {
		b.Errorf("a second start: %v", err)
	}
	if all := notes(); b.ExactHooks && len(all) != 5 {
		b.Errorf("hooks have run again: %v", kindsOf(all))
	}
	if n := late[3]; n.host != host || n.state.Pid != c.pid || b.ExactHooks && n.state.Status != specs.StateRunning {
		b.Errorf("%+v", n)
	}
	c.delete(true)
	c.wait(c.ref)
	if n := notes()[4]; n.kind != "poststop" || n.host != host || n.state.Status != specs.StateStopped {
		b.Errorf("%+v", n)
	}
	c.delete(true)
	if all := notes(); b.ExactHooks && len(all) != 6 {
		b.Errorf("deleted again: %v", kindsOf(all))
	}
}

// hookFailures: a failing hook before the program fails the operation, stops the
// container, and poststop hooks still run. A failing hook after its end fails nothing.
func hookFailures(b *bench) {
	fail := func(h *specs.Hook) { h.Env[3] = "STATUS=3" }
	hang := func(h *specs.Hook) {
		one := 1
		h.Timeout, h.Args = &one, []string{"sh", "-c", "exec sleep 1000"}
	}
	missing := func(h *specs.Hook) { h.Path = "/no/such/hook" }
	for _, k := range []struct {
		kind string
		how  func(*specs.Hook)
		runs []string // hooks that had run by then
	}{
		{"prestart", fail, []string{"prestart"}},
		{"createRuntime", hang, []string{"prestart"}},
		{"createRuntime", missing, []string{"prestart"}},
		{"createContainer", fail, []string{"prestart", "createRuntime", "createContainer"}},
		{"startContainer", fail, []string{"prestart", "createRuntime", "createContainer", "startContainer"}},
		{"startContainer", missing, []string{"prestart", "createRuntime", "createContainer"}},
		{"poststop", fail, []string{"prestart", "createRuntime", "createContainer", "poststart", "startContainer"}},
	} {
		if !b.ExactHooks && k.kind != "prestart" && k.kind != "createRuntime" && k.kind != "createContainer" {
			continue
		}
		c := b.container("sleep 1000")
		notes := c.hooked(map[string]func(*specs.Hook){k.kind: k.how})
		var err error
		c.pid, err = b.Runtime.Create(b.ctx(), c.RuntimeCreate)
		created := err == nil
		if created {
			err = b.Runtime.Start(b.ctx(), c.ID)
		}
		if (err != nil) != (k.kind != "poststop") || created != (k.kind == "startContainer" || k.kind == "poststop") {
			b.Errorf("%s: created %v, %v", k.kind, created, err)
		}
		var before []string
		for _, s := range kindsOf(notes()) {
			if s != "poststop" {
				before = append(before, s)
			}
		}
		if d := cmp.Diff(k.runs, before); d != "" {
			b.Errorf("%s: %s", k.kind, d)
		}
		c.delete(true)
		if created {
			c.wait(c.ref)
		}
		if all := kindsOf(notes()); b.ExactHooks && strings.Count(strings.Join(all, " "), "poststop") != 1 {
			b.Errorf("%s: %v", k.kind, all)
		}
		if c.listed() {
			b.Errorf("%s: still listed", k.kind)
		}
		if pids, err := b.Cgroups.Pids(b.ctx(), c.Cgroup); err == nil && len(pids) > 0 {
			b.Errorf("%s: processes %v are left", k.kind, pids)
		}
	}
}
