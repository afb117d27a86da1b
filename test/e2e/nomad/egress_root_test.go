package nomad

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
)

// cniNetwork writes a CNI configuration, and returns the line of the block client that names it.
func cniNetwork(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "apart", "plugins": [{"type": "ptp", "ipMasq": false,
"ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.78.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}`, filepath.Join(dir, "leases"))
	if err := os.WriteFile(filepath.Join(dir, "apart.conflist"), []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("cni_config_dir = %q", dir)
}

const asks = `args = ["-c", "` + networktest.ReachScript + `; echo done; exec sleep 1000"]`

// grouped is a job with two tasks in a group's network; config is the second one's.
func grouped(name, mode, config string) string {
	network := fmt.Sprintf("\nnetwork {\n  mode = %q\n  dns {\n    servers = [%q]\n  }\n}\n", mode, networktest.WorldDNS)
	return job(name, "service", once+network+more("second", asks+"\n"+config), "", asks)
}

func (r *rig) skipWithoutBridge() {
	r.t.Helper()
	if r.node().Attributes["plugins.cni.version.bridge"] == "" {
		r.t.Skip("this Nomad finds no CNI plugins, which it makes the group's bridge with")
	}
}

// TestEgressListsOfGroups: a task with a list in a group's network, which Nomad's bridge or CNI plugins made, is refused by name.
func TestEgressListsOfGroups(t *testing.T) {
	start(t, options{client: cniNetwork(t), config: networktest.ReachDNS}, func(r *rig) {
		r.skipWithoutBridge()
		networktest.NewReachWorld(r.t)
		for _, mode := range []string{"bridge", "cni/apart"} {
			name := strings.ReplaceAll(mode, "/", "-")
			r.run(grouped(name+"-open", mode, ""))
			open := r.allocation(name+"-open", "running")
			for _, task := range []string{"main", "second"} {
				if out := r.loggedBy(open, task, "done"); out != networktest.ReachedAll+"done\n" {
					r.t.Errorf("%s, %s without a list: %q", mode, task, out)
				}
			}
			r.run(grouped(name+"-listed", mode, `egress = ["`+networktest.ReachList+`"]`))
			failed := r.allocation(name+"-listed", "failed")
			if why := failed.event("second", "Driver Failure").DisplayMessage; !strings.Contains(why, "a list needs a network of the sandbox's own") {
				r.t.Errorf("%s: the task with a list: %s", mode, failed.said("second"))
			}
			r.purge(name+"-open", name+"-listed")
		}
		r.nothingLeft()
	})
}

// TestGroupsUnderTheNodesList: a network that the agent makes for Nomad is under the node's list.
func TestGroupsUnderTheNodesList(t *testing.T) {
	listed := networktest.ReachDNS + "[egress.face.nomad]\ndefault = [\"" + networktest.ReachList + "\"]\n"
	start(t, options{plugin: "create_network = true", config: listed}, func(r *rig) {
		r.skipWithoutBridge()
		networktest.NewReachWorld(r.t)
		r.run(grouped("made", "bridge", ""))
		made := r.allocation("made", "running")
		for _, task := range []string{"main", "second"} {
			if out := r.loggedBy(made, task, "done"); out != networktest.ReachedList+"done\n" {
				r.t.Errorf("%s under the node's list: %q", task, out)
			}
		}
		r.purge("made")
		r.nothingLeft()
	})
}
