package swarm_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/state"
)

// TestJoining: each cause of a refusal, and that a refusal leaves nothing.
func TestJoining(t *testing.T) {
	r := newRig(t)
	other := swarmtest.NewAuthority(t)
	for name, c := range map[string]struct {
		req  swarm.JoinRequest
		is   func(error) bool
		text string
	}{
		"no token":               {swarm.JoinRequest{Addr: r.Addr}, errdefs.IsInvalidArgument, "not of the form"},
		"a damaged token":        {swarm.JoinRequest{Addr: r.Addr, Token: r.Token[:len(r.Token)-1]}, errdefs.IsInvalidArgument, "damaged"},
		"another swarm's token":  {swarm.JoinRequest{Addr: r.Addr, Token: other.Token("worker")}, errdefs.IsPermissionDenied, "of another swarm than the token"},
		"a secret that is wrong": {swarm.JoinRequest{Addr: r.Addr, Token: r.Authority.Token("wrong")}, errdefs.IsInvalidArgument, "valid join token"},
		"a manager's token":      {swarm.JoinRequest{Addr: r.Addr, Token: r.ManagerToken}, errdefs.IsFailedPrecondition, "can be a worker only"},
		"FIPS":                   {swarm.JoinRequest{Addr: r.Addr, Token: strings.Replace(r.Token, "SWMTKN-1-", "SWMTKN-2-1-", 1)}, errdefs.IsInvalidArgument, "FIPS"},
		"no port":                {swarm.JoinRequest{Addr: "127.0.0.1", Token: r.Token}, errdefs.IsInvalidArgument, "HOST:PORT"},
		"an availability":        {swarm.JoinRequest{Addr: r.Addr, Token: r.Token, Availability: "often"}, errdefs.IsInvalidArgument, "none of active"},
		"nobody there":           {swarm.JoinRequest{Addr: "127.0.0.1:1", Token: r.Token}, errdefs.IsUnavailable, "127.0.0.1:1"},
	} {
		_, err := r.face.Join(t.Context(), c.req)
		if !c.is(err) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
		if c.req.Token != "" && err != nil && strings.Contains(err.Error(), c.req.Token) {
			t.Errorf("%s: the token is told", name)
		}
		if s := r.face.Status(); s.NodeID != "" {
			t.Errorf("%s: the node is a member: %+v", name, s)
		}
	}
	r.join()
	if _, err := r.face.Join(t.Context(), swarm.JoinRequest{Addr: r.Addr, Token: r.Token}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second join: %v", err)
	}
}

// TestTheKeyIsItsOwners and the token is nowhere.
func TestTheKeyIsItsOwners(t *testing.T) {
	r := newRig(t)
	r.join()
	st, err := os.Stat(filepath.Join(r.root, "identity.json"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st, err)
	}
	for key, value := range r.kv.All("") {
		if strings.Contains(string(value), r.Token) || strings.Contains(string(value), "PRIVATE") {
			t.Errorf("%s has a secret", key)
		}
	}
	data, err := os.ReadFile(filepath.Join(r.root, "identity.json"))
	if err != nil || strings.Contains(string(data), r.Token) {
		t.Errorf("the token is kept, or %v", err)
	}
}

// TestTheNodeSaysWhatItIs: the managers' scheduler gives it only tasks that it can run, and a
// root's rotation waits for the report of its certificate.
func TestTheNodeSaysWhatItIs(t *testing.T) {
	r := newRig(t)
	r.join()
	d := r.Described()
	var plugins []string
	for _, p := range d.GetEngine().GetPlugins() {
		plugins = append(plugins, p.GetType()+"/"+p.GetName())
	}
	if want := []string{"Log/fluentd", "Log/journald", "Log/json-file", "Log/local", "Log/syslog", "Network/bridge", "Network/host", "Volume/local"}; !slices.Equal(plugins, want) {
		t.Errorf("plugins %v, want %v", plugins, want)
	}
	tls := d.GetTlsInfo()
	if string(tls.GetTrustRoot()) != string(r.Authority.Roots()) || len(tls.GetCertIssuerSubject()) == 0 || len(tls.GetCertIssuerPublicKey()) == 0 {
		t.Errorf("its certificate: %v", tls)
	}
	if res := d.GetResources(); res.GetNanoCpus() < 1e9 || res.GetMemoryBytes() < 1<<20 || d.GetHostname() == "" || d.GetPlatform().GetOs() != "linux" {
		t.Errorf("%v", d)
	}
}

