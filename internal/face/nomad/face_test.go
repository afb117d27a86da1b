package nomad_test

import (
	"errors"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

func TestAPluginIntroducesItself(t *testing.T) {
	for _, tc := range []struct {
		args []string
		name string
	}{{nil, "longshore"}, {[]string{"-name=docker"}, "docker"}} {
		c := nomadtest.Relay(t, tc.args...)
		info, err := c.Base.PluginInfo(t.Context(), &nomadbase.PluginInfoRequest{})
		want := &nomadbase.PluginInfoResponse{Type: nomadbase.PluginType_DRIVER, PluginApiVersions: []string{"v0.1.0"}, PluginVersion: "1.2.3", Name: tc.name}
		if err != nil || !proto.Equal(info, want) {
			t.Errorf("info %v, %v", info, err)
		}
		schema, err := c.Base.ConfigSchema(t.Context(), &nomadbase.ConfigSchemaRequest{})
		if err != nil || schema.GetSpec().GetObject().GetAttributes()["logs"].GetAttr().GetType() != "string" {
			t.Errorf("schema %v, %v", schema, err)
		}
		for range 2 { // Nomad validates it twice
			if _, err := c.Base.SetConfig(t.Context(), nomadtest.SetConfig(map[string]any{"socket": "/x/y.sock", "gc": map[string]any{"image": true, "image_delay": "1m"}}, nil)); err != nil {
				t.Error(err)
			}
		}
		for _, bad := range []map[string]any{{"socket": "here"}, {"logs": "journald"}, {"colour": "blue"}, {"gc": map[string]any{"image_delay": "soon"}}, {"pids_limit": 1.5}} {
			if _, err := c.Base.SetConfig(t.Context(), nomadtest.SetConfig(bad, nil)); err == nil {
				t.Errorf("%v was taken", bad)
			}
		}
		for call, f := range map[string]func() error{
			"Init": func() error {
				_, err := c.Driver.Init(t.Context(), &nomaddriver.InitRequest{})
				return err
			},
			"Shutdown": func() error {
				_, err := c.Driver.Shutdown(t.Context(), &nomaddriver.ShutdownRequest{})
				return err
			},
		} {
			if err := f(); err != nil {
				t.Errorf("%s without an agent: %v", call, err)
			}
		}
		c.Shutdown(t)
	}
}

func TestSchemaAndCapabilities(t *testing.T) {
	r := newRig(t, nil)
	schema, err := r.Driver.TaskConfigSchema(t.Context(), &nomaddriver.TaskConfigSchemaRequest{})
	if err != nil || len(schema.GetSpec().GetObject().GetAttributes()) < 50 {
		t.Errorf("schema %v, %v", schema, err)
	}
	caps := func() *nomaddriver.DriverCapabilities {
		t.Helper()
		resp, err := r.Driver.Capabilities(t.Context(), &nomaddriver.CapabilitiesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetCapabilities()
	}
	want := &nomaddriver.DriverCapabilities{
		SendSignals: true, Exec: true, FsIsolation: nomaddriver.DriverCapabilities_IMAGE, DisableLogCollection: true,
		NetworkIsolationModes: []nomaddriver.NetworkIsolationSpec_NetworkIsolationMode{nomaddriver.NetworkIsolationSpec_HOST, nomaddriver.NetworkIsolationSpec_GROUP},
	}
	if got := caps(); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	r.Configure(t, map[string]any{"socket": r.socket, "logs": "fifo"}, nil)
	if caps().GetDisableLogCollection() {
		t.Error("with fifo Nomad's collector is to run")
	}
	r.Configure(t, map[string]any{"socket": r.socket, "create_network": true}, nil)
	if !caps().GetMustCreateNetwork() {
		t.Error("groups' networks are not ours to create")
	}
	fp, err := r.Driver.Fingerprint(t.Context(), &nomaddriver.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := fp.Recv()
	if err != nil || f.GetHealth() != nomaddriver.FingerprintResponse_HEALTHY || f.GetAttributes()["driver.longshore.version"].GetStringVal() != "1.2.3" {
		t.Errorf("fingerprint %v, %v", f, err)
	}
}

func TestATaskFromStartToDestroy(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", nil)
	resp, c := r.run(task)
	if h := resp.GetHandle(); h.GetVersion() != 1 || !proto.Equal(h.GetConfig(), task) || len(h.GetDriverState()) == 0 || h.GetState() != nomaddriver.TaskState_RUNNING {
		t.Errorf("handle %v", h)
	}
	if _, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: resp.GetHandle()}); err != nil {
		t.Errorf("recover a live task: %v", err)
	}
	r.wantStartError(task, false, "already started")
	id := task.GetId()
	in, err := r.Driver.InspectTask(t.Context(), &nomaddriver.InspectTaskRequest{TaskId: id})
	if st := in.GetTask(); err != nil || st.GetState() != nomaddriver.TaskState_RUNNING || st.GetName() != "web" || st.GetResult() == nil || !st.GetCompletedAt().AsTime().IsZero() ||
		st.GetStartedAt().AsTime().IsZero() {
		t.Errorf("inspect %v, %v", in, err)
	}
	want := []core.Sink{
		{Format: core.FormatRaw, Stdout: true, Path: task.GetAllocDir() + "/alloc/logs/web.stdout.0", Below: task.GetAllocDir(), MaxBytes: 10 << 20, MaxFiles: 10, Numbered: true},
		{Format: core.FormatRaw, Stderr: true, Path: task.GetAllocDir() + "/alloc/logs/web.stderr.0", Below: task.GetAllocDir(), MaxBytes: 10 << 20, MaxFiles: 10, Numbered: true},
	}
	if diff := cmp.Diff(want, c.Config.IO.Sinks); diff != "" {
		t.Error(diff)
	}
	if c.Labels["team"] != "blue" || c.Labels["com.hashicorp.nomad.task_name"] != "web" || c.Labels["com.hashicorp.nomad.job_id"] != "job-id" {
		t.Errorf("labels %v", c.Labels)
	}
	_, err = r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: id})
	wantError(t, err, "running task")
	waits := make(chan *nomaddriver.WaitTaskResponse, 3)
	for range cap(waits) {
		go func() {
			w, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: id})
			if err != nil {
				t.Error(err)
			}
			waits <- w
		}()
	}
	if _, err := r.Driver.SignalTask(t.Context(), &nomaddriver.SignalTaskRequest{TaskId: id, Signal: "SIGUSR1"}); err != nil {
		t.Error(err)
	}
	_, err = r.Driver.SignalTask(t.Context(), &nomaddriver.SignalTaskRequest{TaskId: id, Signal: "SIGNONE"})
	wantError(t, err, "SIGNONE")
	_, err = r.Driver.StopTask(t.Context(), &nomaddriver.StopTaskRequest{TaskId: id, Signal: "SIGNONE"})
	wantError(t, err, "SIGNONE")
	for range 2 { // the second one finds it ended
		if _, err := r.Driver.StopTask(t.Context(), &nomaddriver.StopTaskRequest{TaskId: id, Signal: "SIGINT", Timeout: durationpb.New(time.Minute)}); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]int{int(unix.SIGUSR1), int(unix.SIGINT)}, r.Supervisor.Signals(main(c))); diff != "" {
		t.Error(diff)
	}
	for range cap(waits) {
		if w := <-waits; w.GetResult().GetExitCode() != 130 || w.GetResult().GetSignal() != 2 || w.GetErr() != "" {
			t.Errorf("wait %v", w)
		}
	}
	if w, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: id}); err != nil || w.GetResult().GetSignal() != 2 {
		t.Errorf("wait after the end %v, %v", w, err)
	}
	if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: id, Force: true}); err != nil {
		t.Error(err)
	}
	_, err = r.Driver.InspectTask(t.Context(), &nomaddriver.InspectTaskRequest{TaskId: id})
	wantError(t, err, "task not found for given id")
	_, err = r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: id})
	wantError(t, err, "task not found for given id")
	if _, err := r.Driver.StopTask(t.Context(), &nomaddriver.StopTaskRequest{TaskId: id}); err != nil {
		t.Errorf("stop what is gone: %v", err)
	}
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestARefusedProgramIsNotTriedAgain, but for one that lacks memory.
func TestARefusedProgramIsNotTriedAgain(t *testing.T) {
	for name, refusal := range enginetest.Refusals() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			task := r.task("aaaaaaaa", nil)
			if _, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
				t.Fatal(err)
			}
			r.Runtime.Refuse(refusal.Err, "Create", "Exec")
			r.wantStartError(r.task("bbbbbbbb", nil), errdefs.IsResourceExhausted(refusal.Err), refusal.Err.Error())
			_, err := r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"app"}})
			wantError(t, err, refusal.Err.Error())
		})
	}
}

