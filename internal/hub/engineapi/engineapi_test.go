package engineapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/api/types/system"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/conformancetest"
	"github.com/longshore/longshore/internal/hub/inventory"
)

const web = `{"Name": "web", "Labels": {"tier": "front"}, "TaskTemplate": {"ContainerSpec": {"Image": "a.example/web:1", "Env": ["A=1"]}}, "Mode": {"Replicated": {"Replicas": 2}}}`

var auth = base64.URLEncoding.EncodeToString([]byte(`{"username": "u", "password": "planted-password"}`))

// create makes the service web and returns it.
func (d *door) create() swarm.Service {
	d.t.Helper()
	var made swarm.ServiceCreateResponse
	d.must(201, "POST", "/v1.41/services/create", web, &made, "X-Registry-Auth", auth)
	return d.inspect(made.ID)
}

func (d *door) inspect(id string) (s swarm.Service) {
	d.t.Helper()
	d.must(200, "GET", "/v1.41/services/"+id, "", &s)
	return s
}

// change posts a service's spec after change, with the version that it was read at.
func (d *door) change(s swarm.Service, query string, change func(*swarm.ServiceSpec)) {
	d.t.Helper()
	if change != nil {
		change(&s.Spec)
	}
	data, err := json.Marshal(s.Spec)
	if err != nil {
		d.t.Fatal(err)
	}
	d.must(200, "POST", fmt.Sprintf("/v1.41/services/%s/update?version=%d%s", s.ID, s.Version.Index, query), string(data), nil)
}

// shown returns a service's registry credentials.
func (d *door) shown(id string) string {
	return d.Services()[id].M.GetSpec().GetTask().GetContainer().GetPullOptions().GetRegistryAuth()
}

func TestTheLifeOfAService(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	s := d.create()
	if s.Spec.Name != "web" || s.Spec.TaskTemplate.ContainerSpec.Image != "a.example/web:1" || *s.Spec.Mode.Replicated.Replicas != 2 || s.PreviousSpec != nil || d.shown(s.ID) != auth {
		t.Errorf("created: %+v", s)
	}
	two := uint64(5)
	d.change(s, "", func(spec *swarm.ServiceSpec) { spec.Mode.Replicated.Replicas = &two })
	scaled := d.inspect("web")
	if *scaled.Spec.Mode.Replicated.Replicas != 5 || scaled.Version.Index <= s.Version.Index || d.Services()[s.ID].M.GetSpecVersion().GetIndex() != 1 {
		t.Errorf("scaled, which replaces no task: %+v", scaled)
	}
	d.change(scaled, "", func(spec *swarm.ServiceSpec) { spec.TaskTemplate.ContainerSpec.Image = "a.example/web:2" })
	updated := d.inspect(s.ID[:8])
	if updated.Spec.TaskTemplate.ContainerSpec.Image != "a.example/web:2" || updated.PreviousSpec.TaskTemplate.ContainerSpec.Image != "a.example/web:1" || d.shown(s.ID) != auth {
		t.Errorf("updated: %+v, shown %q", updated, d.shown(s.ID))
	}
	version := d.Services()[s.ID].M.GetSpecVersion().GetIndex()
	d.change(updated, "&rollback=previous", nil)
	back := d.inspect("web")
	if back.Spec.TaskTemplate.ContainerSpec.Image != "a.example/web:1" || back.UpdateStatus.State != swarm.UpdateStateRollbackStarted || d.Services()[s.ID].M.GetSpecVersion().GetIndex() >= version {
		t.Errorf("rolled back: %+v", back)
	}
	d.change(back, "&registryAuthFrom=previous-spec", func(spec *swarm.ServiceSpec) { spec.Labels["tier"] = "back" })
	if d.shown(s.ID) != auth {
		t.Error("what the registry is shown has not come from the spec before")
	}
	for _, path := range []string{"/services", "/services/web"} {
		if text := d.must(200, "GET", path, "", nil); strings.Contains(text, auth[:20]) || strings.Contains(text, "planted") {
			t.Errorf("%s has what only a registry is shown: %s", path, text)
		}
	}
	d.must(200, "DELETE", "/v1.41/services/web", "", nil)
	d.must(404, "GET", "/v1.41/services/web", "", nil)
	d.must(404, "DELETE", "/v1.41/services/"+s.ID, "", nil)
}