// TestATaskFromAssignmentToRemoval, by each of its ends.
func TestATaskFromAssignmentToRemoval(t *testing.T) {
	r := newRig(t)
	r.join()
	for id, c := range map[string]struct {
		command string
		want    swarmv1.TaskState
		code    int32
	}{
		"runs well": {"well", swarmv1.TaskState_COMPLETE, 0}, "runs badly": {"badly", swarmv1.TaskState_FAILED, 7}, "runs on": {"sleep", swarmv1.TaskState_RUNNING, 0},
	} {
		r.Assign(swarmtest.Task(id, image, c.command))
		s := r.Reaches(id, c.want)
		cs := s.GetContainer()
		if cs.GetExitCode() != c.code || cs.GetContainerId() != string(r.container(id).ID) {
			t.Errorf("%s: %v", id, s)
		}
		if (s.GetErr() != "") != (c.want == swarmv1.TaskState_FAILED) || s.GetMessage() == "" {
			t.Errorf("%s: message %q, error %q", id, s.GetMessage(), s.GetErr())
		}
		if c.want == swarmv1.TaskState_RUNNING && (s.GetMessage() != "started" || cs.GetPid() == 0) {
			t.Errorf("%s: %v", id, s)
		}
		r.rises(id, c.want)
	}
	labels := r.container("runs on").Labels
	if labels["com.docker.swarm.service.name"] != "web" || labels["com.docker.swarm.task.id"] != "runs on" || labels["com.docker.swarm.task.name"] != "web.1.runs on" {
		t.Errorf("labels %v", labels)
	}
	r.Want("runs on", swarmv1.TaskState_SHUTDOWN)
	if s := r.Reaches("runs on", swarmv1.TaskState_SHUTDOWN); s.GetErr() != "" {
		t.Errorf("a task that was to end: %v", s)
	}
	for _, id := range []string{"runs well", "runs badly", "runs on"} {
		r.Remove(id)
		r.gone(id)
	}
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.clean()
}

// TestATaskWaitsAtItsDesiredState and continues there.
func TestATaskWaitsAtItsDesiredState(t *testing.T) {
	r := newRig(t)
	r.join()
	task := swarmtest.Task("a", image, "sleep")
	task.DesiredState = swarmv1.TaskState_READY
	r.Assign(task)
	r.Reaches("a", swarmv1.TaskState_READY)
	if c := r.container("a"); c.State != core.ContainerCreated {
		t.Errorf("it is %s", c.State)
	}
	r.Want("a", swarmv1.TaskState_RUNNING)
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.Want("a", swarmv1.TaskState_READY) // which is no way back
	r.Want("a", swarmv1.TaskState_REMOVE)
	r.Reaches("a", swarmv1.TaskState_SHUTDOWN)
	r.rises("a", swarmv1.TaskState_SHUTDOWN)
}