func TestWhatFailsSaysWhetherToTryAgain(t *testing.T) {
	r := newRig(t, nil)
	for _, tc := range []struct {
		config map[string]any
		text   string
	}{
		{map[string]any{"image": "missing:1"}, "image missing:1"},
		{map[string]any{"image": nil}, "image name required"},
		{map[string]any{"colour": "blue"}, "does not know the key"},
		{map[string]any{"command": "missing"}, "no such file"},
		{map[string]any{"privileged": true}, "allow_privileged"},
		{map[string]any{"volumes": []string{"/etc:/host"}}, "volumes.enabled"},
		{map[string]any{"volumes": []string{"../../../etc:/host"}}, "volumes.enabled"},
		{map[string]any{"cap_add": []string{"SYS_ADMIN"}}, "allow_caps"},
		{map[string]any{"image_pull_policy": "never", "image": "elsewhere:1"}, "elsewhere"},
	} {
		r.wantStartError(r.task("bbbbbbbb", tc.config), false, tc.text)
	}
	r.Images.Fail(func(call string) error {
		if call == "Pull" {
			return errdefs.ErrUnavailable
		}
		return nil
	})
	r.wantStartError(r.task("cccccccc", map[string]any{"force_pull": true}), true, "image busybox:1.36")
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestAnAgentsRestartIsNotNoticed(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", nil)
	resp, c := r.run(task)
	type waited struct {
		resp *nomaddriver.WaitTaskResponse
		err  error
	}
	ended := make(chan waited, 1)
	go func() {
		w, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
		ended <- waited{w, err}
	}()
	stats, err := r.Driver.TaskStats(t.Context(), &nomaddriver.TaskStatsRequest{TaskId: task.GetId(), CollectionInterval: durationpb.New(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := stats.Recv(); err != nil {
			t.Fatal(err)
		}
		r.restart()
	}
	if _, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: resp.GetHandle()}); err != nil {
		t.Errorf("recover: %v", err)
	}
	if st, err := stats.Recv(); err != nil || st.GetStats().GetAggResourceUsage() == nil {
		t.Errorf("figures %v, %v", st, err)
	}
	r.Supervisor.Exit(main(c), 42)
	w := <-ended
	if w.err != nil || w.resp.GetResult().GetExitCode() != 42 || w.resp.GetErr() != "" {
		t.Errorf("wait %v, %v", w.resp, w.err)
	}
	for {
		if _, err := stats.Recv(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func eventually(t *testing.T, ok func() bool) bool {
	t.Helper()
	tick, late := time.NewTicker(time.Millisecond), time.NewTimer(time.Minute)
	defer tick.Stop()
	defer late.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late.C:
			return false
		case <-t.Context().Done():
			return false
		}
	}
	return true
}

// TestATaskThatEndedMeanwhileIsRecovered: the agent is away when it ends, and
// Nomad too.
func TestATaskThatEndedMeanwhileIsRecovered(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", nil)
	resp, c := r.run(task)
	r.stop()
	r.Stop()
	r.Supervisor.ExitAs(main(c), core.Exit{Signal: int(unix.SIGSEGV)})
	r.start()
	again := nomadtest.Reattach(t, r.Address, r.Log)
	if _, err := again.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: resp.GetHandle()}); err != nil {
		t.Fatal(err)
	}
	w, err := again.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
	if err != nil || w.GetResult().GetExitCode() != 139 || w.GetResult().GetSignal() != 11 {
		t.Errorf("wait %v, %v", w, err)
	}
	in, err := again.Driver.InspectTask(t.Context(), &nomaddriver.InspectTaskRequest{TaskId: task.GetId()})
	if err != nil || in.GetTask().GetState() != nomaddriver.TaskState_EXITED || in.GetTask().GetCompletedAt().AsTime().IsZero() || in.GetTask().GetResult().GetSignal() != 11 {
		t.Errorf("inspect %v, %v", in, err)
	}
}