// TestAnUpdateOutOfSequence: an update from before the last change is refused.
func TestAnUpdateOutOfSequence(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	s := d.create()
	d.change(s, "", func(spec *swarm.ServiceSpec) { spec.TaskTemplate.ContainerSpec.Image = "a.example/web:2" })
	for _, query := range []string{"", "&rollback=previous"} {
		if text := d.must(409, "POST", fmt.Sprintf("/v1.41/services/web/update?version=%d%s", s.Version.Index, query), web, nil); !strings.Contains(text, "update out of sequence") {
			t.Error(text)
		}
	}
	// Someone else is faster between the reading and the writing.
	now := d.inspect("web")
	d.before = func() { d.change(now, "", func(spec *swarm.ServiceSpec) { spec.Labels["by"] = "other" }) }
	d.must(409, "POST", fmt.Sprintf("/v1.41/services/web/update?version=%d", now.Version.Index), web, nil)
	if got := d.inspect("web").Spec.Labels["by"]; got != "other" {
		t.Errorf("the faster change is gone: %q", got)
	}
	d.before = func() { d.must(201, "POST", "/secrets/create", `{"Name": "a", "Data": "AA=="}`, nil) }
	d.must(201, "POST", "/services/create", strings.Replace(web, "web", "other", 1), nil)
	d.before = func() { d.must(201, "POST", "/services/create", strings.Replace(web, "web", "third", 1), nil) }
	d.must(409, "POST", "/services/create", strings.Replace(web, "web", "third", 1), nil)
}

// names lists the names in a path's list, with filters in the form of docker's current command
// line, and of earlier ones.
func names(d *door, at string, filters map[string][]string) string {
	d.t.Helper()
	now := map[string]map[string]bool{}
	for k, values := range filters {
		now[k] = map[string]bool{}
		for _, v := range values {
			now[k][v] = true
		}
	}
	var forms []string
	for _, f := range []any{now, filters} {
		data, err := json.Marshal(f)
		if err != nil {
			d.t.Fatal(err)
		}
		var list []struct {
			ID, ServiceID string
			Spec          struct{ Name string }
		}
		r, _ := http.NewRequestWithContext(d.t.Context(), http.MethodGet, at, nil)
		q := r.URL.Query()
		q.Set("filters", string(data))
		d.must(200, "GET", at+"?"+q.Encode(), "", &list)
		var all []string
		for _, o := range list {
			name := o.Spec.Name
			if name == "" {
				name = o.ID
			}
			all = append(all, name)
		}
		slices.Sort(all)
		forms = append(forms, strings.Join(all, " "))
	}
	if forms[0] != forms[1] {
		d.t.Errorf("%s %v: the two forms of filters differ: %q", at, filters, forms)
	}
	return forms[0]
}

// task is a task's record.
func task(id, service, node string, desired, state swarmv1.TaskState, version uint64) inventory.Task {
	t := inventory.Task{}
	t.Rev = 3
	t.M = &swarmv1.Task{
		Id: id, ServiceId: service, NodeId: node, Slot: 1, DesiredState: desired, SpecVersion: &swarmv1.Version{Index: version},
		ServiceAnnotations: &swarmv1.Annotations{Name: "web", Labels: map[string]string{"tier": "front"}}, Spec: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{Image: "a"}}},
	}
	t.Status.M = &swarmv1.TaskStatus{State: state, Message: "so it is", RuntimeStatus: &swarmv1.TaskStatus_Container{Container: &swarmv1.ContainerStatus{ContainerId: "c", ExitCode: 3}}}
	return t
}

