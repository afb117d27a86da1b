package cri

import (
	"encoding/json"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
)

func at(s int64) time.Time { return time.Unix(s, 0) }

func TestHowAContainerEnded(t *testing.T) {
	exit := func(e core.Exit) *core.Autopsy { e.At = at(9); return &core.Autopsy{Exit: e, Verdict: "a verdict"} }
	oom := func(e core.Exit, main bool) *core.Autopsy {
		a := exit(e)
		a.OOM = &core.OOM{Main: main, Kills: 1}
		return a
	}
	start := exit(core.Exit{})
	start.Start = "exec: /nope: no such file"
	start127 := exit(core.Exit{Code: 127})
	start127.Start = "exec: /nope: no such file"
	for name, tt := range map[string]struct {
		a       *core.Autopsy
		code    int32
		reason  string
		message string
		started int64
	}{
		"zero":                           {exit(core.Exit{}), 0, "Completed", "", 5e9},
		"code":                           {exit(core.Exit{Code: 3}), 3, "Error", "", 5e9},
		"signal":                         {exit(core.Exit{Signal: 15}), 143, "Error", "", 5e9},
		"memory":                         {oom(core.Exit{Signal: 9}, true), 137, "OOMKilled", "", 5e9},
		"a child's memory, main went on": {oom(core.Exit{}, false), 0, "Completed", "", 5e9},
		"drained after a child's memory": {oom(core.Exit{Signal: 15}, false), 143, "Error", "", 5e9},
		"never ran":                      {start, 128, "StartError", "exec: /nope: no such file", 0},
		"never ran, with a code":         {start127, 128, "StartError", "exec: /nope: no such file", 0},
		"lost":                           {exit(core.Exit{Lost: true}), 255, "Unknown", "a verdict", 5e9},
	} {
		t.Run(name, func(t *testing.T) {
			c := core.Container{State: core.ContainerExited, Main: core.Process{Started: at(5), Finished: at(9), Autopsy: tt.a}}
			s := containerStatus(&c, containerRecord{})
			if s.ExitCode != tt.code || s.Reason != tt.reason || s.Message != tt.message || s.StartedAt != tt.started || s.FinishedAt != 9e9 {
				t.Errorf("code %d, reason %s, message %q, started %d, finished %d", s.ExitCode, s.Reason, s.Message, s.StartedAt, s.FinishedAt)
			}
		})
	}
	never := containerStatus(&core.Container{State: core.ContainerExited, Main: core.Process{Finished: at(9)}}, containerRecord{})
	if never.State != v1.ContainerState_CONTAINER_EXITED || never.StartedAt != 0 || never.FinishedAt != 9e9 {
		t.Errorf("stopped before it started: %v", never)
	}
}

func TestContainerStates(t *testing.T) {
	for state, want := range map[core.ContainerState]v1.ContainerState{
		core.ContainerCreating: v1.ContainerState_CONTAINER_UNKNOWN, core.ContainerCreated: v1.ContainerState_CONTAINER_CREATED,
		core.ContainerRunning: v1.ContainerState_CONTAINER_RUNNING, core.ContainerPaused: v1.ContainerState_CONTAINER_RUNNING,
		core.ContainerExited: v1.ContainerState_CONTAINER_EXITED,
	} {
		if got := containerState(state); got != want {
			t.Errorf("%s: %s", state, got)
		}
	}
}

