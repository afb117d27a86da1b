package mesos

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/test/nodetest"
)

// granted launches programs by labels of the container's network.
func granted(t *testing.T, c *client, ref string) {
	a := id("a")
	labelled := func(document string) object {
		info := withImage(ref)
		info["network_infos"] = []object{{"labels": object{"labels": []object{{"key": core.GrantAnnotation, "value": document}}}}}
		return info
	}
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell(nodetest.GrantedScript), "container": labelled("{greeting: hello, name: !env MESOS_SANDBOX}")}, 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":2304}}`)
	if got := c.file("a/stdout"); got != "argument {\"greeting\":\"hello\",\"name\":\"/mnt/mesos/sandbox\"}\nroot /*\nline \n" {
		t.Errorf("stdout %q", got)
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell(nodetest.ExampleScript), "container": labelled(nodetest.Example(t))}, 200, "")
	nodetest.Eventually(t, "it says what it was given", func() bool { return c.file("a/stdout") == nodetest.ExampleSays+"given log\n" })
	c.is("KILL_CONTAINER", about(a), 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`) // this call's signal is KILL
	c.is("REMOVE_CONTAINER", about(a), 200, "")
	if code, text := c.call("LAUNCH_CONTAINER", object{"container_id": a, "command": shell("true"), "container": labelled("{x: !mount /etc}")}); code != 400 || !strings.Contains(text, "line 1, column 5: Unknown volume mount") {
		t.Errorf("%d %q", code, text)
	}
	c.is("LAUNCH_CONTAINER", object{"container_id": a, "command": shell(nodetest.GrantedScript), "container": withImage(ref)}, 200, "")
	c.is("WAIT_CONTAINER", about(a), 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":2304}}`)
	if got := c.file("a/stdout"); !strings.Contains(got, "argument \nroot /bin") {
		t.Errorf("an ordinary container: %q", got)
	}
	c.is("REMOVE_CONTAINER", about(a), 200, "")
}