func TestHandlesOfOthersAreRefused(t *testing.T) {
	r := newRig(t, nil)
	resp, _ := r.run(r.task("aaaaaaaa", nil))
	for text, change := range map[string]func(*nomaddriver.TaskHandle){
		"version 2":              func(h *nomaddriver.TaskHandle) { h.Version = 2 },
		"version 0":              func(h *nomaddriver.TaskHandle) { h.Version = 0 },
		"names no task":          func(h *nomaddriver.TaskHandle) { h.Config = nil },
		"cannot be read":         func(h *nomaddriver.TaskHandle) { h.DriverState = []byte{0x81, 0xa1} },
		"not the one it had":     func(h *nomaddriver.TaskHandle) { h.DriverState = []byte(`{"container":"other"}`) },
		"task not found for giv": func(h *nomaddriver.TaskHandle) { h.Config.Id = "a/b/c" },
	} {
		h := proto.CloneOf(resp.GetHandle())
		change(h)
		_, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: h})
		wantError(t, err, text)
	}
	_, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{})
	wantError(t, err, "no handle")
}

// TestAnImageIsShown: it is pulled like the task's own, and goes with the task.
func TestAnImageIsShown(t *testing.T) {
	r := newRig(t, map[string]any{"gc": map[string]any{"image_delay": "1ms"}})
	r.AddImage("models:2", ocispec.ImageConfig{}, map[string]string{"small/one": "1"})
	show := func(suffix, image string) *nomaddriver.TaskConfig {
		return r.task(suffix, map[string]any{"mount": []any{
			map[string]any{"type": "tmpfs", "target": "/scratch"},
			map[string]any{"type": "image", "source": image, "target": "/models", "image_options": map[string]any{"subpath": "small"}},
		}})
	}
	r.wantStartError(show("aaaaaaaa", "absent:1"), false, "image absent:1")
	task := show("bbbbbbbb", "models:2")
	_, c := r.run(task)
	img, err := r.As(core.OwnerNomad).Images.Get(t.Context(), "models:2")
	if err != nil {
		t.Fatal(err)
	}
	if want := []core.ImageMount{{Image: img.ID, SubPath: "small"}}; !slices.Equal(c.Config.Images, want) {
		t.Errorf("shown are %v, want %v", c.Config.Images, want)
	}
	spec := r.Runtime.Spec(c.ID)
	i := slices.IndexFunc(spec.Mounts, func(m specs.Mount) bool { return m.Destination == "/models" })
	if i < 0 || !filepath.IsAbs(spec.Mounts[i].Source) || !slices.Contains(spec.Mounts[i].Options, "ro") {
		t.Errorf("mounts %+v", spec.Mounts)
	}
	if _, err := r.As(core.OwnerNomad).Images.Prune(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := r.As(core.OwnerNomad).Images.Get(t.Context(), "models:2"); err != nil {
		t.Errorf("pruned while it is shown: %v", err)
	}
	if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
		t.Fatal(err)
	}
	if !eventually(t, func() bool {
		_, err := r.As(core.OwnerNomad).Images.Get(t.Context(), "models:2")
		return errdefs.IsNotFound(err)
	}) {
		t.Error("the image stays")
	}
}

