package swarm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// TestTheRootIsRotated: docker's command waits until each node has a certificate of the new root
// and trusts it. Tasks notice nothing, and the key is on the disk encrypted.
func TestTheRootIsRotated(t *testing.T) {
	beside(t, func(t *testing.T) {
		passphrase := filepath.Join(t.TempDir(), "passphrase")
		r := newRig(t, `key_passphrase_file = "`+passphrase+`"`)
		if out, err := r.node.CLI("swarm", "join", r.Address, "--token", r.Token); err == nil || !strings.Contains(err.Error(), passphrase) {
			t.Errorf("join without the passphrase: %s, %v", out, err)
		}
		if err := os.WriteFile(passphrase, []byte("planted words\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		id := r.join()
		r.create("web", r.ref, "--replicas", "2", "--", "sleep", "1000")
		r.running("web", 2)
		first := r.pids()
		before := r.docker("swarm", "ca")
		r.docker("swarm", "ca", "--rotate", "--quiet") // which returns when it is done
		after := r.docker("swarm", "ca")
		if before == after {
			t.Error("the root is the same")
		}
		if got := r.docker("node", "inspect", "--format", "{{.Description.TLSInfo.TrustRoot}}", id); strings.TrimSpace(got) != strings.TrimSpace(after) {
			t.Errorf("the node trusts %s, not %s", got, after)
		}
		r.node.Kill()
		r.node.Up()
		roottest.Eventually(t, "the agent has a session again", func() bool { return r.session() == "up" && r.nodeState(id) == "ready" })
		if now := r.pids(); !same(first, now) {
			t.Errorf("the rotation was noticed: %v, then %v", first, now)
		}
		data, err := os.ReadFile(filepath.Join(r.node.Root, "swarm", "identity.json"))
		if err != nil || !strings.Contains(string(data), "ENCRYPTED PRIVATE KEY") || strings.Contains(string(data), "BEGIN PRIVATE") {
			t.Errorf("the key on the disk: %v", err)
		}
		if out, err := r.node.CLI("swarm", "join", r.Address, "--token", r.Token); err == nil || !strings.Contains(err.Error(), "leave that first") {
			t.Errorf("a second join: %s, %v", out, err)
		}
		r.cli("swarm", "leave")
		if out, err := r.node.CLI("swarm", "join", r.Address, "--token", r.Token); err == nil || !strings.Contains(err.Error(), "of another swarm than the token") {
			t.Errorf("with the token of the root before: %s, %v", out, err)
		}
		r.Token = r.docker("swarm", "join-token", "-q", "worker")
		if next := r.join(); next == id {
			t.Errorf("it is the node that has left: %s", next)
		}
		r.docker("service", "rm", "web")
		r.node.Check()
	})
}
