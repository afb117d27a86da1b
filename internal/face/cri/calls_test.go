package cri

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func TestVersionAndStatus(t *testing.T) {
	n := newTestNode(t, func(c *Config) { c.Handlers["class"] = "fake"; c.Handlers["gone"] = "not-configured" })
	ctx := t.Context()
	v, err := n.Version(ctx, &v1.VersionRequest{})
	if err != nil || v.RuntimeName != "longshore" || v.RuntimeVersion != "1.2.3" || v.RuntimeApiVersion != "v1" || v.Version != "0.1.0" {
		t.Errorf("%v, %v", v, err)
	}
	s, err := n.Status(ctx, &v1.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Status.Conditions {
		if !c.Status {
			t.Errorf("%v", c)
		}
	}
	var names []string
	for _, h := range s.RuntimeHandlers {
		names = append(names, h.Name)
		if !h.Features.RecursiveReadOnlyMounts || !h.Features.UserNamespaces {
			t.Errorf("%v", h)
		}
	}
	if d := cmp.Diff([]string{"", "class", "fake"}, names); d != "" {
		t.Errorf("handlers (-want +got):\n%s", d)
	}
	if len(s.Info) != 0 || !s.Features.SupplementalGroupsPolicy {
		t.Errorf("%v", s)
	}
	if s, err := n.Status(ctx, &v1.StatusRequest{Verbose: true}); err != nil || !strings.Contains(s.Info["config"], `"handlers"`) || s.Info["runtimes"] == "" || s.Info["network"] == "" {
		t.Errorf("%v, %v", s, err)
	}
	n.Network.Fail(func(string) error { return errdefs.ErrUnavailable })
	if s, err := n.Status(ctx, &v1.StatusRequest{}); err != nil || s.Status.Conditions[1].Status || s.Status.Conditions[1].Message == "" {
		t.Errorf("with a failing network: %v, %v", s, err)
	}
	c, err := n.RuntimeConfig(ctx, &v1.RuntimeConfigRequest{})
	if err != nil || c.Linux.CgroupDriver != v1.CgroupDriver_CGROUPFS {
		t.Errorf("%v, %v", c, err)
	}
}

func TestVersionsThatKubeletCanParse(t *testing.T) {
	for in, want := range map[string]string{"": "0.0.0-devel", "(devel)": "0.0.0-devel", "v0.2.0": "0.2.0", "1.0.0-rc.1": "1.0.0-rc.1", "abc": "0.0.0-devel"} {
		if got := (node{version: in}).semver(); got != want {
			t.Errorf("%q: %s", in, got)
		}
	}
}

func TestPodCIDR(t *testing.T) {
	n := newTestNode(t)
	set := func(cidr string) error {
		_, err := n.UpdateRuntimeConfig(t.Context(), &v1.UpdateRuntimeConfigRequest{RuntimeConfig: &v1.RuntimeConfig{NetworkConfig: &v1.NetworkConfig{PodCidr: cidr}}})
		return err
	}
	if err := set("10.9.0.0/24, fd00::/64"); err != nil {
		t.Error(err)
	}
	i, err := n.As(core.OwnerCRI).Network.Info(t.Context())
	if err != nil || len(i.Ranges) != 2 {
		t.Errorf("%v, %v", i, err)
	}
	for _, bad := range []string{"10.9.0.0", "10.9.0.0/99", "x", "10.9.0.0/24,", "10.9.0.0/24 10.8.0.0/24"} {
		wantCode(t, bad, set(bad), codes.InvalidArgument)
	}
	if i, err := n.As(core.OwnerCRI).Network.Info(t.Context()); err != nil || len(i.Ranges) != 2 {
		t.Errorf("a bad one changed the ranges: %v, %v", i, err)
	}
	if err := set(""); err != nil {
		t.Error(err)
	}
	if _, err := n.UpdateRuntimeConfig(t.Context(), &v1.UpdateRuntimeConfigRequest{}); err != nil {
		t.Error(err)
	}
}

func TestSandboxFilters(t *testing.T) {
	n := newTestNode(t)
	a, b := n.pod(t, "a"), n.pod(t, "b")
	if _, err := n.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: b}); err != nil {
		t.Fatal(err)
	}
	state := func(s v1.PodSandboxState) *v1.PodSandboxStateValue { return &v1.PodSandboxStateValue{State: s} }
	for name, tt := range map[string]struct {
		f    *v1.PodSandboxFilter
		want []string
	}{
		"none":           {nil, []string{a, b}},
		"empty":          {&v1.PodSandboxFilter{}, []string{a, b}},
		"id":             {&v1.PodSandboxFilter{Id: a}, []string{a}},
		"prefix":         {&v1.PodSandboxFilter{Id: b[:12]}, []string{b}},
		"unknown id":     {&v1.PodSandboxFilter{Id: "zz"}, nil},
		"ready":          {&v1.PodSandboxFilter{State: state(v1.PodSandboxState_SANDBOX_READY)}, []string{a}},
		"not ready":      {&v1.PodSandboxFilter{State: state(v1.PodSandboxState_SANDBOX_NOTREADY)}, []string{b}},
		"labels":         {&v1.PodSandboxFilter{LabelSelector: map[string]string{"app": "web"}}, []string{a, b}},
		"another label":  {&v1.PodSandboxFilter{LabelSelector: map[string]string{"app": "web", "x": "y"}}, nil},
		"id and a state": {&v1.PodSandboxFilter{Id: a, State: state(v1.PodSandboxState_SANDBOX_NOTREADY)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := n.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{Filter: tt.f})
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, i := range list.Items {
				ids = append(ids, i.Id)
			}
			sameSet(t, ids, tt.want)
			s, err := n.StreamPodSandboxes(t.Context(), &v1.StreamPodSandboxesRequest{Filter: tt.f})
			if err != nil {
				t.Fatal(err)
			}
			var streamed []*v1.PodSandbox
			for m, err := s.Recv(); !errors.Is(err, io.EOF); m, err = s.Recv() {
				if err != nil {
					t.Fatal(err)
				}
				streamed = append(streamed, m.PodSandboxes...)
			}
			if d := cmp.Diff(list.Items, streamed, protocmp.Transform()); d != "" {
				t.Errorf("listed and streamed differ:\n%s", d)
			}
		})
	}
}