func TestFigures(t *testing.T) {
	r := newRig(t, nil)
	r.Configure(t, map[string]any{"socket": r.socket}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}, {MaxSpeed: 4000, GuessSpeed: 9}}})
	task := r.task("aaaaaaaa", nil)
	_, c := r.run(task)
	at := time.Now()
	figures := func(after time.Duration, used, user uint64) {
		r.Cgroups.SetStats(c.Cgroup, core.Stats{
			At: at.Add(after), CPU: core.CPUStats{Usage: core.Known(used), User: core.Known(user), System: core.Known(used - user)},
			Memory:    core.MemoryStats{RSS: core.Known(1 << 20), Usage: core.Known(3 << 20)},
			Processes: []core.ProcessStats{{Pid: 77, User: user, System: used - user, RSS: 1 << 19}},
		})
	}
	figures(0, 1e9, 5e8)
	s, err := r.Driver.TaskStats(t.Context(), &nomaddriver.TaskStatsRequest{TaskId: task.GetId(), CollectionInterval: durationpb.New(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	figures(2*time.Second, 2e9, 1e9)
	var got *nomaddriver.TaskStats
	for got.GetAggResourceUsage().GetCpu().GetPercent() == 0 {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		got = m.GetStats()
	}
	cpu, mem := got.GetAggResourceUsage().GetCpu(), got.GetAggResourceUsage().GetMemory()
	if cpu.GetPercent() != 50 || cpu.GetUserMode() != 25 || cpu.GetTotalTicks() != 1500 || mem.GetRss() != 1<<20 || mem.GetUsage() != 3<<20 {
		t.Errorf("figures %v", got)
	}
	if slices.Contains(mem.GetMeasuredFields(), nomaddriver.MemoryUsage_SWAP) || slices.Contains(cpu.GetMeasuredFields(), nomaddriver.CPUUsage_THROTTLED_TIME) {
		t.Errorf("measured what nobody has measured: %v", got)
	}
	if keys := slices.Collect(maps.Keys(got.GetResourceUsageByPid())); len(keys) != 1 || keys[0] != "77" || got.GetResourceUsageByPid()["77"].GetCpu().GetPercent() != 50 {
		t.Errorf("by pid %v", got.GetResourceUsageByPid())
	}
}

func TestGroupNetworks(t *testing.T) {
	r := newRig(t, nil)
	create := func() *nomaddriver.CreateNetworkResponse {
		t.Helper()
		n, err := r.Driver.CreateNetwork(t.Context(), &nomaddriver.CreateNetworkRequest{AllocId: allocID, Hostname: "web"})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	first, second := create(), create()
	if !first.GetCreated() || second.GetCreated() || first.GetIsolationSpec().GetPath() == "" || !proto.Equal(first.GetIsolationSpec(), second.GetIsolationSpec()) {
		t.Errorf("networks %v and %v", first, second)
	}
	if name := first.GetIsolationSpec().GetLabels()["docker_sandbox_hostname"]; name != "web" {
		t.Errorf("Nomad is told the host name %q", name)
	}
	for range 2 {
		if _, err := r.Driver.DestroyNetwork(t.Context(), &nomaddriver.DestroyNetworkRequest{AllocId: allocID}); err != nil {
			t.Error(err)
		}
	}
	_, err := r.Driver.CreateNetwork(t.Context(), &nomaddriver.CreateNetworkRequest{AllocId: "../x"})
	wantError(t, err, "allocation")
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestImagesThatNobodyUsesGo: with no delay an image goes with its last task.
func TestImagesThatNobodyUsesGo(t *testing.T) {
	r := newRig(t, map[string]any{"gc": map[string]any{"image_delay": "0s"}})
	first, second := r.task("aaaaaaaa", nil), r.task("bbbbbbbb", nil)
	r.run(first)
	r.run(second)
	there := func() bool {
		_, err := r.As(core.OwnerNomad).Images.Get(t.Context(), "busybox:1.36")
		return err == nil
	}
	destroy := func(task *nomaddriver.TaskConfig) {
		t.Helper()
		if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	destroy(first)
	if !there() {
		t.Error("the image of a task that runs has gone")
	}
	destroy(second)
	if !eventually(t, func() bool { return !there() }) {
		t.Error("the image stays")
	}
	if _, err := r.As(core.OwnerCRI).Images.Get(t.Context(), "busybox:1.36"); err != nil {
		t.Errorf("another owner's image: %v", err)
	}
}

// TestWithoutTheAgent: the driver names the remedy, and recovers by itself.
func TestWithoutTheAgent(t *testing.T) {
	r := newRig(t, nil)
	fp, err := r.Driver.Fingerprint(t.Context(), &nomaddriver.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	health := func(want nomaddriver.FingerprintResponse_HealthState) *nomaddriver.FingerprintResponse {
		t.Helper()
		for {
			f, err := fp.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if f.GetHealth() == want {
				return f
			}
		}
	}
	health(nomaddriver.FingerprintResponse_HEALTHY)
	r.stop()
	r.Stop()
	if f := health(nomaddriver.FingerprintResponse_UNHEALTHY); !strings.Contains(f.GetHealthDescription(), "start it") || !strings.Contains(f.GetHealthDescription(), r.socket) {
		t.Errorf("it says %q", f.GetHealthDescription())
	}
	// Nomad, started again meanwhile, gives no task up.
	task := r.task("aaaaaaaa", nil)
	if s, err := r.Driver.TaskConfigSchema(t.Context(), &nomaddriver.TaskConfigSchemaRequest{}); err != nil || s.GetSpec().GetObject().GetAttributes()["image"] == nil {
		t.Errorf("schema %v, %v", s, err)
	}
	if c, err := r.Driver.Capabilities(t.Context(), &nomaddriver.CapabilitiesRequest{}); err != nil || !c.GetCapabilities().GetDisableLogCollection() {
		t.Errorf("capabilities %v, %v", c, err)
	}
	if _, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: &nomaddriver.TaskHandle{Version: 1, Config: task}}); err != nil {
		t.Errorf("recover: %v", err)
	}
	waited := make(chan error, 1)
	go func() {
		_, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
		waited <- err
	}()
	r.start()
	health(nomaddriver.FingerprintResponse_HEALTHY)
	wantError(t, <-waited, "task not found for given id")
}

// TestAStartThatTheAgentDiedOver is made again by the relay, and answered with the first one's
// task.
func TestAStartThatTheAgentDiedOver(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", nil)
	first, c := r.run(task)
	ctx := plugin.Caller{Name: "longshore", Retry: true}.Outgoing(t.Context())
	conn := nomadtest.Dial(t, r.socket)
	again, err := nomaddriver.NewDriverClient(conn).StartTask(ctx, &nomaddriver.StartTaskRequest{Task: task})
	if err != nil || !proto.Equal(first, again) {
		t.Errorf("got %v, %v; want %v", again, err, first)
	}
	if all, err := r.As(core.OwnerNomad).Containers(t.Context(), core.Filter{}); err != nil || len(all) != 1 || all[0].ID != c.ID {
		t.Errorf("containers %v, %v", all, err)
	}
}

// TestAVolumeWithoutANameGoesWithItsTask: also when the agent dies after it has removed the task.
func TestAVolumeWithoutANameGoesWithItsTask(t *testing.T) {
	r := newRig(t, nil)
	volumes := func() (names []string) {
		t.Helper()
		list, err := r.As(core.OwnerNomad).Volumes.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range list {
			names = append(names, v.Name)
		}
		return names
	}
	task := r.task("aaaaaaaa", map[string]any{"volumes": []string{"/data"}, "mount": []any{map[string]any{"source": "kept", "target": "/kept"}}})
	if _, c := r.run(task); len(c.Config.Volumes) != 2 || len(volumes()) != 2 {
		t.Errorf("volumes %v, %v", c.Config.Volumes, volumes())
	}
	if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
		t.Fatal(err)
	}
	if got := volumes(); !slices.Equal(got, []string{"kept"}) {
		t.Errorf("volumes %v", got)
	}
	_, c := r.run(r.task("bbbbbbbb", map[string]any{"volumes": []string{"/data"}}))
	if err := r.As(core.OwnerNomad).RemoveSandbox(t.Context(), c.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if len(volumes()) != 2 {
		t.Errorf("volumes %v", volumes())
	}
	r.restart()
	if !eventually(t, func() bool { return len(volumes()) == 1 }) {
		t.Errorf("volumes %v", volumes())
	}
}