func TestContainerStatusEchoes(t *testing.T) {
	req := &v1.CreateContainerRequest{Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "web", Attempt: 3}, Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"},
		Image: &v1.ImageSpec{Image: "sha256:x"}, Mounts: []*v1.Mount{{HostPath: "/a", ContainerPath: "/b", Readonly: true}},
		Envs: []*v1.KeyValue{{Key: "TOKEN", Value: []byte("s3cret")}},
	}}
	rec, err := newContainerRecord(req)
	if err != nil {
		t.Fatal(err)
	}
	rec.Found = &v1.ContainerStatus{Image: &v1.ImageSpec{Image: "redis:7"}, ImageId: "sha256:x", ImageRef: "redis@sha256:y"}
	data, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(data), "s3cret") {
		t.Error("the record holds an environment variable's value")
	}
	c := core.Container{
		Meta:  core.Meta{ID: "id", Data: data, Labels: req.Config.Labels, Created: at(4)},
		State: core.ContainerRunning, Main: core.Process{Pid: 42, Started: at(5)},
		Config: core.ContainerConfig{Stop: core.Stop{Signal: "SIGQUIT"}, IO: core.IO{Sinks: []core.Sink{{Format: core.FormatCRI, Path: "/logs/0.log"}}}},
	}
	r, err := containerOf(&c)
	if err != nil {
		t.Fatal(err)
	}
	want := &v1.ContainerStatus{
		Id: "id", Metadata: req.Config.Metadata, State: v1.ContainerState_CONTAINER_RUNNING, CreatedAt: 4e9, StartedAt: 5e9,
		Image: rec.Found.Image, ImageId: "sha256:x", ImageRef: "redis@sha256:y", Labels: req.Config.Labels, Annotations: req.Config.Annotations,
		Mounts: req.Config.Mounts, LogPath: "/logs/0.log", StopSignal: v1.Signal_SIGNAL_SIGQUIT,
	}
	if d := cmp.Diff(want, containerStatus(&c, r), protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	var verbose struct {
		Pid    int `json:"pid"`
		Config struct {
			Envs []struct{ Key, Value string } `json:"envs"`
		} `json:"config"`
	}
	if err := json.Unmarshal([]byte(containerInfo(&core.Sandbox{}, &c, r)["info"]), &verbose); err != nil {
		t.Fatal(err)
	}
	if verbose.Pid != 42 || len(verbose.Config.Envs) != 1 || verbose.Config.Envs[0].Key != "TOKEN" || verbose.Config.Envs[0].Value != "" {
		t.Errorf("verbose: %+v", verbose)
	}
}

func TestSandboxStatusTellsItsAddresses(t *testing.T) {
	cfg, err := sandboxConfig(DefaultConfig(), podRequest(withNamespaces(&v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER})))
	if err != nil {
		t.Fatal(err)
	}
	sb := core.Sandbox{
		Meta: core.Meta{ID: "id", Data: cfg.Data, Labels: cfg.Labels, Created: at(1)}, Config: cfg, State: core.SandboxReady,
		Network: core.NetworkStatus{Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("fd00::2")}},
	}
	r, err := podOf(&sb)
	if err != nil {
		t.Fatal(err)
	}
	s := sandboxStatus(&sb, r)
	if s.Network.Ip != "10.1.0.2" || len(s.Network.AdditionalIps) != 1 || s.Network.AdditionalIps[0].Ip != "fd00::2" {
		t.Errorf("network %v", s.Network)
	}
	if s.Linux.Namespaces.Options.Pid != v1.NamespaceMode_CONTAINER || s.Metadata.Attempt != 2 || s.Labels["app"] != "web" || s.Annotations["note"] != "kept" {
		t.Errorf("status %v", s)
	}
	sb.State = core.SandboxStopped
	if s := sandboxStatus(&sb, r); s.Network.Ip != "" || s.State != v1.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("stopped: %v", s)
	}
	sb.State, sb.Config.Namespaces.Net.Mode = core.SandboxReady, core.Host
	if s := sandboxStatus(&sb, r); s.Network.Ip != "" {
		t.Errorf("on the node's network: %v", s)
	}
}

// TestRecordsSurviveAnUpgrade: records of an earlier agent are read as this one's, and match the
// same request.
func TestRecordsSurviveAnUpgrade(t *testing.T) {
	rec, err := newPodRecord(podRequest(withNamespaces(&v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER, UsernsOptions: &v1.UserNamespace{Uids: []*v1.IDMapping{{Length: 1}}}})))
	if err != nil {
		t.Fatal(err)
	}
	now, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	before := earlier(t, rec.Config, nil)
	copy(before[1:], rec.Sum[:])
	if !sameSum(before, now) {
		t.Error("the sums differ")
	}
	for _, read := range []func([]byte) (podRecord, error){
		func(b []byte) (podRecord, error) { return podOf(&core.Sandbox{Meta: core.Meta{Data: b}}) },
		func(b []byte) (podRecord, error) { return podHead(&core.Sandbox{Meta: core.Meta{Data: b}}) },
	} {
		old, err := read(before)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(now)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(sandboxStatus(&core.Sandbox{}, old), sandboxStatus(&core.Sandbox{}, got), protocmp.Transform()); d != "" {
			t.Errorf("(-before +now):\n%s", d)
		}
	}
	whole, err := podOf(&core.Sandbox{Meta: core.Meta{Data: now}})
	if err != nil {
		t.Fatal(err)
	}
	whole.Config.Config.Labels = nil
	if d := cmp.Diff(rec.Config, whole.Config, protocmp.Transform()); d != "" {
		t.Errorf("what was written is not what is read (-want +got):\n%s", d)
	}
}

