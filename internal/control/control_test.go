package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func TestCreateBuildsTheRequestedContainer(t *testing.T) {
	r := newRig(t)
	host := t.TempDir()
	created := r.create(t, &longshorev1.CreateRequest{
		Name: "web", Image: "busybox", Command: []string{"sh", "-c", "true"}, Env: []string{"FROM=request", "X=1"}, User: "web", Workdir: "/srv",
		Mounts: []*longshorev1.Mount{{Source: host, Target: "/data", ReadOnly: true}, {Source: "vol", Target: "/vol"}},
		Ports:  []*longshorev1.Port{{Protocol: "tcp", Host: 8080, Container: 80}}, MemoryBytes: 64 << 20, Cpus: 1.5, Pids: 10,
		CapAdd: []string{"net_admin"}, CapDrop: []string{"CAP_CHOWN"}, Labels: map[string]string{"a": "b"},
	})
	spec := r.Runtime.Spec(core.ID(created.GetId()))
	p := spec.Process
	if got := strings.Join(p.Args, " "); got != "sh -c true" {
		t.Errorf("args %q", got)
	}
	env := strings.Join(p.Env, " ")
	for _, want := range []string{"FROM=request", "X=1", "HOME=/srv", "HOSTNAME=web", "PATH=/bin"} {
		if !strings.Contains(env, want) {
			t.Errorf("environment %q lacks %s", env, want)
		}
	}
	if p.User.UID != 33 || p.User.GID != 33 || len(p.User.AdditionalGids) == 0 || p.Cwd != "/srv" || !p.NoNewPrivileges {
		t.Errorf("process %+v", p)
	}
	if p.OOMScoreAdj == nil || *p.OOMScoreAdj != 0 {
		t.Error("the container inherits the agent's OOM score")
	}
	caps := strings.Join(p.Capabilities.Bounding, " ")
	if !strings.Contains(caps, "CAP_NET_ADMIN") || strings.Contains(caps, "CAP_CHOWN") || len(p.Capabilities.Effective) > 0 {
		t.Errorf("capabilities %+v", p.Capabilities)
	}
	res := spec.Linux.Resources
	if *res.Memory.Limit != 64<<20 || *res.CPU.Quota != 150_000 || *res.Pids.Limit != 10 {
		t.Errorf("limits %+v", res)
	}
	if spec.Linux.Seccomp == nil || len(spec.Linux.MaskedPaths) == 0 {
		t.Error("the container is not confined")
	}
	mounts := map[string][]string{}
	for _, m := range spec.Mounts {
		mounts[m.Destination] = append([]string{m.Source}, m.Options...)
	}
	if got := strings.Join(mounts["/data"], ","); !strings.HasPrefix(got, host+",") || !strings.Contains(got, "ro") {
		t.Errorf("/data is %s", got)
	}
	if len(mounts["/vol"]) == 0 {
		t.Error("the volume is not mounted")
	}
	sb, err := r.As(core.OwnerCLI).SandboxByKey(t.Context(), "web")
	if err != nil || len(sb.Config.Network.Ports) != 1 || sb.Labels["a"] != "b" {
		t.Errorf("sandbox %+v, %v", sb, err)
	}
	_, err = r.tryCreate(t, &longshorev1.CreateRequest{Name: "web", Image: "busybox"})
	wantCode(t, err, codes.AlreadyExists, `the name "web" is in use`)
	r.Clean()
}

func TestCreatePullsMissingImagesAndUndoesFailures(t *testing.T) {
	r := newRig(t)
	r.Images.Offer("nginx", ocispec.ImageConfig{Cmd: []string{"sh"}}, nil)
	c := r.create(t, &longshorev1.CreateRequest{Image: "nginx"})
	if !strings.HasPrefix(c.GetName(), "nginx-") {
		t.Errorf("made-up name %q", c.GetName())
	}
	_, err := r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "nosuch"})
	wantCode(t, err, codes.NotFound, "")
	_, err = r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "redis", Pull: "never"})
	wantCode(t, err, codes.NotFound, "")
	_, err = r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "busybox", User: "nobody-here"})
	wantCode(t, err, codes.InvalidArgument, "nobody-here")
	if _, err := r.As(core.OwnerCLI).SandboxByKey(t.Context(), "x"); err == nil {
		t.Error("a sandbox was left behind")
	}
	r.Clean()
}