func TestLists(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	s := d.create()
	d.must(201, "POST", "/services/create", `{"Name": "agent", "TaskTemplate": {"ContainerSpec": {"Image": "b"}}, "Mode": {"Global": {}}}`, nil)
	agent := d.inspect("agent")
	d.tasks["old"] = task("old", s.ID, "node1", swarmv1.TaskState_SHUTDOWN, swarmv1.TaskState_FAILED, 0)
	d.tasks["new"] = task("new", s.ID, "node2", swarmv1.TaskState_RUNNING, swarmv1.TaskState_RUNNING, 1)
	d.tasks["every"] = task("every", agent.ID, "node1", swarmv1.TaskState_RUNNING, swarmv1.TaskState_PREPARING, 1)
	d.tasks["ended"] = task("ended", s.ID, "node1", swarmv1.TaskState_RUNNING, swarmv1.TaskState_FAILED, 1)
	for _, c := range []struct {
		path    string
		filters map[string][]string
		want    string
	}{
		{"/services", nil, "agent web"},
		{"/services", map[string][]string{"name": {"we"}}, "web"},
		{"/services", map[string][]string{"id": {s.ID[:5]}}, "web"},
		{"/services", map[string][]string{"label": {"tier=front"}}, "web"},
		{"/services", map[string][]string{"label": {"tier=back"}}, ""},
		{"/services", map[string][]string{"label": {"tier"}, "mode": {"replicated"}}, "web"},
		{"/services", map[string][]string{"mode": {"global"}, "runtime": {"container"}}, "agent"},
		{"/tasks", nil, "ended every new old"},
		{"/tasks", map[string][]string{"service": {"web"}}, "ended new old"},
		{"/tasks", map[string][]string{"service": {"nothing"}}, ""},
		{"/tasks", map[string][]string{"service": {s.ID}, "_up-to-date": {"true"}}, "ended new"},
		{"/tasks", map[string][]string{"service": {"web"}, "desired-state": {"shutdown"}}, "ended old"},
		{"/tasks", map[string][]string{"service": {"web"}, "desired-state": {"running"}}, "new"},
		{"/tasks", map[string][]string{"node": {"host-node1"}}, "ended every old"},
		{"/tasks", map[string][]string{"node": {"self"}}, ""},
		{"/tasks", map[string][]string{"label": {"tier=front"}, "id": {"ev"}}, "every"},
		{"/nodes", nil, "node1 node2 thehub"},
		{"/nodes", map[string][]string{"role": {"manager"}}, "thehub"},
		{"/nodes", map[string][]string{"name": {"host-"}, "membership": {"accepted"}}, "node1 node2"},
		{"/nodes", map[string][]string{"node.label": {"site=node2"}}, "node2"},
		{"/nodes", map[string][]string{"membership": {"pending"}}, ""},
	} {
		if got := names(d, c.path, c.filters); got != c.want {
			t.Errorf("%s %v: %q, want %q", c.path, c.filters, got, c.want)
		}
	}
	var list []swarm.Service
	d.must(200, "GET", "/v1.41/services?status=true", "", &list)
	for _, v := range list {
		want := swarm.ServiceStatus{RunningTasks: 1, DesiredTasks: 2}
		if v.Spec.Name == "agent" {
			want = swarm.ServiceStatus{DesiredTasks: 1}
		}
		if *v.ServiceStatus != want {
			t.Errorf("%s: %+v, want %+v", v.Spec.Name, *v.ServiceStatus, want)
		}
	}
	var one swarm.Task
	d.must(200, "GET", "/tasks/ol", "", &one)
	if one.Status.State != swarm.TaskStateFailed || one.Status.ContainerStatus.ExitCode != 3 || one.DesiredState != swarm.TaskStateShutdown {
		t.Errorf("a task: %+v", one)
	}
}