// TestWhatCannotBeIsRejected by its name, touches no other task, and leaves nothing.
func TestWhatCannotBeIsRejected(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Assign(swarmtest.Task("other", image, "sleep"))
	r.Reaches("other", swarmv1.TaskState_RUNNING)
	spec := func(fn func(*swarmv1.Task, *swarmv1.ContainerSpec)) *swarmv1.Task {
		task := swarmtest.Task("x", image, "sleep")
		fn(task, task.GetSpec().GetContainer())
		return task
	}
	overlay := &swarmv1.NetworkAttachment{Network: &swarmv1.Network{Spec: &swarmv1.NetworkSpec{Annotations: &swarmv1.Annotations{Name: "mesh"}, DriverConfig: &swarmv1.Driver{Name: "overlay"}}}}
	for text, task := range map[string]*swarmv1.Task{
		"no container":           {DesiredState: swarmv1.TaskState_RUNNING, Spec: &swarmv1.TaskSpec{}},
		"overlay network mesh: ": spec(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) { t.Networks = []*swarmv1.NetworkAttachment{overlay} }),
		`log driver "gelf"`:      spec(func(t *swarmv1.Task, _ *swarmv1.ContainerSpec) { t.LogDriver = &swarmv1.Driver{Name: "gelf"} }),
		"secret password was not assigned": spec(func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) {
			c.Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "password", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "password", Mode: 0o444}}}}
		}),
		"nowhere:1": spec(func(_ *swarmv1.Task, c *swarmv1.ContainerSpec) { c.Image = "nowhere:1" }),
	} {
		id := strings.Fields(text)[0]
		task.Id = id
		r.Assign(task)
		if s := r.Reaches(id, swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), text) {
			t.Errorf("%s: %q", text, s.GetErr())
		}
		if _, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), core.Key(id)); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if c := r.container("other"); c.State != core.ContainerRunning {
		t.Errorf("the other task is %s", c.State)
	}
}

// TestSecretsAndConfigs are files that go with their task, in any order.
func TestSecretsAndConfigs(t *testing.T) {
	r := newRig(t)
	r.join()
	task := swarmtest.Task("a", image, "sleep")
	c := task.GetSpec().GetContainer()
	c.Secrets = []*swarmv1.SecretReference{{SecretId: "s", SecretName: "password", Target: &swarmv1.SecretReference_File{File: &swarmv1.FileTarget{Name: "password", Mode: 0o400}}}}
	c.Configs = []*swarmv1.ConfigReference{{ConfigId: "c", ConfigName: "motd", Target: &swarmv1.ConfigReference_File{File: &swarmv1.FileTarget{Name: "/etc/motd", Mode: 0o444}}}}
	r.Change(func(tasks map[string]*swarmv1.Task, secrets map[string]*swarmv1.Secret, configs map[string]*swarmv1.Config) {
		tasks["a"] = task
		secrets["s"] = &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte("planted-secret")}}
		configs["c"] = &swarmv1.Config{Id: "c", Spec: &swarmv1.ConfigSpec{Data: []byte("hello")}}
	})
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	dir := filepath.Join(r.state, "files", string(r.container("a").Sandbox))
	for name, want := range map[string]struct {
		text string
		mode os.FileMode
	}{"0": {"planted-secret", 0o400}, "1": {"hello", 0o444}} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		st, err2 := os.Stat(filepath.Join(dir, name))
		if err := errors.Join(err, err2); err != nil || string(data) != want.text || st.Mode().Perm() != want.mode {
			t.Errorf("%s: %q, %v, %v", name, data, st, err)
		}
	}
	for key, value := range r.kv.All("") {
		if strings.Contains(string(value), "planted-secret") {
			t.Errorf("%s has the secret", key)
		}
	}
	r.Remove("a")
	r.gone("a")
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.clean()
}

// TestCredentialsAreNotKept: those of a registry come with each assignment.
func TestCredentialsAreNotKept(t *testing.T) {
	r := newRig(t)
	r.join()
	task := swarmtest.Task("a", image, "sleep")
	task.GetSpec().GetContainer().PullOptions = &swarmv1.ContainerSpec_PullOptions{RegistryAuth: "eyJ1c2VybmFtZSI6InUiLCJwYXNzd29yZCI6InAifQ=="}
	r.Assign(task)
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	n := 0
	for key, value := range r.kv.All("task/") {
		if n++; strings.Contains(string(value), "eyJ1c2Vy") {
			t.Errorf("%s has the credentials", key)
		}
	}
	if n != 1 {
		t.Errorf("%d tasks are kept", n)
	}
}