func TestRecordsOfOtherFormsAreRefused(t *testing.T) {
	rec, err := newPodRecord(podRequest())
	if err != nil {
		t.Fatal(err)
	}
	good, err := rec.encode()
	if err != nil {
		t.Fatal(err)
	}
	for n := range good[:40] {
		if _, err := podOf(&core.Sandbox{Meta: core.Meta{Data: good[:n]}}); err == nil {
			t.Errorf("the first %d bytes were a record", n)
		}
	}
	good[0] = 99
	if _, err := podOf(&core.Sandbox{Meta: core.Meta{Data: good}}); err == nil {
		t.Error("version 99 was a record")
	}
}

func TestEqualRequestsHaveEqualSums(t *testing.T) {
	sum := func(change func(*v1.PodSandboxConfig)) [32]byte {
		rec, err := newPodRecord(podRequest(func(c *v1.PodSandboxConfig) {
			for _, k := range []string{"a", "b", "c", "d", "e"} {
				c.Labels[k] = k
			}
		}, change))
		if err != nil {
			t.Fatal(err)
		}
		return rec.Sum
	}
	first := sum(func(*v1.PodSandboxConfig) {})
	for range 20 {
		if sum(func(*v1.PodSandboxConfig) {}) != first {
			t.Fatal("equal requests differ")
		}
	}
	if sum(func(c *v1.PodSandboxConfig) { c.Labels["a"] = "z" }) == first {
		t.Error("another label is the same request")
	}
}

