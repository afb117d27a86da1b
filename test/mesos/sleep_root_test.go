package mesos

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAnIdleContainerSleeps by a label of the container's network. A call that ends it wakes it.
func TestAnIdleContainerSleeps(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\n"})
		c, a, info := newClient(t, n), id("a"), withImage(n.Busybox(t))
		label := func(after string) []object {
			return []object{{"labels": object{"labels": []object{{"key": core.SleepAfterLabel, "value": after}}}}}
		}
		info["network_infos"] = label("soon")
		if code, text := c.call("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("sleep 1000"), "container": info}); code != 400 {
			t.Errorf("no duration: %d %q", code, text)
		}
		info["network_infos"] = label("1s")
		c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("trap 'exit 3' TERM; sleep 1000 & wait"), "container": info}, 200, "")
		n.Bed(t).FallsAsleep("mesos")
		c.is("KILL_CONTAINER", object{"container_id": a, "signal": 15}, 200, "")
		c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":768}}`)
		c.is("REMOVE_CONTAINER", about(a), 200, "")
		n.Check()
	})
}
