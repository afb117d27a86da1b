package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
)

// TestContainersWithTheNodesIDsAreListed by their names, with the reason of the container or else of its sandbox.
func TestContainersWithTheNodesIDsAreListed(t *testing.T) {
	sandbox := func(id core.ID, why string) core.Sandbox {
		return core.Sandbox{Meta: core.Meta{ID: id}, Config: core.SandboxConfig{Users: core.Users{UserNeeds: core.UserNeeds{Host: why}}}}
	}
	container := func(key core.Key, sb core.ID, why string) core.Container {
		return core.Container{Meta: core.Meta{ID: "c" + core.ID(key), Owner: core.OwnerCLI, Key: key}, Sandbox: sb, Config: core.ContainerConfig{Key: key, Users: core.UserNeeds{Host: why}}}
	}
	sandboxes := []core.Sandbox{sandbox("a", ""), sandbox("b", "it has the node's network")}
	f := nodeIDs("x", sandboxes, []core.Container{container("own", "a", ""), container("admin", "a", "it is privileged"), container("net", "b", "")})
	if f.Status != control.FindingOK || f.Detail != "2 of 3 containers have the node's ids: admin of cli: it is privileged; net of cli: it has the node's network" {
		t.Errorf("%+v", f)
	}
	if f := nodeIDs("x", sandboxes, []core.Container{container("own", "a", "")}); f.Detail != "1 of 1 containers are in one with ids of their own" {
		t.Errorf("%+v", f)
	}
}

// TestIDsOfUsersThatOverlap: the finding names the entry.
func TestIDsOfUsersThatOverlap(t *testing.T) {
	etc := t.TempDir()
	if f := sharedIDs("x", etc, 1000, 10); f != nil {
		t.Errorf("%+v", f)
	}
	if err := os.WriteFile(filepath.Join(etc, "subuid"), []byte("alice:1005:100\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := sharedIDs("x", etc, 1000, 10)
	if f == nil || f.Status != control.FindingWarn || !strings.Contains(f.Detail, "alice (subuid 1005 to 1104)") || !strings.Contains(f.Hint, "engine.userns_first_id") {
		t.Errorf("%+v", f)
	}
}
