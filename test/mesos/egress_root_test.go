package mesos

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAnEgressListIsALabel of the container's network.
func TestAnEgressListIsALabel(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS + "[face.mesos]\nenabled = true\n"})
		ref, c := n.Busybox(t), newClient(t, n)
		for name, want := range map[string]string{"open": networktest.ReachedAll, "listed": networktest.ReachedList} {
			info, network := withImage(ref), object{}
			if name == "listed" {
				network["labels"] = object{"labels": []object{{"key": core.EgressLabel, "value": networktest.ReachList}}}
			}
			info["network_infos"] = []object{network}
			c.is("LAUNCH_CONTAINER", object{"container_id": id(name), "command": shell(networktest.ReachScript), "container": info}, 200, "")
			c.is("WAIT_CONTAINER", about(id(name)), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
			if got := c.file(name + "/stdout"); got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
			c.is("REMOVE_CONTAINER", about(id(name)), 200, "")
		}
		n.Check()
	})
}