func TestCreateRefusesInvalidRequests(t *testing.T) {
	r := newRig(t)
	for name, req := range map[string]*longshorev1.CreateRequest{
		"name":      {Name: "../x", Image: "busybox"},
		"no image":  {},
		"pull":      {Image: "busybox", Pull: "often"},
		"cpus":      {Image: "busybox", Cpus: -1},
		"env":       {Image: "busybox", Env: []string{"=x"}},
		"signal":    {Image: "busybox", StopSignal: "NOPE"},
		"target":    {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "/", Target: "data"}}},
		"root":      {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "/", Target: "/."}}},
		"source":    {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "/no/such/dir", Target: "/x"}}},
		"volume":    {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "../x", Target: "/x"}}},
		"twice":     {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "a", Target: "/x"}, {Source: "b", Target: "/x/"}}},
		"port":      {Image: "busybox", Ports: []*longshorev1.Port{{Host: 70000, Container: 1}}},
		"protocol":  {Image: "busybox", Ports: []*longshorev1.Port{{Protocol: "icmp", Host: 1, Container: 1}}},
		"host ip":   {Image: "busybox", Ports: []*longshorev1.Port{{HostIp: "x", Host: 1, Container: 1}}},
		"alias":     {Image: "busybox", NetworkAliases: []string{"db"}},
		"address":   {Image: "busybox", Network: "none", Ip: "10.0.0.9"},
		"host port": {Image: "busybox", Network: "host", Ports: []*longshorev1.Port{{Host: 1, Container: 1}}},
		"cap":       {Image: "busybox", CapAdd: []string{"FLY"}},
		"workdir":   {Image: "busybox", Workdir: "x"},
	} {
		if _, err := r.tryCreate(t, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := r.tryCreate(t, &longshorev1.CreateRequest{Image: "busybox", Network: "mine"}); status.Code(err) != codes.NotFound {
		t.Errorf("a network that nobody has created: %v", err)
	}
	if left, err := r.As(core.OwnerCLI).Sandboxes(t.Context(), core.Filter{}); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestMissingProgramsHaveAShellsStatus(t *testing.T) {
	r := newRig(t)
	_, err := r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "busybox", Command: []string{"missing"}, Start: true, AutoRemove: true})
	if got := exitStatus(err); got != 127 {
		t.Errorf("exit status %d of %v", got, err)
	}
	if _, err := r.As(core.OwnerCLI).ContainerByKey(t.Context(), "x"); err == nil {
		t.Error("--rm left the container that did not start")
	}
	r.Clean()
}

func exitStatus(err error) int32 {
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*longshorev1.StartFailure); ok {
			return f.GetExitStatus()
		}
	}
	return -1
}