func sameSet(t *testing.T, got, want []string) {
	t.Helper()
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestContainerFilters(t *testing.T) {
	n := newTestNode(t)
	p, q := n.pod(t, "p"), n.pod(t, "q")
	created, run, ended := n.container(t, p, "a"), n.running(t, p, "b"), n.running(t, q, "c")
	n.exit(t, ended, core.Exit{Code: 1})
	state := func(s v1.ContainerState) *v1.ContainerStateValue { return &v1.ContainerStateValue{State: s} }
	for name, tt := range map[string]struct {
		f    *v1.ContainerFilter
		want []string
	}{
		"none":    {nil, []string{created, run, ended}},
		"id":      {&v1.ContainerFilter{Id: run}, []string{run}},
		"prefix":  {&v1.ContainerFilter{Id: run[:12]}, []string{run}},
		"created": {&v1.ContainerFilter{State: state(v1.ContainerState_CONTAINER_CREATED)}, []string{created}},
		"running": {&v1.ContainerFilter{State: state(v1.ContainerState_CONTAINER_RUNNING)}, []string{run}},
		"exited":  {&v1.ContainerFilter{State: state(v1.ContainerState_CONTAINER_EXITED)}, []string{ended}},
		"unknown": {&v1.ContainerFilter{State: state(v1.ContainerState_CONTAINER_UNKNOWN)}, nil},
		"pod":     {&v1.ContainerFilter{PodSandboxId: p}, []string{created, run}},
		"a pod's beginning, and a state": {
			&v1.ContainerFilter{PodSandboxId: p[:12], State: state(v1.ContainerState_CONTAINER_RUNNING)},
			[]string{run},
		},
		"label": {&v1.ContainerFilter{LabelSelector: map[string]string{"name": "c"}}, []string{ended}},
	} {
		t.Run(name, func(t *testing.T) {
			list, err := n.ListContainers(t.Context(), &v1.ListContainersRequest{Filter: tt.f})
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, c := range list.Containers {
				ids = append(ids, c.Id)
				if c.ImageId != string(n.image.ID) || c.ImageRef == "" || c.CreatedAt == 0 || c.Annotations["kept"] != "yes" {
					t.Errorf("%v", c)
				}
			}
			sameSet(t, ids, tt.want)
			s, err := n.StreamContainers(t.Context(), &v1.StreamContainersRequest{Filter: tt.f})
			if err != nil {
				t.Fatal(err)
			}
			var streamed []*v1.Container
			for m, err := s.Recv(); !errors.Is(err, io.EOF); m, err = s.Recv() {
				if err != nil {
					t.Fatal(err)
				}
				streamed = append(streamed, m.Containers...)
			}
			if d := cmp.Diff(list.Containers, streamed, protocmp.Transform()); d != "" {
				t.Errorf("listed and streamed differ:\n%s", d)
			}
		})
	}
	if s := n.status(t, run[:20]); s.Id != run {
		t.Errorf("by a prefix: %v", s)
	}
}

func TestBadRequestsGetTheirCodes(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	id := n.running(t, pod, "c")
	created := n.container(t, pod, "d")
	call := func(what string, want codes.Code, err error) { t.Helper(); wantCode(t, what, err, want) }
	is := func(_ any, err error) error { return err }
	unknown := strings.Repeat("0", 64)

	for _, id := range []string{unknown, "000000", "../../x"} {
		call("sandbox status", codes.NotFound, is(n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: id})))
		call("container status", codes.NotFound, is(n.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: id})))
		call("start", codes.NotFound, is(n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: id})))
		call("exec", codes.NotFound, is(n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"x"}})))
		call("stats", codes.NotFound, is(n.ContainerStats(ctx, &v1.ContainerStatsRequest{ContainerId: id})))
		call("pod stats", codes.NotFound, is(n.PodSandboxStats(ctx, &v1.PodSandboxStatsRequest{PodSandboxId: id})))
		call("update", codes.NotFound, is(n.UpdateContainerResources(ctx, &v1.UpdateContainerResourcesRequest{ContainerId: id})))
		call("reopen", codes.NotFound, is(n.ReopenContainerLog(ctx, &v1.ReopenContainerLogRequest{ContainerId: id})))
		call("create", codes.NotFound, is(n.CreateContainer(ctx, n.containerRequest(id, "x"))))
	}
	call("no sandbox config", codes.InvalidArgument, is(n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{})))
	call("unknown handler", codes.InvalidArgument, is(n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: n.podConfig("h"), RuntimeHandler: "nope"})))
	call("no container config", codes.InvalidArgument, is(n.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: pod})))
	call("empty sandbox id", codes.InvalidArgument, is(n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{})))
	call("empty container id", codes.InvalidArgument, is(n.ContainerStatus(ctx, &v1.ContainerStatusRequest{})))
	call("stop nothing", codes.InvalidArgument, is(n.StopContainer(ctx, &v1.StopContainerRequest{})))
	call("remove nothing", codes.InvalidArgument, is(n.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{})))
	call("no command", codes.InvalidArgument, is(n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id})))
	call("start twice", codes.FailedPrecondition, is(n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: id})))
	call("exec before it runs", codes.FailedPrecondition, is(n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: created, Cmd: []string{"x"}})))
	call("bad limits", codes.InvalidArgument, is(n.UpdateContainerResources(ctx, &v1.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: -9},
	})))
	missing := n.containerRequest(pod, "m")
	missing.Config.Image.Image = "never-pulled"
	call("missing image", codes.NotFound, is(n.CreateContainer(ctx, missing)))
	joining := n.containerRequest(pod, "j")
	joining.Config.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{NamespaceOptions: &v1.NamespaceOption{Pid: v1.NamespaceMode_TARGET, TargetId: unknown}}}
	call("target that is not there", codes.NotFound, is(n.CreateContainer(ctx, joining)))
	call("no image to ask for", codes.InvalidArgument, is(n.images.ImageStatus(ctx, &v1.ImageStatusRequest{})))
	call("no image to pull", codes.InvalidArgument, is(n.images.PullImage(ctx, &v1.PullImageRequest{})))
	call("no image to remove", codes.InvalidArgument, is(n.images.RemoveImage(ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{}})))
	call("credentials", codes.InvalidArgument, is(n.images.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "x"}, Auth: &v1.AuthConfig{Auth: "%%"}})))
	call("unknown to every registry", codes.NotFound, is(n.images.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "nope"}})))
	huge := n.podConfig("huge")
	huge.Annotations["x"] = strings.Repeat("x", defaultMessageBytes)
	call("oversize", codes.ResourceExhausted, is(n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: huge})))
}