func TestSecretsAndConfigs(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	planted := base64.StdEncoding.EncodeToString([]byte("planted-secret"))
	for _, kind := range []string{"secret", "config"} {
		at := "/v1.41/" + kind + "s"
		var made struct{ ID string }
		d.must(201, "POST", at+"/create", `{"Name": "key", "Labels": {"a": "b"}, "Data": "`+planted+`"}`, &made)
		d.must(409, "POST", at+"/create", `{"Name": "key", "Data": "`+planted+`"}`, nil)
		var is swarm.Config
		text := d.must(200, "GET", at+"/key", "", &is)
		if is.ID != made.ID || is.Spec.Name != "key" || strings.Contains(text, planted) != (kind == "config") {
			t.Errorf("%s: %s", kind, text)
		}
		if got := names(d, at, map[string][]string{"names": {"key"}, "label": {"a=b"}}) + names(d, at, map[string][]string{"names": {"ke"}}); got != "key" {
			t.Errorf("%ss: %q", kind, got)
		}
		update := fmt.Sprintf("%s/%s/update?version=%d", at, made.ID, is.Version.Index)
		d.must(400, "POST", update, `{"Name": "key", "Data": "AAAA"}`, nil)
		d.must(400, "POST", update, `{"Name": "other"}`, nil)
		d.must(200, "POST", update, `{"Name": "key", "Labels": {"a": "c"}, "Data": "`+planted+`"}`, nil)
		d.must(409, "POST", update, `{"Name": "key"}`, nil)
		if got := names(d, at, map[string][]string{"label": {"a=c"}}); got != "key" {
			t.Errorf("%s with another label: %q", kind, got)
		}
		upper := strings.ToUpper(kind[:1]) + kind[1:]
		spec := fmt.Sprintf(`{"Name": "of-%s", "TaskTemplate": {"ContainerSpec": {"Image": "a", "%ss": [{"%sID": %q, "%sName": "key", "File": {"Name": "k", "UID": "0", "GID": "0", "Mode": 292}}]}}}`, kind, upper, upper, made.ID, upper)
		d.must(201, "POST", "/services/create", spec, nil)
		if text := d.must(400, "DELETE", at+"/key", "", nil); !strings.Contains(text, "is in use by the following services: of-"+kind) {
			t.Error(text)
		}
		d.must(200, "DELETE", "/services/of-"+kind, "", nil)
		d.must(204, "DELETE", at+"/key", "", nil)
		d.must(404, "GET", at+"/key", "", nil)
		if text := d.must(400, "POST", "/services/create", spec, nil); !strings.Contains(text, "there is no "+kind) {
			t.Error(text)
		}
	}
}

func TestNodes(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	var n swarm.Node
	d.must(200, "GET", "/nodes/host-node1", "", &n)
	if n.ID != "node1" || n.Spec.Role != swarm.NodeRoleWorker || n.Status.State != swarm.NodeStateReady || n.Status.Addr != "192.0.2.1" || n.Version.Index != 7 {
		t.Errorf("a node: %+v", n)
	}
	d.must(200, "GET", "/nodes/self", "", &n)
	if n.ID != "thehub" || n.ManagerStatus.Addr != "hub.example:2377" {
		t.Errorf("the hub: %+v", n)
	}
	d.must(200, "POST", "/nodes/node1/update?version=7", `{"Labels": {"a": "b"}, "Role": "worker", "Availability": "drain"}`, nil)
	if spec := d.nodes["node1"].M.GetSpec(); spec.GetAvailability() != swarmv1.NodeSpec_DRAIN || !maps.Equal(spec.GetAnnotations().GetLabels(), map[string]string{"a": "b"}) || spec.GetMembership() != swarmv1.NodeSpec_ACCEPTED {
		t.Errorf("changed: %v", spec)
	}
	d.must(409, "POST", "/nodes/node1/update?version=7", `{"Role": "worker", "Availability": "active"}`, nil)
	d.must(412, "DELETE", "/nodes/node1", "", nil)
	d.must(200, "DELETE", "/nodes/node1?force=1", "", nil)
	d.must(200, "DELETE", "/nodes/node2", "", nil)
	d.must(412, "DELETE", "/nodes/self?force=1", "", nil)
	if got := names(d, "/nodes", nil); got != "thehub" {
		t.Errorf("nodes: %q", got)
	}
}

