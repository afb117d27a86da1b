package endings

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheEndOfTheParentIsToldRight: a container nested in one of Mesos ends with it, and each way
// to look names that end, not only Mesos.
func TestTheEndOfTheParentIsToldRight(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.mesos]\nenabled = true\n"})
		f := &mesosFace{n: n, image: image(t, n)}
		if !f.start(t, "parent", death{script: ":" + forever}) {
			t.Fatal("no parent")
		}
		child := object{"container_id": object{"value": "child", "parent": object{"value": "parent"}}}
		launch := object{"container_id": child["container_id"], "command": object{"shell": false, "value": "/bin/sleep", "arguments": []string{"sleep", "3600"}}}
		if code, text := f.call(t, "LAUNCH_NESTED_CONTAINER", launch); code != http.StatusOK {
			t.Fatalf("launch: %d %s", code, text)
		}
		f.stop(t, syscall.SIGTERM, 0)
		code, text := f.call(t, "WAIT_NESTED_CONTAINER", child)
		var resp struct {
			Wait struct {
				Status *int `json:"exit_status"`
			} `json:"wait_nested_container"`
		}
		if err := json.Unmarshal([]byte(text), &resp); err != nil || code != http.StatusOK || resp.Wait.Status == nil || *resp.Wait.Status != int(syscall.SIGKILL) {
			t.Errorf("wait: %d %s, %v", code, text, err)
		}
		out, err := n.CLI("ps", "-a", "--json", "--owner", "mesos")
		if err != nil {
			t.Fatal(err)
		}
		var list []container
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(x container) bool { return strings.HasSuffix(x.Key, "child") })
		if i < 0 || len(list) != 2 {
			t.Fatalf("ps: %s", out)
		}
		const want = "ended by SIGKILL, asked for by mesos the end of parent"
		if x := list[i]; x.Autopsy == nil || x.Autopsy.Verdict != want || x.Autopsy.Signal != int(syscall.SIGKILL) || x.Autopsy.Status != 137 {
			t.Errorf("ps: %s", out)
		}
		if out, err := n.CLI("why", list[i].ID); err != nil || !strings.Contains(out, want) {
			t.Errorf("why: %s, %v", out, err)
		}
		if said := exitEvent(t, n, list[i].ID); !strings.Contains(said, want) {
			t.Errorf("events: %s", said)
		}
		f.ended(t)
		f.remove(t)
		n.Check()
	})
}
