package mesos

import (
	"testing"

	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestMountsOntoLinksThatLeadNowhere: a container's volumes follow the table of an image's links
// without targets.
func TestMountsOntoLinksThatLeadNowhere(t *testing.T) {
	withNode(t, func(t *testing.T, n *nodetest.Node, c *client, _ string) {
		image, dir := nodetest.DanglingImage(t)
		launch := func(name string, list []beneathtest.Dangling, script string) (int, string) {
			info := withImage(image)
			var volumes []object
			for _, d := range list {
				volumes = append(volumes, object{"mode": "RO", "container_path": d.Mount, "host_path": d.Source(dir)})
			}
			info["volumes"] = volumes
			return c.call("LAUNCH_CONTAINER", object{"container_id": id(name), "command": shell(script), "container": info})
		}
		list, script, want := beneathtest.DanglingMounts()
		if code, text := launch("all", list, script); code != 200 {
			t.Fatalf("%d %q", code, text)
		}
		c.is("WAIT_CONTAINER", about(id("all")), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":0}}`)
		if out := c.file("all/stdout"); out != want {
			t.Errorf("%q, want %q", out, want)
		}
		c.is("REMOVE_CONTAINER", about(id("all")), 200, "")
		for _, d := range beneathtest.DanglingRefused() {
			if code, text := launch("refused", []beneathtest.Dangling{d}, "true"); code < 400 {
				t.Errorf("%s was not refused: %d %q", d.Name, code, text)
			}
		}
		n.Check()
	})
}
