package mesos

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
)

// fill has a file of 2 MiB in a sandbox.
func (n *testNode) fill(sandbox string) {
	n.t.Helper()
	f, err := os.Create(filepath.Join(n.work, "containers", sandbox, "file"))
	if err == nil {
		_, err = f.Write(make([]byte, 2<<20))
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		n.t.Fatal(err)
	}
	_ = f.Close()
}

func (n *testNode) measure() {
	n.t.Helper()
	if err := n.server.diskQuota.measureAll(n.t.Context()); err != nil {
		n.t.Error(err)
	}
}

// TestDisk: the agent ends a container above its quota and tells why, after a restart too; nested
// ones count.
func TestDisk(t *testing.T) {
	n := newTestNode(t)
	launch := strings.Replace(launchA, `{"name":"cpus"`, `{"name":"disk","type":"SCALAR","scalar":{"value":1.5}},{"name":"cpus"`, 1)
	child := `{"value":"b","parent":{"value":"a"}}`
	n.is(launch, 200, "")
	n.is(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":`+child+`,"command":{"value":"serve"}}}`, 200, "")
	n.is(strings.Replace(launchA, `"value":"a"`, `"value":"free"`, 1), 200, "")
	n.fill("free")
	n.measure()
	ref := core.Ref{Container: n.container("a").ID}
	if got := n.Supervisor.Signals(ref); len(got) > 0 {
		t.Fatalf("signals %v", got)
	}
	shown := n.answer(`{"type":"GET_CONTAINERS","get_containers":{"show_standalone":true}}`).GetGetContainers().GetContainers()
	if st := shown[0].GetResourceStatistics(); len(shown) != 2 || st.GetDiskLimitBytes() != 3<<19 || st.DiskUsedBytes == nil || st.GetDiskUsedBytes() > 1<<20 || shown[1].GetResourceStatistics().DiskLimitBytes != nil {
		t.Errorf("shown %v", shown)
	}
	tasks := n.answer(`{"type":"GET_TASKS"}`).GetGetTasks().GetLaunchedTasks()
	if r := tasks[0].GetResources(); len(r) != 3 || r[2].GetName() != "disk" || r[2].GetScalar().GetValue() != 1.5 {
		t.Errorf("resources %v", r)
	}
	n.fill("a/containers/b")
	n.measure()
	if got := n.Supervisor.Signals(ref); len(got) != 1 || got[0] != int(unix.SIGKILL) {
		t.Errorf("signals %v", got)
	}
	for range 2 {
		w := n.answer(waitA).GetWaitContainer()
		limit := w.GetLimitation().GetResources()
		if w.GetExitStatus() != 9 || w.GetState() != mesosv1.TaskState_TASK_FAILED || w.GetReason() != mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_DISK ||
			!strings.HasPrefix(w.GetMessage(), "Disk usage (") || !strings.HasSuffix(w.GetMessage(), ") exceeds quota (1536KB)") ||
			len(limit) != 1 || limit[0].GetName() != "disk" || limit[0].GetScalar().GetValue() != 1.5 {
			t.Errorf("wait: %v", w)
		}
		n.shutdown()
		n.Restart()
		n.serve()
	}
	done := n.answer(`{"type":"GET_TASKS"}`).GetGetTasks().GetCompletedTasks()
	if s := done[0].GetStatuses()[0]; done[0].GetState() != mesosv1.TaskState_TASK_FAILED || s.GetReason() != mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_DISK {
		t.Errorf("task %v", done[0])
	}
	w := n.answer(`{"type":"WAIT_CONTAINER","wait_container":{"container_id":` + child + `}}`).GetWaitContainer()
	if w.GetExitStatus() != 9 || w.Reason != nil {
		t.Errorf("what was nested: %v", w)
	}
}

// TestNetworks: one may be the node's own; of several each has an interface, and is
// shown with its addresses.
func TestNetworks(t *testing.T) {
	n := newTestNode(t)
	launch := func(id, infos string) string {
		return strings.Replace(strings.Replace(launchA, `"rlimit_info"`, `"network_infos":[`+infos+`],"rlimit_info"`, 1), `"value":"a"`, `"value":"`+id+`"`, 1)
	}
	n.is(launch("x", `{},{"name":"back"}`), 400, "network_infos: with several networks each needs a name")
	n.is(launch("x", `{"name":"back"},{"name":"back"}`), 400, "Attempted to join CNI network 'back' multiple times")
	n.is(launch("x", `{"name":"app"},{"name":"back","port_mappings":[{"host_port":1,"container_port":2}]}`), 400, "network_infos: ports are mapped to the first network only")
	n.is(launch("a", `{"name":"app","port_mappings":[{"host_port":1,"container_port":2}]},{"name":"back"}`), 200, "")
	n.is(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"in","parent":{"value":"a"}},"command":{"value":"serve"},"container":{"type":"MESOS","network_infos":[{}]}}}`,
		501, "a network of a nested container's own: not implemented")
	sb, err := n.As(core.OwnerMesos).SandboxByKey(t.Context(), "a")
	if c := sb.Config.Network; err != nil || sb.Config.Namespaces.Net.Mode != core.Shared || len(c.Attach) != 2 || c.Attach[0].Network != "app" || c.Attach[0].Interface != "eth0" ||
		c.Attach[1].Network != "back" || c.Attach[1].Interface != "eth1" || len(c.Ports) != 1 || c.Name != "" {
		t.Errorf("%+v, %v", sb.Config, err)
	}
	n.is(launch("b", `{}`), 200, "")
	if sb, err = n.As(core.OwnerMesos).SandboxByKey(t.Context(), "b"); err != nil || sb.Config.Namespaces.Net.Mode != core.Shared || sb.Config.Network.Name != "" || len(sb.Config.Network.Attach) > 0 {
		t.Errorf("%+v, %v", sb.Config, err)
	}
}

// TestGPUs: each belongs to one container and its nested ones, until it has ended; the agent's
// restart changes nothing.
func TestGPUs(t *testing.T) {
	n := newTestNode(t)
	restart := func() {
		t.Helper()
		n.shutdown()
		n.Restart()
		n.serve()
	}
	n.config = func(c *Config) { c.GPUs = []string{"example.com/gpu=0", "example.com/gpu=1", "example.com/gpu=2"} }
	restart()
	launch := func(id, gpus string) string {
		return strings.Replace(strings.Replace(launchA, `{"name":"cpus"`, `{"name":"gpus","type":"SCALAR","scalar":{"value":`+gpus+`}},{"name":"cpus"`, 1), `"value":"a"`, `"value":"`+id+`"`, 1)
	}
	has := func(id core.Key, want string) {
		t.Helper()
		if got := strings.Join(n.container(id).Config.CDI, " "); got != want {
			t.Errorf("%s has %q, want %q", id, got, want)
		}
	}
	n.is(launch("a", "2"), 200, "")
	has("a", "example.com/gpu=0 example.com/gpu=1")
	n.is(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"in","parent":{"value":"a"}},"command":{"value":"serve"}}}`, 200, "")
	has("a.in", "example.com/gpu=0 example.com/gpu=1")
	restart()
	n.is(launch("b", "2"), 400, "Requested 2 gpus but only 1 available")
	n.is(launch("b", "1"), 200, "")
	has("b", "example.com/gpu=2")
	n.is(launch("none", "0"), 200, "")
	has("none", "")
	if r := n.answer(`{"type":"GET_AGENT"}`).GetGetAgent().GetAgentInfo().GetResources(); len(r) != 4 || r[3].GetName() != "gpus" || r[3].GetScalar().GetValue() != 3 {
		t.Errorf("agent %v", r)
	}
	metrics := map[string]float64{}
	for _, m := range n.answer(`{"type":"GET_METRICS","get_metrics":{}}`).GetGetMetrics().GetMetrics() {
		metrics[m.GetName()] = m.GetValue()
	}
	if metrics["slave/gpus_total"] != 3 || metrics["slave/gpus_used"] != 3 || metrics["slave/gpus_percent"] != 1 {
		t.Errorf("metrics %v", metrics)
	}
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.is(launch("c", "2"), 200, "")
	has("c", "example.com/gpu=0 example.com/gpu=1")
	cfg := DefaultConfig()
	cfg.GPUs = []string{"0"}
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), `face.mesos.gpus: device "0"`) {
		t.Errorf("%v", err)
	}
}