func TestEngineErrorsKeepTheirClass(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	for _, tt := range []struct {
		class error
		want  codes.Code
	}{
		{errdefs.ErrResourceExhausted, codes.ResourceExhausted},
		{errdefs.ErrUnavailable, codes.Unavailable},
		{errdefs.ErrDataLoss, codes.DataLoss},
		{errors.New("plain"), codes.Unknown},
		{errdefs.ErrInvalidArgument, codes.InvalidArgument},
	} {
		n.Network.Fail(func(call string) error {
			if call == "Setup" {
				return fmt.Errorf("no address: %w", tt.class)
			}
			return nil
		})
		_, err := n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: n.podConfig("p")})
		wantCode(t, tt.class.Error(), err, tt.want)
		if err != nil && !strings.Contains(err.Error(), "no address") {
			t.Errorf("the reason is lost: %v", err)
		}
	}
	n.Network.Fail(nil)
	n.pod(t, "p") // the name is free again
}

func TestAPanicHarmsOneCallOnly(t *testing.T) {
	n := newTestNode(t)
	n.Network.Fail(func(call string) error {
		if call == "Info" {
			panic("a bug")
		}
		return nil
	})
	_, err := n.Status(t.Context(), &v1.StatusRequest{})
	wantCode(t, "a panic", err, codes.Internal)
	if _, err := n.Version(t.Context(), &v1.VersionRequest{}); err != nil {
		t.Errorf("after a panic: %v", err)
	}
}

