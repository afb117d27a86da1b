package swarm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// vendorFile describes two devices that every machine has.
const vendorFile = `cdiVersion: "0.5.0"
kind: "example.com/gpu"
devices:
- name: "zero"
  containerEdits:
    env: ["CARD=zero"]
    deviceNodes: [{path: /dev/gpu-zero, hostPath: /dev/zero, permissions: r}]
- name: "full"
  containerEdits:
    env: ["CARD=full"]
    deviceNodes: [{path: /dev/gpu-full, hostPath: /dev/full, permissions: rw}]
`

// TestGenericResourcesAreDevices: a service that asks for a GPU gets the assigned one, and no other
// service gets it.
func TestGenericResourcesAreDevices(t *testing.T) {
	beside(t, func(t *testing.T) {
		vendors := t.TempDir()
		if err := os.WriteFile(filepath.Join(vendors, "example.yaml"), []byte(vendorFile), 0o600); err != nil {
			t.Fatal(err)
		}
		r := newRigWith(t, fmt.Sprintf("cdi_dirs = [%q]\n", vendors)+`[face.swarm]
enabled = true
cpus = 3.0
memory_bytes = 536870912
labels = { disk = "ssd" }
generic_resources = { gpu = ["example.com/gpu=zero", "example.com/gpu=full"] }
generic_counts = { seats = 3 }
`)
		id := r.join()
		if got := r.docker("node", "inspect", "--format", "{{.Description.Resources.NanoCPUs}} {{.Description.Resources.MemoryBytes}} {{.Description.Engine.Labels.disk}}", id); got != "3000000000 536870912 ssd" {
			t.Errorf("the node's description: %s", got)
		}
		if got := r.docker("node", "inspect", "--format", "{{range .Description.Resources.GenericResources}}{{with .NamedResourceSpec}}{{.Kind}} {{.Value}},{{end}}{{with .DiscreteResourceSpec}}{{.Kind}} {{.Value}},{{end}}{{end}}", id); got != "gpu example.com/gpu=zero,gpu example.com/gpu=full,seats 3," {
			t.Errorf("the node's devices: %s", got)
		}
		r.docker("node", "update", "--label-add", "row=7", id)
		show := []string{"--", "sh", "-c", "echo $CARD $DOCKER_RESOURCE_GPU $(ls /dev | grep gpu); exec sleep 1000"}
		r.create("one", r.ref, append([]string{"--replicas", "2", "--generic-resource", "gpu=1", "--constraint", "engine.labels.disk==ssd", "--constraint", "node.labels.row==7"}, show...)...)
		var said []string
		for _, task := range r.running("one", 2) {
			roottest.Eventually(t, task.Name+" says what it has", func() bool { return r.logs(task.ID) != "" })
			said = append(said, strings.TrimSpace(r.logs(task.ID)))
		}
		slices.Sort(said)
		if len(said) != 2 || !strings.HasSuffix(said[0], "full example.com/gpu=full gpu-full") || !strings.HasSuffix(said[1], "zero example.com/gpu=zero gpu-zero") {
			t.Errorf("the tasks have %q", said)
		}
		// Both are taken; a task that asks for none has none.
		r.create("other", r.ref, append([]string{"--generic-resource", "gpu=1"}, show...)...)
		if l := r.eventually("other", "it is pending", func(l []psTask) bool { return in(l, "Pending") == 1 && l[0].Error != "" }); !strings.Contains(l[0].Error, "insufficient resources") {
			t.Errorf("a third one: %q", l[0].Error)
		}
		r.create("none", r.ref, show...)
		task := r.running("none", 1)[0]
		roottest.Eventually(t, "it says what it has", func() bool { return r.logs(task.ID) != "" })
		if out := r.logs(task.ID); strings.Contains(out, "gpu") {
			t.Errorf("who asked for none has %q", out)
		}
		// A resource without devices is a number, up to the node's count.
		r.create("counted", r.ref, "--generic-resource", "seats=2", "--", "sh", "-c", "echo seats $DOCKER_RESOURCE_SEATS; exec sleep 1000")
		task = r.running("counted", 1)[0]
		roottest.Eventually(t, "it says how many it has", func() bool { return strings.TrimSpace(r.logs(task.ID)) == "seats 2" })
		r.docker("service", "scale", "--detach", "counted=2")
		r.eventually("counted", "another is pending", func(l []psTask) bool { return in(l, "Pending") == 1 })
		r.docker("service", "rm", "counted")
		// The next task gets a released device, and an update its predecessor's.
		r.docker("service", "scale", "--detach", "one=1")
		r.running("other", 1)
		r.docker("service", "update", "--detach", "--env-add", "A=b", "other")
		r.eventually("other", "another task has the device", func(l []psTask) bool {
			return in(l, "Running") == 1 && in(l, "Shutdown") == 1 && strings.Contains(r.logs(l[0].ID), "example.com/gpu=")
		})
		for _, name := range []string{"one", "other", "none"} {
			r.docker("service", "rm", name)
		}
		r.none()
		r.node.Check()

		// config check finds an error before the agent starts with it.
		bad := filepath.Join(t.TempDir(), "bad.toml")
		if err := os.WriteFile(bad, []byte("[face.swarm]\ngeneric_resources = { gpu = [\"nvidia0\"] }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := r.node.CLI("config", "check", "--config", bad); err == nil || !strings.Contains(err.Error(), "nvidia0") {
			t.Errorf("config check: %v", err)
		}
	})
}

// TestIngressOnOneNode: with face.swarm.ingress the node takes services with ports of the whole
// swarm and publishes them by itself, and refuses other overlays by their name.
func TestIngressOnOneNode(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t, `ingress = "host"`)
		r.join()
		serve := []string{"--", "sh", "-c", "mkdir /www; echo served >/www/index.html; exec httpd -f -p 80 -h /www"}
		r.create("web", r.ref, append([]string{"--publish", "8080:80"}, serve...)...)
		first := r.running("web", 1)[0]
		url := "http://10.99.0.1:8080/"
		roottest.Eventually(t, "the port is served", func() bool { return get(t, url) == "served\n" })
		r.docker("service", "update", "--detach", "--env-add", "B=c", "web")
		r.eventually("web", "another task has the port", func(l []psTask) bool {
			return in(l, "Running") == 1 && in(l, "Rejected") == 0 && get(t, url) == "served\n" &&
				slices.ContainsFunc(l, func(p psTask) bool { return p.ID != first.ID && strings.HasPrefix(p.CurrentState, "Running") })
		})
		// The node has the port once.
		r.docker("service", "scale", "--detach", "web=2")
		r.eventually("web", "the second one is rejected", func(l []psTask) bool {
			return in(l, "Running") == 1 && slices.ContainsFunc(l, func(p psTask) bool {
				return strings.HasPrefix(p.CurrentState, "Rejected") && strings.Contains(p.Error, "8080")
			})
		})

		r.docker("network", "create", "--driver", "overlay", "mesh")
		r.create("meshed", r.ref, "--network", "mesh", "--restart-condition", "none", "--", "sleep", "1000")
		if l := r.eventually("meshed", "it is rejected", func(l []psTask) bool { return in(l, "Rejected") == 1 }); !strings.Contains(l[0].Error, "overlay network mesh") {
			t.Errorf("on an overlay: %q", l[0].Error)
		}
		for _, name := range []string{"web", "meshed"} {
			r.docker("service", "rm", name)
		}
		r.none()
		r.node.Check()
	})
}
