package ocicli_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/seizertest"
)

// TestNobodySeesAnExecThatIsNotInsideYet: a process in a container finds nothing of the host's in
// an exec of this command line on its way in.
func TestNobodySeesAnExecThatIsNotInsideYet(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		own := m.cgroup
		for name, caps := range map[string][]string{"CAP_SYS_PTRACE": seizertest.Ptrace(), "no capability": {}} {
			t.Run(name, func(t *testing.T) {
				m.cgroup = fmt.Sprintf("%s/%d", own, len(caps)) // the kernel may not have removed the last one's yet
				s := m.spec("")
				a := seizertest.Prepare(t, s, caps)
				m.write(t, s)
				if r := m.do(t, "run", "--detach", "a"); r.status != 0 {
					t.Fatalf("status %d: %s", r.status, r.err)
				}
				a.Ready(t)
				for a.More(seizertest.Rounds(), seizertest.Tried) {
					m.must(t, "exec", "--env", seizertest.Env+"=", "a", "/bin/true")
				}
				a.Check(t, caps)
				m.must(t, "delete", "--force", "a")
				m.gone(t, "a")
			})
		}
	})
}

// TestNobodySeesAStartThatIsNotInsideYet: nor does one in a pid namespace that another container is
// started in.
func TestNobodySeesAStartThatIsNotInsideYet(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		own := m.cgroup
		for name, caps := range map[string][]string{"CAP_SYS_PTRACE": seizertest.Ptrace(), "no capability": {}} {
			t.Run(name, func(t *testing.T) {
				m.cgroup = fmt.Sprintf("%s/%d/attacker", own, len(caps))
				s := m.spec("")
				a := seizertest.Prepare(t, s, caps)
				m.write(t, s)
				if r := m.do(t, "run", "--detach", "a"); r.status != 0 {
					t.Fatalf("status %d: %s", r.status, r.err)
				}
				a.Ready(t)
				m.cgroup = fmt.Sprintf("%s/%d/other", own, len(caps))
				other := m.spec("exit 7")
				other.Process.Capabilities = &specs.LinuxCapabilities{}
				at := slices.IndexFunc(other.Linux.Namespaces, func(ns specs.LinuxNamespace) bool { return ns.Type == specs.PIDNamespace })
				other.Linux.Namespaces[at].Path = fmt.Sprintf("/proc/%d/ns/pid", m.state(t, "a").Pid)
				m.write(t, other)
				for a.More(seizertest.Rounds(), seizertest.Tried) {
					if r := m.do(t, "run", fmt.Sprint("b", a.Round())); r.status != 7 {
						t.Fatalf("status %d: %s", r.status, r.err)
					}
				}
				a.Check(t, caps)
				m.must(t, "delete", "--force", "a")
				m.gone(t, "a")
			})
		}
	})
}
