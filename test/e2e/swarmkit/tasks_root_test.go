package swarmkit

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gogotypes "github.com/gogo/protobuf/types"
	"github.com/moby/swarmkit/v2/api"

	"github.com/longshore/longshore/internal/roottest"
)

// serve is a program that serves the task's host name on port 80.
var serve = []string{"sh", "-c", "mkdir /www; hostname >/www/index.html; exec httpd -f -p 80 -h /www"}

// get returns the answer at a port of the node, "" for none.
func (r *rig) get(port uint32) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), roottest.Patience())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://10.99.0.1:%d/", port), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	return string(body)
}

// network is the id of a network that every Swarm has.
func (r *rig) network(name string) string {
	r.t.Helper()
	resp, err := r.ListNetworks(r.t.Context(), &api.ListNetworksRequest{Filters: &api.ListNetworksRequest_Filters{Names: []string{name}}})
	if err != nil || len(resp.Networks) != 1 {
		r.t.Fatalf("network %s: %v, %v", name, resp, err)
	}
	return resp.Networks[0].ID
}

// attached has a service's tasks on a network.
func attached(id string) func(*api.ServiceSpec, *api.ContainerSpec) {
	return func(s *api.ServiceSpec, _ *api.ContainerSpec) {
		s.Task.Networks = []*api.NetworkAttachmentConfig{{Target: id}}
	}
}

// TestNetworksAndPorts: tasks get the ports that are named and ports that the node chooses, and the
// nodes' own networks. Those on an overlay are rejected, as this manager gives it no addresses.
func TestNetworksAndPorts(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t, options{})
		port := func(published uint32) func(*api.ServiceSpec, *api.ContainerSpec) {
			return func(s *api.ServiceSpec, _ *api.ContainerSpec) {
				s.Endpoint = &api.EndpointSpec{Ports: []*api.PortConfig{{Protocol: api.ProtocolTCP, TargetPort: 80, PublishedPort: published, PublishMode: api.PublishModeHost}}}
			}
		}
		named := r.create("named", 1, port(8080), serve...)
		chosen := r.create("chosen", 3, port(0), serve...)
		answers := map[string]bool{}
		for _, task := range append(r.in(named, api.TaskStateRunning, 1), r.in(chosen, api.TaskStateRunning, 3)...) {
			told := task.Status.PortStatus.Ports
			if len(told) != 1 || told[0].TargetPort != 80 || told[0].PublishedPort == 0 || (told[0].PublishedPort == 8080) != (task.ServiceID == named) {
				t.Fatalf("the ports of task %s: %v", task.ID, told)
			}
			r.until("its port is served", func() bool { return r.get(told[0].PublishedPort) != "" })
			answers[r.get(told[0].PublishedPort)] = true
		}
		if len(answers) != 4 {
			t.Errorf("four tasks answer as %v", answers)
		}

		hosted := r.create("hosted", 1, attached(r.network("host")), "sh", "-c", "ls /sys/class/net; exec sleep 1000")
		bridged := r.create("bridged", 1, attached(r.network("bridge")), "sh", "-c", "ls /sys/class/net; exec sleep 1000")
		for id, has := range map[string]bool{hosted: true, bridged: false} {
			task := r.in(id, api.TaskStateRunning, 1)[0]
			r.until("it says which links it has", func() bool { return strings.Contains(r.said(task.ID), "lo") })
			if got := strings.Contains(r.said(task.ID), "swarm0"); got != has {
				t.Errorf("task of %s: the node's network is %v, want %v", task.ServiceAnnotations.Name, got, has)
			}
		}
		mesh, err := r.CreateNetwork(t.Context(), &api.CreateNetworkRequest{Spec: &api.NetworkSpec{Annotations: api.Annotations{Name: "mesh"}, DriverConfig: &api.Driver{Name: "overlay"}}})
		if err != nil {
			t.Fatal(err)
		}
		meshed := r.create("meshed", 1, attached(mesh.Network.ID), "sleep", "1000")
		r.until("its task is rejected", func() bool {
			return slices.ContainsFunc(r.tasks(meshed), func(task *api.Task) bool {
				return task.Status.State == api.TaskStateRejected && strings.Contains(task.Status.Err, "overlay network mesh")
			})
		})
		for _, id := range []string{named, chosen, hosted, bridged, meshed} {
			r.removeService(id)
		}
		r.none()
	})
}