func TestOthersObjectsAreShownAndChangedOnlyByForce(t *testing.T) {
	r := newRig(t)
	c := r.foreign(t, "busybox")
	list, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{})
	if err != nil || len(list.GetContainers()) != 1 || list.GetContainers()[0].GetOwner() != "cri" || list.GetContainers()[0].GetImage() != "docker.io/library/busybox:latest" {
		t.Fatalf("list %v, %v", list, err)
	}
	id := string(c.ID)
	calls := map[string]func(force bool) error{
		"stop": func(f bool) error {
			_, err := r.containers.Stop(t.Context(), &longshorev1.StopRequest{Name: id, Force: f})
			return err
		},
		"kill": func(f bool) error {
			_, err := r.containers.Kill(t.Context(), &longshorev1.KillRequest{Name: id[:10], Force: f})
			return err
		},
		"pause": func(f bool) error {
			_, err := r.containers.Pause(t.Context(), &longshorev1.PauseRequest{Name: "ns/pod/uid/0/web", Force: f})
			return err
		},
		"rm": func(f bool) error {
			_, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: id, Force: f})
			return err
		},
		"exec": func(f bool) error {
			_, _, err := r.exec(t, &longshorev1.ExecStart{Name: id, Command: []string{"echo", "hi"}, Force: f})
			return err
		},
	}
	for name, call := range calls {
		if err := call(false); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%s without force: %v", name, err)
		}
	}
	if got, err := r.As(core.OwnerCRI).Container(t.Context(), c.ID); err != nil || got.State != core.ContainerRunning {
		t.Fatalf("the container was changed: %v %v", got.State, err)
	}
	if err := calls["stop"](true); err != nil {
		t.Fatal(err)
	}
	e := r.waitFor(t, func(e core.Event) bool { return e.Kind == core.EventForced })
	if e.Owner != core.OwnerCRI || !strings.Contains(e.Note, "stop") || !strings.Contains(e.Note, fmt.Sprintf("uid %d", os.Getuid())) {
		t.Errorf("the event log says %+v", e)
	}
	a, err := r.As(core.OwnerCRI).Wait(t.Context(), core.Ref{Container: c.ID})
	if err != nil || a.StopRequest == nil || a.StopRequest.Owner != core.OwnerCLI || a.StopRequest.Call != "longshore stop" || !strings.Contains(a.StopRequest.User, "uid") {
		t.Errorf("the autopsy says %+v, %v", a.StopRequest, err)
	}
	why, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: id})
	if err != nil || why.GetContainer().GetAutopsy().GetAsked().GetCall() != "longshore stop" {
		t.Errorf("why: %v, %v", why, err)
	}
	if err := calls["rm"](true); err != nil {
		t.Error(err)
	}
}

func TestAbbreviatedNamesMustBeUnambiguous(t *testing.T) {
	r := newRig(t)
	a := r.create(t, &longshorev1.CreateRequest{Name: "a", Image: "busybox"})
	r.create(t, &longshorev1.CreateRequest{Name: "b", Image: "busybox"})
	for _, name := range []string{"a", a.GetId(), a.GetId()[:12]} {
		resp, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: name})
		if err != nil || resp.GetContainer().GetId() != a.GetId() {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: "nosuch"})
	wantCode(t, err, codes.NotFound, "nosuch")
	_, err = r.containers.Why(t.Context(), &longshorev1.WhyRequest{})
	wantCode(t, err, codes.InvalidArgument, "name")
}

func TestRemoveAlsoRemovesSandboxAndLog(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	_, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c"})
	wantCode(t, err, codes.FailedPrecondition, "--force")
	if _, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c", Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.As(core.OwnerCLI).Sandbox(t.Context(), core.ID(c.GetSandbox())); err == nil {
		t.Error("the sandbox was left")
	}
	_, err = r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c"})
	wantCode(t, err, codes.NotFound, "")
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestARestartRemovesIncompleteObjects(t *testing.T) {
	r := newRig(t)
	gone := r.create(t, &longshorev1.CreateRequest{Name: "gone", Image: "busybox", Start: true, AutoRemove: true})
	never := r.create(t, &longshorev1.CreateRequest{Name: "never", Image: "busybox", AutoRemove: true, Hold: true})
	later := r.create(t, &longshorev1.CreateRequest{Name: "later", Image: "busybox", AutoRemove: true})
	stays := r.create(t, &longshorev1.CreateRequest{Name: "stays", Image: "busybox", Start: true})
	half, err := r.As(core.OwnerCLI).CreateSandbox(t.Context(), core.SandboxConfig{Key: "half"})
	if err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(r.logs, strings.Repeat("0", 64)+".log")
	if err := os.WriteFile(orphan, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.Supervisor.Exit(core.Ref{Container: core.ID(gone.GetId())}, 3)
	r.waitFor(t, of(core.EventContainerExited, gone.GetId()))
	r.serve(t)
	for _, id := range []string{gone.GetSandbox(), never.GetSandbox(), string(half.ID)} {
		r.waitFor(t, of(core.EventSandboxRemoved, id))
	}
	resp, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil || len(resp.GetContainers()) != 2 || resp.GetContainers()[0].GetId() != stays.GetId() || resp.GetContainers()[1].GetId() != later.GetId() {
		t.Errorf("left %v, %v", resp, err)
	}
	if _, err := os.Stat(orphan); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log without a container: %v", err)
	}
}

