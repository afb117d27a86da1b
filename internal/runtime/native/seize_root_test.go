package native_test

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/seizertest"
)

// TestSeizer is the attacker's own program, in a container.
func TestSeizer(t *testing.T) {
	if os.Getenv(seizertest.Env) == "" {
		t.Skip("it is what other tests run in a container")
	}
	if err := seizertest.Main(); err != nil {
		t.Fatal(err)
	}
}

// attacker starts a container with an attacker in it.
func (n *node) attacker(t *testing.T, caps []string) (a *seizertest.Attacker, id core.ID, pid int) {
	t.Helper()
	s := script("")
	a = seizertest.Prepare(t, s, caps)
	id, err := n.held(t.Context(), t, s)
	if err != nil {
		t.Fatal(err)
	}
	a.Ready(t)
	return a, id, n.pidOf(t, id)
}

// execs runs a program in the attacker's container again and again.
func (n *node) execs(t *testing.T, a *seizertest.Attacker, id core.ID, caps []string) {
	t.Helper()
	p := *script("").Process
	p.Capabilities = &specs.LinuxCapabilities{Bounding: caps, Permitted: caps, Effective: caps}
	p.Args = []string{"/bin/true"}
	for a.More(seizertest.Rounds(), seizertest.Tried) {
		ref := core.Ref{Container: id, Process: core.ProcessID(fmt.Sprintf("e%d", a.Round()))}
		if _, err := n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: &p}); err != nil {
			t.Fatal(err)
		}
		for x, err := range n.keeper.Exits(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if x.Ref == ref {
				if x.Exit.Code != 0 || x.Exit.Signal != 0 {
					t.Fatalf("exec %d: %+v", a.Round(), x.Exit)
				}
				break
			}
		}
		if err := n.keeper.Ack(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
		if err := n.keeper.Forget(t.Context(), ref); err != nil {
			t.Fatal(err)
		}
	}
}

// starts runs containers in the attacker's pid namespace.
func (n *node) starts(t *testing.T, a *seizertest.Attacker, pid int, r *native.Runtime) {
	t.Helper()
	for a.More(seizertest.Rounds(), seizertest.Tried) {
		s := script("ls -d /proc/[0-9]* | wc -l")
		s.Process.Capabilities = &specs.LinuxCapabilities{}
		at := slices.IndexFunc(s.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.PIDNamespace })
		s.Linux.Namespaces[at].Path = fmt.Sprintf("/proc/%d/ns/pid", pid)
		// The attacker, the shell, and its two.
		if out := n.run(t.Context(), t, r, containers(), s); out != "4\n" && out != "3\n" {
			t.Fatalf("%q processes", out)
		}
	}
}

// TestNobodySeesAProcessThatIsNotInsideYet: a process in a pid namespace that a process of ours
// joins finds nothing of the host's in it, and takes over nothing that it could not be itself.
func TestNobodySeesAProcessThatIsNotInsideYet(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		older := n.older(t)
		for name, caps := range map[string][]string{"CAP_SYS_PTRACE": seizertest.Ptrace(), "no capability": {}} {
			t.Run("exec with "+name, func(t *testing.T) {
				a, id, _ := n.attacker(t, caps)
				n.execs(t, a, id, caps)
				a.Check(t, caps)
			})
			for how, r := range map[string]*native.Runtime{"start": n.runtime, "start without pidns=": older} {
				t.Run(how+" with "+name, func(t *testing.T) {
					a, _, pid := n.attacker(t, caps)
					n.starts(t, a, pid, r)
					a.Check(t, caps)
				})
			}
		}
	})
}

// older is a runtime as on a kernel that mounts no proc for another pid
// namespace than the mounter's.
func (n *node) older(t *testing.T) *native.Runtime {
	t.Helper()
	h := host(t)
	h.ProcPidNS = false
	r, err := native.New(native.Options{Dir: "/run/older", Launcher: n.keeper, Supervisor: n.keeper, Cgroups: n.cgroups, Host: h})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestTheAttackerFindsAProcessThatIsNotInside: it works, on a process that is in
// the pid namespace from its first moment, as one of a createContainer hook is,
// which is to run in the host's files.
func TestTheAttackerFindsAProcessThatIsNotInside(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		for name, caps := range map[string][]string{"CAP_SYS_PTRACE": seizertest.Ptrace(), "no capability": {}} {
			t.Run(name, func(t *testing.T) {
				want := []string{seizertest.Mounts}
				if len(caps) > 0 {
					want = append(want, seizertest.Files)
				}
				a, id, pid := n.attacker(t, caps)
				spec := script("")
				blob, err := compile.Hook("createContainer", specs.Hook{Path: "/bin/true"}, compile.ExecInput{ID: string(id), Process: spec.Process, Spec: spec, Host: host(t), Pid: pid})
				if err != nil {
					t.Fatal(err)
				}
				for a.More(0, want...) {
					if _, err := n.keeper.RunPlan(t.Context(), core.PlannedCommand{Plan: blob, Target: core.Ref{Container: id}}); err != nil {
						t.Fatal(err)
					}
				}
				if _, _, found := a.Result(t); len(found) == 0 || a.More(0, want...) {
					t.Errorf("found %v", found)
				}
			})
		}
	})
}