func TestExecSync(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	id := n.running(t, n.pod(t, "p"), "c")
	seq, err := n.As(core.OwnerCRI).LastSeq(ctx)
	if err != nil {
		t.Fatal(err)
	}
	n.Supervisor.Program("talk", func(p *enginetest.Process) int {
		_, _ = io.WriteString(p.Stdout(), "out "+strings.Join(p.Args[1:], " "))
		_, _ = io.WriteString(p.Stderr(), "err")
		return 7
	})
	r, err := n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"talk", "a", "b"}, Timeout: 60})
	if err != nil || string(r.Stdout) != "out a b" || string(r.Stderr) != "err" || r.ExitCode != 7 {
		t.Errorf("%v, %v", r, err)
	}
	n.Supervisor.Program("much", func(p *enginetest.Process) int {
		block := bytes.Repeat([]byte("x"), 1<<20)
		for range 20 {
			_, _ = p.Stdout().Write(block)
			_, _ = p.Stderr().Write(block)
		}
		return 0
	})
	r, err = n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"much"}})
	if err != nil || len(r.Stdout)+len(r.Stderr) != maxOutput || r.ExitCode != 0 {
		t.Errorf("%d and %d bytes, code %d, %v", len(r.GetStdout()), len(r.GetStderr()), r.GetExitCode(), err)
	}
	_, err = n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"missing"}})
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing: %v", err)
	}
	n.noExecs(t, id)
	if now, err := n.As(core.OwnerCRI).LastSeq(ctx); err != nil || now != seq {
		t.Errorf("%d events of probes, %v", now-seq, err)
	}
}

// noExecs fails the test when a container has an exec left.
func (n *testNode) noExecs(t *testing.T, id string) {
	t.Helper()
	n.Settle()
	c, err := n.As(core.OwnerCRI).Container(t.Context(), core.ID(id))
	if err != nil {
		t.Fatal(err)
	}
	procs, err := n.Supervisor.Processes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Execs) != 0 || len(procs) != 1 {
		t.Errorf("execs on record %v, processes %v", c.Execs, procs)
	}
}