func TestTheFleetAsASwarm(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	var info system.Info
	d.must(200, "GET", "/v1.41/info", "", &info)
	if w := info.Swarm; w.LocalNodeState != swarm.LocalNodeStateActive || !w.ControlAvailable || w.Nodes != 3 || w.NodeID != "thehub" || w.Cluster.ID != "cluster" || info.ServerVersion != "1.2" {
		t.Errorf("info: %+v", info)
	}
	var v system.VersionResponse
	d.must(200, "GET", "/version", "", &v)
	if v.APIVersion != MaxVersion || v.MinAPIVersion != MinVersion {
		t.Errorf("version: %+v", v)
	}
	var s swarm.Swarm
	d.must(200, "GET", "/swarm", "", &s)
	if s.JoinTokens.Worker != "SWMTKN-1-worker" || strings.HasPrefix(s.JoinTokens.Manager, "SWMTKN") {
		t.Errorf("swarm: %+v", s)
	}
	spec, err := json.Marshal(s.Spec)
	if err != nil {
		t.Fatal(err)
	}
	d.must(200, "POST", "/swarm/update?version=1&rotateWorkerToken=true", string(spec), nil)
	d.must(400, "POST", "/swarm/update?version=1&rotateManagerToken=true", string(spec), nil)
	s.Spec.CAConfig.ForceRotate++
	if spec, err = json.Marshal(s.Spec); err != nil {
		t.Fatal(err)
	}
	d.must(200, "POST", "/swarm/update?version=1", string(spec), nil)
	if got := strings.Join(d.rotated, " "); got != "token root" {
		t.Errorf("rotated: %q", got)
	}
	var list []network.Summary
	d.must(200, "GET", `/networks?filters={"name":{"ho":true}}`, "", &list)
	if len(list) != 1 || list[0].ID != "host" || list[0].Scope != "swarm" {
		t.Errorf("networks: %+v", list)
	}
	d.must(200, "POST", "/networks/prune", "", nil)
	if text := d.must(200, "GET", "/_ping", "", nil); text != "OK" {
		t.Errorf("ping: %q", text)
	}
	w := d.must(200, "HEAD", "/_ping", "", nil)
	if w != "" {
		t.Errorf("HEAD ping: %q", w)
	}
}

