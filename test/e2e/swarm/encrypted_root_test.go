package swarm

import (
	"fmt"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// vault is a stack of a service on each node, on an encrypted network alone.
func (x *mixed) vault() string {
	return fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %s
%s    networks: [sealed]
    deploy: {mode: global}
networks:
  sealed: {driver: overlay, driver_opts: {encrypted: ""}}
`, x.ref, served)
}

// TestAnEncryptedStackBesideDockerds: tasks of dockerd's and ours on an encrypted network reach each
// other by address and by name, and nothing is in clear between the nodes. Our agent is killed, and
// starts without the keys: all is as before. Losses meanwhile do not count: emulated, an agent may
// be away longer than other nodes wait.
func TestAnEncryptedStackBesideDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		needESP(t)
		x := newMixed(t, 1, 1)
		x.patient()
		w := watch(t, "to-ours0")
		x.deploy("vault", x.vault())
		run := x.settled(map[string]int{"vault_web": 2})
		x.agree("deployed", run, "vault_sealed")
		x.ours[0].node.Kill()
		x.ours[0].node.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return x.ours[0].session() == "up" })
		x.agree("the agent was killed", run, "vault_sealed")
		seen := w.counts()
		if seen["esp"] == 0 || seen["clear"] > 0 {
			t.Errorf("between the nodes were %v", seen)
		}
		t.Logf("between the nodes were %v", seen)
		x.docker("stack", "rm", "vault")
		x.ours[0].none()
		x.ours[0].node.Check()
		if out := nodetest.Lines(t, "ip", "-n", "ours0", "xfrm", "state"); len(out) > 0 {
			t.Errorf("left: %s", strings.Join(out, "\n"))
		}
	})
}