func TestConditions(t *testing.T) {
	got := conditions("", core.NetworkInfo{Mode: "builtin", Ready: true}, nil)
	want := []*v1.RuntimeCondition{{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true}}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	got = conditions("crun: not found", core.NetworkInfo{Mode: "cni", Reason: "no conflist in /etc/cni/net.d"}, nil)
	want = []*v1.RuntimeCondition{
		{Type: "RuntimeReady", Reason: "RuntimeNotReady", Message: "crun: not found"},
		{Type: "NetworkReady", Reason: "NetworkNotReady", Message: "cni network: no conflist in /etc/cni/net.d"},
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := conditions("", core.NetworkInfo{Ready: true}, errors.New("down"))[1]; got.Status || got.Message != "down" {
		t.Errorf("with an error: %v", got)
	}
}

func TestUnknownFiguresStayUnknown(t *testing.T) {
	s := containerStats(&core.Container{}, containerRecord{}, core.Stats{At: at(1)}, "/img")
	if s.Cpu.UsageCoreNanoSeconds != nil || s.Cpu.UsageNanoCores != nil || s.Memory.UsageBytes != nil || s.Memory.AvailableBytes != nil || s.Swap != nil || s.WritableLayer != nil || s.Io != nil || s.Cpu.Psi != nil {
		t.Errorf("%v", s)
	}
	if s.Cpu.Timestamp != 1e9 || s.Memory.Timestamp != 1e9 {
		t.Errorf("timestamps %d, %d", s.Cpu.Timestamp, s.Memory.Timestamp)
	}
	p := podStats(&core.Sandbox{}, podRecord{Config: &v1.RunPodSandboxRequest{}}, core.Stats{}, nil)
	if p.Linux.Network != nil || p.Linux.Process != nil {
		t.Errorf("%v", p)
	}
}

func TestFigures(t *testing.T) {
	st := core.Stats{
		At: at(1), CPU: core.CPUStats{Usage: core.Known(7)},
		Memory: core.MemoryStats{
			Usage: core.Known(100), WorkingSet: core.Known(60), Limit: core.Known(50), RSS: core.Known(0), Swap: core.Known(5), SwapLimit: core.Known(9), Faults: core.Known(3),
		},
		Pids: core.PidsStats{Current: core.Known(9), Processes: core.Known(4)}, Root: core.RootStats{Bytes: core.Known(11)},
		Net:      []core.NetStats{{Name: "lo", RxBytes: 1}, {Name: "net1", RxBytes: 2}, {Name: "eth0", RxBytes: 3, TxErrors: 4}},
		Pressure: map[string]core.PressureStat{"cpu": {Some: core.PressureLine{Avg10: 1.5, Total: 2}}},
	}
	c := containerStats(&core.Container{}, containerRecord{}, st, "/img")
	if c.Memory.AvailableBytes.Value != 0 || c.Memory.RssBytes == nil || c.Swap.SwapAvailableBytes.Value != 4 || c.WritableLayer.FsId.Mountpoint != "/img" || c.WritableLayer.InodesUsed != nil {
		t.Errorf("container %v", c)
	}
	if c.Cpu.Psi.Some.Total != 2000 || c.Cpu.Psi.Some.Avg10 != 1.5 {
		t.Errorf("pressure %v", c.Cpu.Psi)
	}
	sb := core.Sandbox{Network: core.NetworkStatus{Interfaces: []core.Attachment{{Interface: "eth0"}}}}
	p := podStats(&sb, podRecord{Config: &v1.RunPodSandboxRequest{}}, st, nil)
	if n := p.Linux.Network; n.DefaultInterface.Name != "eth0" || n.DefaultInterface.TxErrors.Value != 4 || len(n.Interfaces) != 2 {
		t.Errorf("network %v", n)
	}
	if p.Linux.Process.ProcessCount.Value != 4 {
		t.Errorf("processes %v", p.Linux.Process)
	}
}

func TestUpdatedResources(t *testing.T) {
	before := &v1.ContainerResources{Linux: &v1.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 1 << 20, CpuQuota: -1, OomScoreAdj: 7}}
	asked := &v1.LinuxContainerResources{MemoryLimitInBytes: 5000, CpuPeriod: 100000, Unified: map[string]string{"memory.high": "1"}, HugepageLimits: []*v1.HugepageLimit{{PageSize: "2MB", Limit: 3 << 20}, {PageSize: "1GB", Limit: 9}}}
	res, err := convert.Resources(asked)
	if err != nil {
		t.Fatal(err)
	}
	*res.Memory.Limit = 4096 // the kernel's pages
	res.HugepageLimits = res.HugepageLimits[:1]
	res.HugepageLimits[0].Limit = 2 << 20
	got := convert.UpdatedResources(before, asked, res).Linux
	want := &v1.LinuxContainerResources{
		CpuShares: 100, CpuPeriod: 100000, CpuQuota: -1, MemoryLimitInBytes: 4096, OomScoreAdj: 7, Unified: map[string]string{"memory.high": "1"},
		HugepageLimits: []*v1.HugepageLimit{{PageSize: "2MB", Limit: 2 << 20}, {PageSize: "1GB", Limit: 9}},
	}
	if d := cmp.Diff(want, got, protocmp.Transform()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	res.CPU.Shares = proto.Uint64(99)
	if got := convert.UpdatedResources(before, asked, res).Linux.CpuShares; got != 99 {
		t.Errorf("%d shares on v1, enforced are 99", got)
	}
	res.Unified = map[string]string{"cpu.weight": "4"}
	if got := convert.UpdatedResources(before, asked, res).Linux.CpuShares; got != 100 {
		t.Errorf("%d shares on v2, asked for were 100", got)
	}
	if before.Linux.MemoryLimitInBytes != 1<<20 {
		t.Error("what held before was changed")
	}
}

// TestNewestContainerComesFirst: a kubelet that listens to events takes the first status of a name
// for the last try, without reading the times.
func TestNewestContainerComesFirst(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	var want []string
	for _, name := range []string{"first", "second", "third"} {
		id := n.running(t, pod, name)
		n.exit(t, id, core.Exit{Code: 1})
		want = append([]string{id}, want...)
	}
	ids := func(list []*v1.ContainerStatus) (all []string) {
		for _, s := range list {
			all = append(all, s.Id)
		}
		return all
	}
	r, err := n.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, ids(r.ContainersStatuses)); d != "" {
		t.Errorf("the pod's status (-want +got):\n%s", d)
	}
	s, err := n.GetContainerEvents(t.Context(), &v1.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, ids(e.ContainersStatuses)); d != "" {
		t.Errorf("an event (-want +got):\n%s", d)
	}
}