// planted is a secret value that no answer may contain.
const planted = "s3cr3t-value"

func TestSecretsAreHidden(t *testing.T) {
	r := newRig(t)
	created := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true, Env: []string{"PASSWORD=" + planted}})
	if _, _, err := r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"both"}, Env: []string{"TOKEN=" + planted}}); err != nil {
		t.Fatal(err)
	}
	// Another face's private record may contain such values, too.
	img, err := r.As(core.OwnerCRI).Images.Get(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	sb := r.Pod(core.OwnerCRI, "pod")
	if _, err := r.As(core.OwnerCRI).CreateContainer(t.Context(), core.ContainerConfig{
		Key: "other", Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sh"), Data: []byte(`"` + planted + `"`),
	}); err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	inspect := func(from longshorev1.ContainersClient, req *longshorev1.InspectRequest) string {
		resp, err := from.Inspect(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return string(resp.GetJson())
	}
	shown["inspect"] = inspect(r.containers, &longshorev1.InspectRequest{Name: "c"})
	shown["inspect other"] = inspect(r.containers, &longshorev1.InspectRequest{Name: "other"})
	shown["inspect --show-env on the read socket"] = inspect(r.read, &longshorev1.InspectRequest{Name: "c", ShowEnv: true})
	if !strings.Contains(shown["inspect"], "PASSWORD=<hidden>") {
		t.Errorf("inspect lacks the variable's name:\n%s", shown["inspect"])
	}
	if got := inspect(r.containers, &longshorev1.InspectRequest{Name: "c", ShowEnv: true}); !strings.Contains(got, "PASSWORD="+planted) {
		t.Errorf("--show-env hides the value:\n%s", got)
	}
	if _, err := r.containers.Stop(t.Context(), &longshorev1.StopRequest{Name: created.GetId()}); err != nil {
		t.Fatal(err)
	}
	list, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	shown["list"] = list.String()
	shown["events"] = fmt.Sprint(r.events(t, &longshorev1.EventsRequest{}))
	shown["dump"] = r.dump(t)
	shown["log"] = r.agentLog.String()
	for where, text := range shown {
		if strings.Contains(text, planted) || strings.Contains(text, "InMzY3IzdC12YWx1ZSI") { // and its base64
			t.Errorf("%s shows the value:\n%s", where, text)
		}
	}
}

func TestReadSocketAnswersReadingCallsOnly(t *testing.T) {
	r := newRig(t)
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	if _, err := r.read.ListContainers(t.Context(), &longshorev1.ListContainersRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := r.readNode.Version(t.Context(), &longshorev1.VersionRequest{}); err != nil {
		t.Error(err)
	}
	_, err := r.read.Stop(t.Context(), &longshorev1.StopRequest{Name: "c"})
	wantCode(t, err, codes.PermissionDenied, "serves only calls that read")
	stream, err := r.read.Exec(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, err, codes.PermissionDenied, "serves only calls that read")
}

func TestSocketsHaveTheModesOfTheirUsers(t *testing.T) {
	r := newRig(t)
	for name, want := range map[string]os.FileMode{control.SocketName: 0o600, control.HTTPSocketName: 0o600, "read.sock": 0o660} {
		info, err := os.Stat(filepath.Join(r.sockets, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	entries, err := os.ReadDir(r.sockets)
	if err != nil || len(entries) != 3 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(r.sockets, control.HTTPSocketName))
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "metrics" {
		t.Errorf("%q, %v", body, err)
	}
}

func TestReadSocketNeedsAGroup(t *testing.T) {
	for _, cfg := range []control.Config{{ReadSocket: "/run/x.sock"}, {ReadSocket: "x.sock", ReadGroup: "0"}} {
		if err := cfg.Validate(); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	if _, err := control.Listen(t.Context(), t.TempDir(), control.Config{ReadSocket: "/tmp/x.sock", ReadGroup: "no-such-group"}); err == nil {
		t.Error("a group that is not there was taken")
	}
}

// TestExecveErrorsHaveAShellsStatus checks the exit status of a start and of an exec for errors of execve.
func TestExecveErrorsHaveAShellsStatus(t *testing.T) {
	for name, refusal := range enginetest.Refusals() {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.create(t, &longshorev1.CreateRequest{Name: "runs", Image: "busybox", Start: true})
			r.Runtime.Refuse(refusal.Err, "Start", "Exec")
			_, err := r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "busybox", Start: true})
			if got := exitStatus(err); got != int32(refusal.Status) {
				t.Errorf("start: exit status %d of %v, want %d", got, err, refusal.Status)
			}
			_, _, err = r.exec(t, &longshorev1.ExecStart{Name: "runs", Command: []string{"app"}})
			if got := exitStatus(err); got != int32(refusal.Status) {
				t.Errorf("exec: exit status %d of %v, want %d", got, err, refusal.Status)
			}
			r.Runtime.Fail(nil)
			r.Settle()
			c, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: "x"})
			if err != nil || c.GetContainer().GetAutopsy().GetStatus() != int32(refusal.Status) {
				t.Errorf("%v, %v", c, err)
			}
		})
	}
}