// TestWhatIsRefused: each by its name, and nothing of it is stored.
func TestWhatIsRefused(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	service := func(spec string) string {
		return `{"Name": "x", ` + spec + `}`
	}
	image := `"TaskTemplate": {"ContainerSpec": {"Image": "a"}}`
	for _, c := range []struct {
		method, path, body string
		code               int
		text               string
	}{
		{"GET", "/v1.40/services", "", 400, "client version 1.40 is too old"},
		{"GET", "/v1.999/services", "", 400, "client version 1.999 is too new"},
		{"GET", "/v1x/services", "", 404, "page not found"},
		{"GET", "/nothing", "", 404, "page not found"},
		{"GET", "/containers/json", "", 501, "a hub runs no containers"},
		{"GET", "/v1.41/containers/web/json", "", 404, "No such container: web"},
		{"GET", "/v1.41/containers/web/logs", "", 501, "a hub runs no containers"},
		{"POST", "/v1.41/containers/web/json", "", 501, "a hub runs no containers"},
		{"GET", "/v1.41/images/json", "", 501, "a hub runs no containers"},
		{"GET", "/v1.41/images/a.example/b:1/json", "", 404, "No such image: a.example/b:1"},
		{"GET", "/v1.41/volumes", "", 501, "a hub runs no containers"},
		{"GET", "/v1.41/volumes/web", "", 404, "No such volume: web"},
		{"GET", "/v1.41/plugins/web/json", "", 404, "No such plugin: web"},
		{"GET", "/v1.41/events", "", 501, "a hub runs no containers"},
		{"GET", "/v1.41/system/df", "", 501, "a hub runs no containers"},
		{"GET", "/v1.41/distribution/a.example/b/c:1/json", "", 501, "does not query registries"},
		{"GET", "/v1.41/swarm/unlockkey", "", 501, "has no unlock key"},
		{"POST", "/v1.41/swarm/init", "{}", 501, "always the manager of its fleet"},
		{"POST", "/v1.41/swarm/leave", "", 501, "always the manager of its fleet"},
		{"POST", "/v1.41/swarm/update?version=1", `{"Name": "default", "Dispatcher": {"HeartbeatPeriod": 1}}`, 400, "flags of longshore-hub serve"},
		{"POST", "/v1.41/networks/create", `{"Name": "x_default", "Driver": "overlay"}`, 400, "network x_default: a hub makes no networks (driver overlay)"},
		{"DELETE", "/v1.41/networks/bridge", "", 400, "neither removed nor changed"},
		{"GET", "/v1.41/networks/mesh", "", 404, "network mesh not found"},
		{"POST", "/v1.41/nodes/node1/update?version=7", `{"Role": "manager", "Availability": "active"}`, 400, "cannot be a manager"},
		{"POST", "/v1.41/nodes/node1/update?version=7", `{"Role": "worker", "Availability": "asleep"}`, 400, `"asleep" is unknown`},
		{"POST", "/v1.41/nodes/node1/update?version=7", `{"Name": "n"}`, 400, "cannot be renamed"},
		{"POST", "/v1.41/nodes/node1/update?version=7", `{"Labels": {"` + strings.Repeat("a", 300) + `": ""}}`, 400, "the label"},
		{"POST", "/v1.41/nodes/self/update?version=1", `{"Role": "manager"}`, 412, "is the hub itself"},
		{"POST", "/v1.41/nodes/unknown/update?version=1", `{}`, 404, "node unknown not found"},
		{"POST", "/v1.41/nodes/node1/update", `{}`, 400, "invalid version"},
		{"POST", "/v1.41/services/create", "", 400, "no body"},
		{"POST", "/v1.41/services/create", "{", 400, "cannot be read"},
		{"POST", "/v1.41/services/create", web + web, 400, "more than one value"},
		{"POST", "/v1.41/services/create", strings.Repeat("[", 1<<20), 400, "cannot be read"},
		{"POST", "/v1.41/services/create", `"` + strings.Repeat("a", 5<<20) + `"`, 413, "too large"},
		{"POST", "/v1.41/services/create", service(image + `, "Surprise": 1`), 400, "Surprise"},
		{"POST", "/v1.41/services/create", `{"Name": "a/b", ` + image + `}`, 400, "the name of the service"},
		{"POST", "/v1.41/services/create", service(`"Mode": {"ReplicatedJob": {}}, ` + image), 400, "jobs are not possible"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {}`), 400, "ContainerSpec is missing"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {"PluginSpec": {}}`), 400, "plugins"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {"ContainerSpec": {}}`), 400, "no image"},
		{"POST", "/v1.41/services/create", service(`"EndpointSpec": {"Ports": [{"TargetPort": 80, "PublishedPort": 80}]}, ` + image), 400, "port 80 has the mode ingress"},
		{"POST", "/v1.41/services/create", service(`"Networks": [{"Target": "mesh"}], ` + image), 400, "network"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {"ContainerSpec": {"Image": "a"}, "Networks": [{"Target": "mesh"}]}`), 400, "network"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {"ContainerSpec": {"Image": "a", "Mounts": [{"Type": "cluster", "Target": "/a"}]}}`), 400, "cluster"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {"ContainerSpec": {"Image": "a", "Privileges": {"CredentialSpec": {"File": "x"}}}}`), 400, "credential spec"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {"ContainerSpec": {"Image": "a"}, "Placement": {"Preferences": [{"Spread": {"SpreadDescriptor": "node.labels.a"}}]}}`), 400, "placement preferences"},
		{"POST", "/v1.41/services/create", service(`"TaskTemplate": {"ContainerSpec": {"Image": "a"}, "Resources": {"Reservations": {"GenericResources": [{"DiscreteResourceSpec": {"Kind": "gpu", "Value": 1}}]}}}`), 400, "generic resources (gpu)"},
		{"POST", "/v1.41/services/unknown/update?version=1", web, 404, "service unknown not found"},
		{"POST", "/v1.41/secrets/create", `{"Name": "a"}`, 400, "has 0 bytes"},
		{"POST", "/v1.41/secrets/create", `{"Name": "a", "Data": "AA==", "Driver": {"Name": "vault"}}`, 400, "vault"},
		{"POST", "/v1.41/configs/create", `{"Name": "a", "Data": "` + strings.Repeat("AAAA", 200<<10) + `"}`, 400, "bytes"},
		{"GET", `/v1.41/services?filters={"surprise":["a"]}`, "", 400, "invalid filter"},
		{"GET", `/v1.41/services?filters=[]`, "", 400, "invalid filter"},
		{"GET", `/v1.41/tasks?filters={"desired-state":["asleep"]}`, "", 400, "invalid filter"},
		{"GET", "/v1.41/services/unknown/logs?stdout=1", "", 404, "service unknown not found"},
		{"GET", "/v1.41/tasks/unknown/logs?stdout=1", "", 404, "task unknown not found"},
	} {
		code, text := d.ask(c.method, c.path, c.body)
		var failed struct{ Message string }
		if err := json.Unmarshal([]byte(text), &failed); err != nil || code != c.code || !strings.Contains(failed.Message, c.text) || strings.Contains(failed.Message, "invalid argument") {
			t.Errorf("%s %s %.200s: %d %.300s, want %d with %q", c.method, c.path, c.body, code, text, c.code, c.text)
		}
	}
	for _, bad := range []string{"not base64 planted", base64.URLEncoding.EncodeToString([]byte("planted")), strings.Repeat("A", 100<<10)} {
		if text := d.must(400, "POST", "/services/create", web, nil, "X-Registry-Auth", bad); strings.Contains(text, "planted") {
			t.Errorf("the credentials are in the answer: %s", text)
		}
	}
	s := d.create()
	for text, change := range map[string]string{"renaming services": strings.Replace(web, "web", "other", 1), "service mode change": strings.Replace(web, `"Replicated": {"Replicas": 2}`, `"Global": {}`, 1)} {
		if got := d.must(400, "POST", fmt.Sprintf("/services/web/update?version=%d", s.Version.Index), change, nil); !strings.Contains(got, text) {
			t.Errorf("%s: %s", text, got)
		}
	}
	d.must(412, "POST", fmt.Sprintf("/services/web/update?rollback=previous&version=%d", s.Version.Index), "", nil)
	if len(d.Services()) != 1 || len(d.Secrets())+len(d.Configs()) != 0 || d.nodes["node1"].Rev != 7 {
		t.Errorf("something of what was refused is stored: %d services, %d secrets, %d configs", len(d.Services()), len(d.Secrets()), len(d.Configs()))
	}
}

// TestOutput: lines as docker's command line takes them apart.
func TestOutput(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	s := d.create()
	d.tasks["task"] = task("task", s.ID, "node1", swarmv1.TaskState_RUNNING, swarmv1.TaskState_RUNNING, 1)
	at := time.Date(2026, 11, 23, 1, 2, 3, 4, time.UTC)
	line := func(stream swarmv1.LogStream, data string) *swarmv1.LogMessage {
		return &swarmv1.LogMessage{
			Context: &swarmv1.LogContext{NodeId: "node1", ServiceId: "forged", TaskId: "task"}, Timestamp: timestamppb.New(at), Stream: stream, Data: []byte(data),
			Attrs: []*swarmv1.LogAttr{{Key: "k", Value: "a b"}, {Key: "com.docker.swarm.node.id", Value: "forged"}},
		}
	}
	var asked *swarmv1.LogSubscriptionOptions
	var of *swarmv1.LogSelector
	closed := 0
	d.server.Output = func(sel *swarmv1.LogSelector, o *swarmv1.LogSubscriptionOptions) Output {
		asked, of = o, sel
		messages, done := make(chan *swarmv1.LogMessage), make(chan struct{})
		go func() {
			messages <- line(swarmv1.LogStream_LOG_STREAM_STDOUT, "out\n")
			messages <- line(swarmv1.LogStream_LOG_STREAM_STDERR, "err, without an end")
			close(done)
		}()
		return Output{Messages: messages, Done: done, Missing: func() []string { return []string{"node2"} }, Close: func() { closed++ }}
	}
	d.handler = d.server.Handler()
	_, got := d.ask("GET", "/v1.41/services/web/logs?stdout=1&stderr=true&tail=5&since=1136073600.5&timestamps=1&details=1&follow=0", "")
	var out, errs bytes.Buffer
	_, err := stdcopy.StdCopy(&out, &errs, strings.NewReader(got+"\n"))
	details := "com.docker.swarm.node.id=node1,com.docker.swarm.service.id=" + s.ID + ",com.docker.swarm.task.id=task,k=a+b"
	if want := "2026-11-23T01:02:03.000000004Z " + details; out.String() != want+" out\n" || errs.String() != want+" err, without an end\n" {
		t.Errorf("out %q, err %q", out.String(), errs.String())
	}
	if err == nil || !strings.Contains(err.Error(), "not complete: node2") {
		t.Errorf("the missing node: %v", err)
	}
	if asked.GetTail() != -6 || asked.GetFollow() || asked.GetSince().AsTime() != time.Unix(1136073600, 5e8).UTC() || len(asked.GetStreams()) != 2 || strings.Join(of.GetServiceIds(), "") != s.ID || closed != 1 {
		t.Errorf("asked for %v of %v, closed %d", asked, of, closed)
	}
	_, got = d.ask("GET", "/v1.41/tasks/task/logs?stderr=1&tail=all&follow=1", "")
	out.Reset()
	errs.Reset()
	_, _ = stdcopy.StdCopy(&out, &errs, strings.NewReader(got+"\n"))
	if out.String() != "out\n" || asked.GetTail() != 0 || !asked.GetFollow() || strings.Join(of.GetTaskIds(), "") != "task" || len(asked.GetStreams()) != 1 {
		t.Errorf("of a task: %q, asked for %v of %v", out.String(), asked, of)
	}
	for _, query := range []string{"", "stdout=1&tail=-1", "stdout=1&tail=x", "stdout=1&since=x", "stdout=1&since=1.x", "stdout=1&until=5"} {
		d.must(400, "GET", "/v1.41/services/web/logs?"+query, "", nil)
	}
	d.change(s, "", func(spec *swarm.ServiceSpec) { spec.TaskTemplate.ContainerSpec.TTY = true })
	if _, got = d.ask("GET", "/v1.41/services/web/logs?stdout=1", ""); !strings.HasPrefix(got, "out\nerr, without an end\n") {
		t.Errorf("of a terminal: %q", got)
	}
}

// TestConformance compares the routes with their table in docs/conformance.md, and its last column
// with the tests.
func TestConformance(t *testing.T) {
	var routes []string
	for _, p := range (Server{}).routes().patterns {
		if !strings.HasSuffix(p, "/") { // the same as without
			routes = append(routes, p)
		}
	}
	conformancetest.Routes(t, "../../..", "Hub: docker's command line", "internal/hub/engineapi", routes)
}
