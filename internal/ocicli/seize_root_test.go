package ocicli_test

import (
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/seizertest"
)

// TestNobodySeesAnExecThatIsNotInsideYet: who is in a container finds nothing of
// the host's in an exec of this command line on its way in.
func TestNobodySeesAnExecThatIsNotInsideYet(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		m := newMachine(t)
		for name, caps := range map[string][]string{"CAP_SYS_PTRACE": seizertest.Ptrace(), "no capability": {}} {
			t.Run(name, func(t *testing.T) {
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
