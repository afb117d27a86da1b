package mesos

import (
	"fmt"
	"strings"
	"testing"
)

// TestPoliciesAreAskedAboutSessions: a session in a container is a further process of
// it.
func TestPoliciesAreAskedAboutSessions(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("dbg", echo)
	n.is(launchA, 200, "")
	for _, err := range n.RefusesExecs(func() error {
		code, text := n.post(sessionS)
		if code == 200 {
			return nil
		}
		return fmt.Errorf("%d %s", code, text)
	}) {
		if !strings.HasPrefix(fmt.Sprint(err), "400 ") || !strings.Contains(err.Error(), "policy: not here") {
			t.Errorf("answered %v", err)
		}
	}
	o := n.stream(sessionS) // its name is free
	o.has("hello")
	o.cancel()
}