// TestAnAgentsRestartIsNotNoticed: tasks run on, ends of meanwhile are reported, and everything is
// reported again.
func TestAnAgentsRestartIsNotNoticed(t *testing.T) {
	r := newRig(t)
	r.join()
	for _, id := range []string{"a", "b", "c"} {
		r.Assign(swarmtest.Task(id, image, "sleep"))
		r.Reaches(id, swarmv1.TaskState_RUNNING)
	}
	a, b := r.container("a"), r.container("b")
	r.down()
	r.Forget()
	r.Supervisor.Exit(core.Ref{Container: b.ID}, 9)
	r.Remove("c")
	r.start()
	if s := r.Reaches("b", swarmv1.TaskState_FAILED); s.GetContainer().GetExitCode() != 9 {
		t.Errorf("what ended meanwhile: %v", s)
	}
	if s := r.Reaches("a", swarmv1.TaskState_RUNNING); s.GetContainer().GetContainerId() != string(a.ID) {
		t.Errorf("what runs: %v, container %s", s, a.ID)
	}
	r.gone("c")
	if now := r.container("a"); now.ID != a.ID || now.Main.Pid != a.Main.Pid {
		t.Errorf("it was started again")
	}
}

// TestAfterABoot: tasks that lost their containers are reported as ended.
func TestAfterABoot(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Assign(swarmtest.Task("a", image, "sleep"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.down()
	r.Forget()
	if err := os.RemoveAll(filepath.Join(r.state, "files")); err != nil {
		t.Fatal(err)
	}
	r.Reboot()
	r.Options.Store = state.NewMemory(64)
	r.start()
	if s := r.Reaches("a", swarmv1.TaskState_FAILED); s.GetErr() == "" {
		t.Errorf("%v", s)
	}
}

// TestSessionsThatAreLost: a session that the manager knows is resumed, an unknown one is replaced;
// the tasks notice nothing, and are reported again.
func TestSessionsThatAreLost(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Assign(swarmtest.Task("a", image, "sleep"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	pid := r.container("a").Main.Pid
	r.Forget()
	r.Drop(false)
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if n := r.Sessions(); n != 1 {
		t.Errorf("%d sessions, it was not resumed", n)
	}
	r.Forget()
	r.Drop(true)
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if n := r.Sessions(); n != 2 {
		t.Errorf("%d sessions, want another one", n)
	}
	r.Assign(swarmtest.Task("b", image, "well"))
	r.Reaches("b", swarmv1.TaskState_COMPLETE)
	if now := r.container("a"); now.Main.Pid != pid {
		t.Error("it was started again")
	}
}

// TestAssignmentsThatDoNotFollow end the session, and the next begins with all.
func TestAssignmentsThatDoNotFollow(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Assign(swarmtest.Task("a", image, "sleep"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.Forget()
	r.Send(&swarmv1.AssignmentsMessage{Type: swarmv1.AssignmentsMessage_INCREMENTAL, AppliesTo: "77", ResultsIn: "78"})
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.Assign(swarmtest.Task("b", image, "sleep"))
	r.Reaches("b", swarmv1.TaskState_RUNNING)
}

// TestAManagerWithoutAssignments gets the call Tasks.
func TestAManagerWithoutAssignments(t *testing.T) {
	r := newRig(t)
	r.Hook(func(call string) error {
		if call == "Assignments" {
			return status.Error(codes.Unimplemented, "unknown method")
		}
		return nil
	})
	r.join()
	r.Assign(swarmtest.Task("a", image, "well"))
	r.Reaches("a", swarmv1.TaskState_COMPLETE)
	r.Remove("a")
	r.gone("a")
}

// TestAnotherNodesTask: its status is refused together with all of the same call, and
// keeps no other from being told.
func TestAnotherNodesTask(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Hook(func(call string) error {
		if call == "UpdateTaskStatus" {
			return status.Error(codes.Unavailable, "not now")
		}
		return nil
	})
	r.Assign(swarmtest.Task(swarmtest.ForeignTask, image, "sleep"))
	r.Assign(swarmtest.Task("a", image, "well"))
	r.happens("a", core.EventContainerExited)
	r.Hook(nil)
	r.Reaches("a", swarmv1.TaskState_COMPLETE)
	if got := r.Statuses(swarmtest.ForeignTask); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// TestACertificateIsRenewedInTime, and the session continues with the new one.
func TestACertificateIsRenewedInTime(t *testing.T) {
	r := newRig(t)
	r.Authority.Life = 2 * time.Second
	r.join()
	first := r.face.Status().CertificateEnds
	r.Authority.Life = time.Hour / 2
	r.Until("there is another certificate", func() bool { return r.face.Status().CertificateEnds.After(first) })
	r.Assign(swarmtest.Task("a", image, "well"))
	r.Reaches("a", swarmv1.TaskState_COMPLETE)
	if n := r.Sessions(); n != 1 {
		t.Errorf("%d sessions, it was not resumed", n)
	}
	if r.face.Status().NodeID != "node1" {
		t.Errorf("it is another node: %+v", r.face.Status())
	}
}

// TestLeaving removes the tasks, and the node may join again.
func TestLeaving(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Assign(swarmtest.Task("a", image, "sleep"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if err := r.face.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.clean()
	for key := range r.kv.All("") {
		t.Errorf("%s is kept", key)
	}
	if s := r.face.Status(); s.NodeID != "" || s.Error != "" {
		t.Errorf("%+v", s)
	}
	if err := r.face.Leave(t.Context()); err != nil {
		t.Errorf("leaving twice: %v", err)
	}
	r.Remove("a")
	if _, err := r.face.Join(t.Context(), swarm.JoinRequest{Addr: r.Addr, Token: r.Token}); err != nil {
		t.Fatal(err)
	}
	r.Assign(swarmtest.Task("b", image, "well"))
	r.Reaches("b", swarmv1.TaskState_COMPLETE)
}

// TestATaskHasDockersNames: its hostname is its container's short id, and people see it by its task's name and
// its image as the service names it.
func TestATaskHasDockersNames(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Assign(swarmtest.Task("a", image, "sleep"))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	c := r.container("a")
	sb, err := r.As(core.OwnerSwarm).Sandbox(t.Context(), c.Sandbox)
	if err != nil || sb.Config.Hostname != c.ID.Short() {
		t.Errorf("hostname %q of %s, %v", sb.Config.Hostname, c.ID, err)
	}
	if !strings.HasSuffix(c.Name(), ".a") || strings.Count(c.Name(), ".") != 2 || c.Config.Shown.Image != image {
		t.Errorf("it is shown as %q, %q", c.Name(), c.Config.Shown.Image)
	}
}

// TestAMountOfDockersSocketIsRejected, with the constraint that keeps the service off the node; and no
// directory is made in its place.
func TestAMountOfDockersSocketIsRejected(t *testing.T) {
	r := newRig(t)
	r.join()
	source := filepath.Join(t.TempDir(), "docker.sock")
	task := swarmtest.Task("a", image, "sleep")
	task.GetSpec().GetContainer().Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_BIND, Source: source, Target: "/sock", BindOptions: &swarmv1.Mount_BindOptions{Createmountpoint: true}}}
	r.Assign(task)
	if s := r.Reaches("a", swarmv1.TaskState_REJECTED); !strings.Contains(s.GetErr(), "has no dockerd") || !strings.Contains(s.GetErr(), "--constraint-add 'node.id!="+r.face.Status().NodeID+"'") {
		t.Errorf("status %v", s)
	}
	if _, err := os.Lstat(source); !os.IsNotExist(err) {
		t.Errorf("it was made: %v", err)
	}
	if err := os.WriteFile(source, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again := swarmtest.Task("b", image, "sleep")
	again.GetSpec().GetContainer().Mounts = task.GetSpec().GetContainer().GetMounts()
	r.Assign(again)
	r.Reaches("b", swarmv1.TaskState_RUNNING)
}