func TestAnExecThatTakesTooLongIsKilled(t *testing.T) {
	n := newTestNode(t)
	id := n.running(t, n.pod(t, "p"), "c")
	started := make(chan struct{}, 2)
	n.Supervisor.Program("sleep", func(p *enginetest.Process) int {
		started <- struct{}{}
		<-p.Killed
		return 0
	})
	_, err := n.ExecSync(t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep"}, Timeout: 1})
	wantCode(t, "timeout", err, codes.DeadlineExceeded)
	<-started
	n.noExecs(t, id)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := n.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"sleep"}})
		done <- err
	}()
	<-started
	cancel()
	wantCode(t, "the client has gone", <-done, codes.Canceled)
	n.shutdown() // waits for the handler
	n.noExecs(t, id)
}

func TestStatsOverTheWire(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	run, created := n.running(t, pod, "run"), n.container(t, pod, "created")
	other := n.running(t, n.pod(t, "q"), "other")
	c, err := n.As(core.OwnerCRI).Container(ctx, core.ID(run))
	if err != nil {
		t.Fatal(err)
	}
	n.Cgroups.SetStats(c.Cgroup, core.Stats{CPU: core.CPUStats{Usage: core.Known(123)}, Memory: core.MemoryStats{WorkingSet: core.Known(456)}})
	one, err := n.ContainerStats(ctx, &v1.ContainerStatsRequest{ContainerId: run[:10]})
	if err != nil {
		t.Fatal(err)
	}
	s := one.Stats
	if s.Attributes.Id != run || s.Attributes.Labels["name"] != "run" || s.Cpu.GetUsageCoreNanoSeconds().GetValue() != 123 || s.Memory.GetWorkingSetBytes().GetValue() != 456 {
		t.Errorf("%v", s)
	}
	if s.Memory.RssBytes != nil || s.Swap != nil || s.WritableLayer.GetUsedBytes().GetValue() != 4096 || s.WritableLayer.FsId.Mountpoint != "/var/lib/longshore/images" {
		t.Errorf("%v", s)
	}
	for name, tt := range map[string]struct {
		f    *v1.ContainerStatsFilter
		want []string
	}{
		"all that run": {nil, []string{run, other}},
		"pod":          {&v1.ContainerStatsFilter{PodSandboxId: pod}, []string{run}},
		"label":        {&v1.ContainerStatsFilter{LabelSelector: map[string]string{"name": "other"}}, []string{other}},
		"not running":  {&v1.ContainerStatsFilter{Id: created}, nil},
	} {
		list, err := n.ListContainerStats(ctx, &v1.ListContainerStatsRequest{Filter: tt.f})
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, s := range list.Stats {
			ids = append(ids, s.Attributes.Id)
		}
		t.Run(name, func(t *testing.T) { sameSet(t, ids, tt.want) })
		stream, err := n.StreamContainerStats(ctx, &v1.StreamContainerStatsRequest{Filter: tt.f})
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for m, err := stream.Recv(); !errors.Is(err, io.EOF); m, err = stream.Recv() {
			if err != nil {
				t.Fatal(err)
			}
			got += len(m.ContainerStats)
		}
		if got != len(tt.want) {
			t.Errorf("%s: %d streamed", name, got)
		}
	}
	p, err := n.PodSandboxStats(ctx, &v1.PodSandboxStatsRequest{PodSandboxId: pod})
	if err != nil || p.Stats.Attributes.Metadata.Name != "p" || len(p.Stats.Linux.Containers) != 1 || p.Stats.Linux.Containers[0].Attributes.Id != run {
		t.Errorf("%v, %v", p, err)
	}
	pods, err := n.ListPodSandboxStats(ctx, &v1.ListPodSandboxStatsRequest{Filter: &v1.PodSandboxStatsFilter{Id: pod}})
	if err != nil || len(pods.Stats) != 1 {
		t.Errorf("%v, %v", pods, err)
	}
	stream, err := n.StreamPodSandboxStats(ctx, &v1.StreamPodSandboxStatsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || len(m.PodSandboxStats) != 2 {
		t.Errorf("%v, %v", m, err)
	}
}

func TestUpdateOverTheWire(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	req := n.containerRequest(pod, "c")
	req.Config.Linux = &v1.LinuxContainerConfig{Resources: &v1.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 1 << 20}}
	r, err := n.CreateContainer(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: r.ContainerId}); err != nil {
		t.Fatal(err)
	}
	if got := n.status(t, r.ContainerId).Resources.Linux; got.CpuShares != 100 || got.MemoryLimitInBytes != 1<<20 {
		t.Errorf("%v", got)
	}
	_, err = n.UpdateContainerResources(ctx, &v1.UpdateContainerResourcesRequest{
		ContainerId: r.ContainerId, Linux: &v1.LinuxContainerResources{MemoryLimitInBytes: 2 << 20},
	})
	if err != nil {
		t.Fatal(err)
	}
	s := n.status(t, r.ContainerId)
	if got := s.Resources.Linux; got.CpuShares != 100 || got.MemoryLimitInBytes != 2<<20 {
		t.Errorf("%v", got)
	}
	if s.Labels["name"] != "c" || s.User == nil || s.ImageRef == "" {
		t.Errorf("the update changed the record: %v", s)
	}
}