// vendorFile describes two devices that every machine has.
const vendorFile = `cdiVersion: "0.5.0"
kind: "example.com/gpu"
devices:
- name: "zero"
  containerEdits:
    deviceNodes: [{path: /dev/gpu-zero, hostPath: /dev/zero, permissions: r}]
- name: "full"
  containerEdits:
    deviceNodes: [{path: /dev/gpu-full, hostPath: /dev/full, permissions: rw}]
`

// TestMountsAndDevices: tasks get local volumes with options, a directory of the node, a secret
// that is a template, and devices, each in one task.
func TestMountsAndDevices(t *testing.T) {
	beside(t, func(t *testing.T) {
		vendors, theirs := t.TempDir(), t.TempDir()
		for name, text := range map[string]string{filepath.Join(vendors, "example.yaml"): vendorFile, filepath.Join(theirs, "file"): "of the node"} {
			if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := newRig(t, options{engine: fmt.Sprintf("cdi_dirs = [%q]", vendors), face: `generic_resources = { gpu = ["example.com/gpu=zero", "example.com/gpu=full"] }`})
		secret, err := r.CreateSecret(t.Context(), &api.CreateSecretRequest{Spec: &api.SecretSpec{
			Annotations: api.Annotations{Name: "login"}, Data: []byte(`{{env "USER"}} of {{.Service.Name}}`), Templating: &api.Driver{Name: "golang"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		volume := func(source, target string, options map[string]string) api.Mount {
			return api.Mount{Type: api.MountTypeVolume, Source: source, Target: target, VolumeOptions: &api.Mount_VolumeOptions{NoCopy: true, DriverConfig: &api.Driver{Name: "local", Options: options}}}
		}
		gpu := func(s *api.ServiceSpec, c *api.ContainerSpec) {
			c.Env = []string{"USER=u{{.Task.Slot}}"}
			c.Secrets = []*api.SecretReference{{SecretID: secret.Secret.ID, SecretName: "login", Target: &api.SecretReference_File{File: &api.FileTarget{Name: "login", UID: "0", GID: "0", Mode: 0o400}}}}
			c.Mounts = []api.Mount{
				volume("mem", "/mem", map[string]string{"type": "tmpfs", "device": "tmpfs", "o": "size=1m,uid=7"}),
				volume("dir", "/dir", map[string]string{"type": "none", "device": theirs, "o": "bind"}),
				{Type: api.MountTypeBind, Source: theirs, Target: "/ro", ReadOnly: true},
				{Type: api.MountTypeTmpfs, Target: "/scratch", TmpfsOptions: &api.Mount_TmpfsOptions{SizeBytes: 1 << 20}},
			}
			s.Task.Resources = &api.ResourceRequirements{Reservations: &api.Resources{Generic: []*api.GenericResource{{
				Resource: &api.GenericResource_DiscreteResourceSpec{DiscreteResourceSpec: &api.DiscreteGenericResource{Kind: "gpu", Value: 1}},
			}}}}
		}
		show := []string{"sh", "-c", "cat /run/secrets/login /dir/file /ro/file; echo; stat -f -c %T /mem; stat -c %u /mem; touch /ro/x || echo refused $DOCKER_RESOURCE_GPU $(ls /dev | grep gpu); exec sleep 1000"}
		one := r.create("one", 2, gpu, show...)
		var has []string
		for _, task := range r.in(one, api.TaskStateRunning, 2) {
			r.until("it says what it has", func() bool { return strings.Contains(r.said(task.ID), "refused") })
			out := r.said(task.ID)
			if want := fmt.Sprintf("u%d of oneof the nodeof the node\ntmpfs\n7\n", task.Slot); !strings.HasPrefix(out, want) {
				t.Errorf("task %s wrote %q, not %q", task.ID, out, want)
			}
			_, device, _ := strings.Cut(strings.TrimSpace(out), "refused ")
			has = append(has, device)
		}
		slices.Sort(has)
		if want := []string{"example.com/gpu=full gpu-full", "example.com/gpu=zero gpu-zero"}; !slices.Equal(has, want) {
			t.Errorf("the tasks have %q, want %q", has, want)
		}
		// Both are taken; the next task gets one that is released.
		other := r.create("other", 1, gpu, show...)
		r.until("it is pending", func() bool {
			l := r.tasks(other)
			return len(l) == 1 && l[0].Status.State == api.TaskStatePending && strings.Contains(l[0].Status.Err, "insufficient resources")
		})
		r.scale(one, 1)
		r.in(other, api.TaskStateRunning, 1)
		r.removeService(one)
		r.removeService(other)
		r.none()
	})
}

// TestHealthAndOutput: a task runs once it is healthy, has failed when it is not and is replaced,
// and its output is followed through all of it.
func TestHealthAndOutput(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t, options{})
		web := r.create("web", 1, func(s *api.ServiceSpec, c *api.ContainerSpec) {
			c.Healthcheck = &api.HealthConfig{Test: []string{"CMD-SHELL", "test ! -e /spoilt || { echo it is spoilt; exit 1; }"}, Interval: gogotypes.DurationProto(50 * time.Millisecond), Retries: 3}
			s.Task.Restart = &api.RestartPolicy{Condition: api.RestartOnAny, Delay: gogotypes.DurationProto(0)}
		}, "sh", "-c", "echo begun; trap 'echo ended; exit 0' TERM; while :; do sleep 1000 & wait; done")
		first := r.in(web, api.TaskStateRunning, 1)[0]
		ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
		defer cancel()
		stream, err := r.logs.SubscribeLogs(ctx, &api.SubscribeLogsRequest{Selector: &api.LogSelector{ServiceIDs: []string{web}}, Options: &api.LogSubscriptionOptions{Follow: true}})
		if err != nil {
			t.Fatal(err)
		}
		var lines []api.LogMessage
		until := func(text, ofTask string) {
			t.Helper()
			for {
				resp, err := stream.Recv()
				if err != nil {
					t.Fatalf("never %q of task %s: %v, after %v", text, ofTask, err, lines)
				}
				lines = append(lines, resp.Messages...)
				if slices.ContainsFunc(resp.Messages, func(m api.LogMessage) bool {
					return strings.TrimSpace(string(m.Data)) == text && m.Context.TaskID == ofTask && m.Context.NodeID == r.id
				}) {
					return
				}
			}
		}
		until("begun", first.ID)
		r.cli("exec", "--force", r.container(first.ID), "touch", "/spoilt")
		until("ended", first.ID)
		failed := r.in(web, api.TaskStateFailed, 1)[0]
		if failed.ID != first.ID || !strings.Contains(failed.Status.Err, "unhealthy container: it is spoilt") {
			t.Errorf("task %s failed: %s", failed.ID, failed.Status.Err)
		}
		until("begun", r.in(web, api.TaskStateRunning, 1)[0].ID)
		r.removeService(web)
		r.none()
	})
}

// TestANodeThatIsTakenOut of the Swarm while it works says so, and may leave and join again, as
// another node.
func TestANodeThatIsTakenOut(t *testing.T) {
	beside(t, func(t *testing.T) {
		r := newRig(t, options{})
		web := r.create("web", 2, nil, "sleep", "1000")
		r.in(web, api.TaskStateRunning, 2)
		before := r.id
		if _, err := r.RemoveNode(t.Context(), &api.RemoveNodeRequest{NodeID: before, Force: true}); err != nil {
			t.Fatal(err)
		}
		r.until("the node says that it is out", func() bool { return strings.Contains(r.cli("swarm", "status"), "was removed from swarm") })
		r.cli("swarm", "leave")
		r.none()
		if r.join(); r.id == before {
			t.Errorf("it is node %s again", before)
		}
		r.in(web, api.TaskStateRunning, 2)
		r.removeService(web)
		r.none()
	})
}