func TestWhyHasThePartsOfTheStart(t *testing.T) {
	r := newRig(t)
	if _, err := r.As(core.OwnerCLI).Images.Pull(t.Context(), "busybox", core.PullOptions{Always: true}); err != nil {
		t.Fatal(err)
	}
	r.create(t, &longshorev1.CreateRequest{Name: "a", Image: "busybox"})
	if _, err := r.containers.Start(t.Context(), &longshorev1.StartRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	resp, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range resp.GetStart() {
		var names []string
		for _, s := range p.GetStages() {
			names = append(names, s.GetName())
		}
		got = append(got, p.GetBy()+" "+p.GetVerb()+": "+strings.Join(names, " "))
	}
	want := []string{
		"cli pull: resolve fetch unpack",
		"cli create_sandbox: reserve pin network files cgroup init admit",
		"cli create: reserve root volumes images spec own adjust cgroup launch",
		"cli start: begin launch",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the start is\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAContainerIsFoundByItsShownName checks that a container is listed with its name for people, and found by it and
// by its key.
func TestAContainerIsFoundByItsShownName(t *testing.T) {
	r := newRig(t)
	img, err := r.As(core.OwnerSwarm).Images.Get(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	c, err := r.As(core.OwnerSwarm).CreateContainer(t.Context(), core.ContainerConfig{
		Key: "task", Sandbox: r.Pod(core.OwnerSwarm, "task").ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sh"), Shown: core.Shown{Name: "web.1.task", Image: "busybox:1@sha256:0123"},
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil || len(list.GetContainers()) != 1 || list.GetContainers()[0].GetKey() != "task" || list.GetContainers()[0].GetName() != "web.1.task" || list.GetContainers()[0].GetImage() != "busybox:1@sha256:0123" {
		t.Errorf("list %v, %v", list, err)
	}
	for _, name := range []string{"task", "web.1.task"} {
		resp, err := r.containers.Inspect(t.Context(), &longshorev1.InspectRequest{Name: name})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got struct {
			ID        core.ID
			Name      string
			ImageName string `json:"image_name"`
		}
		if err := json.Unmarshal(resp.GetJson(), &got); err != nil || got.ID != c.ID || got.Name != "web.1.task" || got.ImageName != "busybox:1@sha256:0123" {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