func TestEventsTellThePresentAndThenWhatHappens(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	old := n.running(t, pod, "old")
	s, err := n.GetContainerEvents(t.Context(), &v1.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	next := func(id string, kind v1.ContainerEventType) *v1.ContainerEventResponse {
		t.Helper()
		e, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.ContainerId != id || e.ContainerEventType != kind || e.CreatedAt == 0 || e.PodSandboxStatus.GetMetadata().GetName() == "" {
			t.Fatalf("got %v, want %s of %s", e, kind, id)
		}
		return e
	}
	next(pod, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	next(old, v1.ContainerEventType_CONTAINER_STARTED_EVENT)
	id := n.running(t, pod, "c")
	next(id, v1.ContainerEventType_CONTAINER_CREATED_EVENT)
	if e := next(id, v1.ContainerEventType_CONTAINER_STARTED_EVENT); len(e.ContainersStatuses) != 2 {
		t.Errorf("%v", e)
	}
	n.exit(t, id, core.Exit{Code: 4})
	next(id, v1.ContainerEventType_CONTAINER_STOPPED_EVENT)
	if _, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	seen := map[string][]v1.ContainerEventType{}
	for deleted := 0; deleted < 3; {
		e, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if e.PodSandboxStatus.GetMetadata().GetUid() != "u1" {
			t.Errorf("nobody's event: %v", e)
		}
		seen[e.ContainerId] = append(seen[e.ContainerId], e.ContainerEventType)
		if e.ContainerEventType == v1.ContainerEventType_CONTAINER_DELETED_EVENT {
			deleted++
		}
	}
	stopped, deleted := v1.ContainerEventType_CONTAINER_STOPPED_EVENT, v1.ContainerEventType_CONTAINER_DELETED_EVENT
	want := map[string][]v1.ContainerEventType{pod: {stopped, deleted}, old: {stopped, deleted}, id: {deleted}}
	if d := cmp.Diff(want, seen); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestConfigIsChecked(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"no socket":       func(c *Config) { c.Socket = "" },
		"relative socket": func(c *Config) { c.Socket = "cri.sock" },
		"same sockets":    func(c *Config) { c.ImageSocket = c.Socket },
		"cgroup driver":   func(c *Config) { c.CgroupDriver = "cgroup2" },
		"handlers":        func(c *Config) { c.Handlers[""] = "x" },
		"log size":        func(c *Config) { c.LogMaxBytes = -1 },
		"message size":    func(c *Config) { c.MaxMessageBytes = 1 << 20 },
		"calls":           func(c *Config) { c.MaxCalls = 0 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(Options{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no engine: %v", err)
	}
}
