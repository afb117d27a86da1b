package cri

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// alphaSuite is a client of the API of 2017.
type alphaSuite struct {
	n *nodetest.Node
	cri1alpha.RuntimeServiceClient
	images cri1alpha.ImageServiceClient
	root   string // face.cri.alpha.root_directory
}

func newAlpha(t *testing.T) *alphaSuite {
	t.Helper()
	root := t.TempDir()
	s := &alphaSuite{root: root, n: nodetest.Start(t, nodetest.Options{Config: "[face.cri.alpha]\nenabled = true\nroot_directory = \"" + root + "\"\n"})}
	conn, err := grpc.NewClient("unix://"+filepath.Join(s.n.State, "cri.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.RuntimeServiceClient, s.images = cri1alpha.NewRuntimeServiceClient(conn), cri1alpha.NewImageServiceClient(conn)
	return s
}

// busybox pulls the test's image and returns its name.
func (s *alphaSuite) busybox(t *testing.T) string {
	t.Helper()
	ref := s.n.Busybox(t) // pulled for v1: the content exists, the name does not
	if r, err := s.images.ImageStatus(t.Context(), &cri1alpha.ImageStatusRequest{Image: &cri1alpha.ImageSpec{Image: ref}}); err != nil || r.GetImage() != nil {
		t.Errorf("the image of another owner: %v, %v", r, err)
	}
	if _, err := s.images.PullImage(t.Context(), &cri1alpha.PullImageRequest{Image: &cri1alpha.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	return ref
}

func alphaPod(name string) *cri1alpha.PodSandboxConfig {
	return &cri1alpha.PodSandboxConfig{
		Metadata: &cri1alpha.PodSandboxMetadata{Name: name, Uid: "u", Namespace: "ns", Attempt: 2}, LogDirectory: "/logs",
		Labels: map[string]string{"pod": name},
	}
}

func (s *alphaSuite) pod(t *testing.T, name string) string {
	t.Helper()
	r, err := s.RunPodSandbox(t.Context(), &cri1alpha.RunPodSandboxRequest{Config: alphaPod(name)})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetPodSandboxId()
}

func (s *alphaSuite) start(t *testing.T, pod string, cfg *cri1alpha.ContainerConfig) string {
	t.Helper()
	r, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.StartContainer(t.Context(), &cri1alpha.StartContainerRequest{ContainerId: r.GetContainerId()}); err != nil {
		t.Fatal(err)
	}
	return r.GetContainerId()
}

func (s *alphaSuite) status(t *testing.T, id string) *cri1alpha.ContainerStatus {
	t.Helper()
	r, err := s.ContainerStatus(t.Context(), &cri1alpha.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return r.GetStatus()
}

func (s *alphaSuite) ended(t *testing.T, id string) *cri1alpha.ContainerStatus {
	t.Helper()
	nodetest.Eventually(t, id+" ends", func() bool { return s.status(t, id).GetState() == cri1alpha.ContainerState_CONTAINER_EXITED })
	return s.status(t, id)
}

var stamp = regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z `)

// log is a log without its times, which must have the contract's form.
func (s *alphaSuite) log(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.root, "logs", name))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.TrimSuffix(string(b), "\n")
	if lines := strings.Count(text, "\n") + 1; len(stamp.FindAllString(text, -1)) != lines {
		t.Errorf("log without a time in a line:\n%s", text)
	}
	return stamp.ReplaceAllString(text, "")
}

const (
	logBegins = "stderr --- Logging started\n"
	logEnds   = "\nstderr --- Logging stopped: Pipe closed by container"
)

func wantCode(t *testing.T, what string, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), text) {
		t.Errorf("%s: %v, want %v with %q", what, err, code, text)
	}
}

// TestThe2017API runs ordinary pods through the API of 2017, with the paths of its log and mounts
// below a directory that is not the node's root.
func TestThe2017API(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := newAlpha(t)
		ref := s.busybox(t)
		t.Run("log and exit codes", func(t *testing.T) { s.logAndExits(t, ref) })
		t.Run("paths", func(t *testing.T) { s.paths(t, ref) })
		t.Run("stopped pods", func(t *testing.T) { s.stopped(t, ref) })
		t.Run("beside v1", func(t *testing.T) { s.besideV1(t, ref) })
		t.Run("agent and keeper die", func(t *testing.T) { s.deaths(t, ref) })
		t.Run("addresses", s.addresses)
		s.n.Check()
	})
}

func (s *alphaSuite) config(name, ref string, command ...string) *cri1alpha.ContainerConfig {
	return &cri1alpha.ContainerConfig{
		Metadata: &cri1alpha.ContainerMetadata{Name: name, Attempt: 1}, Image: &cri1alpha.ImageSpec{Image: ref}, Command: command, LogPath: name + ".log",
	}
}

func (s *alphaSuite) logAndExits(t *testing.T, ref string) {
	pod := s.pod(t, "logs")
	r, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: s.config("early", ref, "echo")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.StartContainer(t.Context(), &cri1alpha.StartContainerRequest{ContainerId: r.GetContainerId()})
	wantCode(t, "start without a log directory", err, codes.FailedPrecondition, "/logs does not exist")
	logs := filepath.Join(s.root, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(logs, "out.log"), []byte("of an earlier one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := s.start(t, pod, s.config("out", ref, "sh", "-c", "echo one; echo two >&2; printf three; exit 7"))
	if st := s.ended(t, id); st.GetExitCode() != 7 || st.GetLogPath() != "/logs/out.log" {
		t.Errorf("%v", st)
	}
	lines := strings.Split(s.log(t, "out.log"), "\n")
	slices.Sort(lines) // the two streams are two pipes
	if want := []string{"stderr two", "stdout one", "stdout three"}; !slices.Equal(lines, want) {
		t.Errorf("log %q", lines)
	}
	id = s.start(t, pod, s.config("new", ref, "sleep", "1000"))
	if st, err := os.Stat(filepath.Join(logs, "new.log")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", st, err)
	}
	if _, err := s.StopContainer(t.Context(), &cri1alpha.StopContainerRequest{ContainerId: id}); err != nil {
		t.Error(err)
	}
	if st := s.ended(t, id); st.GetExitCode() != 9 {
		t.Errorf("killed, it ended with %d", st.GetExitCode())
	}
	if _, err := s.StartContainer(t.Context(), &cri1alpha.StartContainerRequest{ContainerId: id}); err != nil {
		t.Errorf("start of an ended container: %v", err)
	}
	s.remove(t, pod)
}

func (s *alphaSuite) remove(t *testing.T, pod string) {
	t.Helper()
	for range 2 {
		if _, err := s.StopPodSandbox(t.Context(), &cri1alpha.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Error(err)
		}
	}
	for range 2 {
		if _, err := s.RemovePodSandbox(t.Context(), &cri1alpha.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.StopPodSandbox(t.Context(), &cri1alpha.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Errorf("stop of a pod that is gone: %v", err)
	}
}

// paths: a mount is below the root directory, and no link leads out of it.
func (s *alphaSuite) paths(t *testing.T, ref string) {
	pod := s.pod(t, "paths")
	defer s.remove(t, pod)
	secret := filepath.Join(t.TempDir(), "secret")
	for path, text := range map[string]string{filepath.Join(s.root, "data", "file"): "inside", secret: "outside", filepath.Join(s.root, "etc", "file"): "below"} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"in": "data", "absolute": "/etc", "out": filepath.Dir(secret), "up": "../../../../../../" + filepath.Dir(secret)} {
		if err := os.Symlink(to, filepath.Join(s.root, link)); err != nil {
			t.Fatal(err)
		}
	}
	cfg := s.config("reads", ref, "sh", "-c", "cat /a/file /b/file /c/file; echo x > /a/written; echo x > /b/written")
	cfg.Mounts = []*cri1alpha.Mount{
		{HostPath: "/data", ContainerPath: "/a", Readonly: true}, {HostPath: "/in", ContainerPath: "/b"}, {HostPath: "/absolute", ContainerPath: "/c"},
	}
	id := s.start(t, pod, cfg)
	st := s.ended(t, id)
	if got := s.log(t, "reads.log"); !strings.Contains(got, "insideinsidebelow") || !strings.Contains(got, "Read-only file system") {
		t.Errorf("log:\n%s", got)
	}
	if len(st.GetMounts()) != 3 || st.GetMounts()[1].GetHostPath() != "/in" {
		t.Errorf("mounts %v", st.GetMounts())
	}
	if _, err := os.Stat(filepath.Join(s.root, "data", "written")); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/out", "/up", "data"} {
		cfg := s.config("refused", ref, "true")
		cfg.Mounts = []*cri1alpha.Mount{{HostPath: path, ContainerPath: "/a"}}
		_, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: cfg})
		wantCode(t, "mount of "+path, err, codes.InvalidArgument, "host path")
	}
	if err := os.Symlink("/nothing", filepath.Join(s.root, "dangling")); err != nil {
		t.Fatal(err)
	}
	cfg = s.config("dangling", ref, "true")
	cfg.Mounts = []*cri1alpha.Mount{{HostPath: "/dangling/x", ContainerPath: "/a"}}
	_, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: cfg})
	wantCode(t, "mount of a link to nothing", err, codes.InvalidArgument, "host path")
	cfg = s.config("made", ref, "true")
	cfg.Mounts = []*cri1alpha.Mount{{HostPath: "/made/../made/here", ContainerPath: "/a"}}
	s.ended(t, s.start(t, pod, cfg))
	if st, err := os.Stat(filepath.Join(s.root, "made", "here")); err != nil || !st.IsDir() {
		t.Errorf("%v, %v", st, err)
	}
	for _, dir := range []string{"/out", "/up"} {
		with := alphaPod("paths")
		with.LogDirectory = dir
		r, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: s.config("log-"+dir[1:], ref, "echo", "x"), SandboxConfig: with})
		if err == nil {
			_, err = s.StartContainer(t.Context(), &cri1alpha.StartContainerRequest{ContainerId: r.GetContainerId()})
		}
		wantCode(t, "log in "+dir, err, codes.FailedPrecondition, "links are not followed")
	}
	// A path of the node's own is one below the directory, too.
	cfg = s.config("outside", ref, "sh", "-c", "cd /a && echo entered")
	cfg.Mounts = []*cri1alpha.Mount{{HostPath: "/../.." + secret, ContainerPath: "/a"}}
	s.ended(t, s.start(t, pod, cfg))
	if st, err := os.Stat(filepath.Join(s.root, secret)); err != nil || !st.IsDir() || s.log(t, "outside.log") != "stdout entered" {
		t.Errorf("%v, %v, %s", st, err, s.log(t, "outside.log"))
	}
	if list, err := os.ReadDir(filepath.Dir(secret)); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
}

// stopped pods take no containers, and say so with their id.
func (s *alphaSuite) stopped(t *testing.T, ref string) {
	pod := s.pod(t, "stopped")
	created, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: s.config("created", ref, "true")})
	if err != nil {
		t.Fatal(err)
	}
	running := s.start(t, pod, s.config("running", ref, "sleep", "1000"))
	if _, err := s.StopPodSandbox(t.Context(), &cri1alpha.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if st := s.status(t, running); st.GetState() != cri1alpha.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 9 {
		t.Errorf("%v", st)
	}
	_, err = s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: s.config("late", ref, "true")})
	wantCode(t, "create", err, codes.FailedPrecondition, pod+" has already been terminated")
	_, err = s.StartContainer(t.Context(), &cri1alpha.StartContainerRequest{ContainerId: created.GetContainerId()})
	wantCode(t, "start", err, codes.FailedPrecondition, pod+" has already been terminated")
	r, err := s.PodSandboxStatus(t.Context(), &cri1alpha.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || r.GetStatus().GetState() != cri1alpha.PodSandboxState_SANDBOX_NOTREADY || r.GetStatus().GetNetwork().GetIp() != "" {
		t.Errorf("%v, %v", r, err)
	}
	s.remove(t, pod)
	_, err = s.PodSandboxStatus(t.Context(), &cri1alpha.PodSandboxStatusRequest{PodSandboxId: pod})
	wantCode(t, "status", err, codes.NotFound, pod)
}

// besideV1: neither API sees the other's pods, and their streams do not mix.
func (s *alphaSuite) besideV1(t *testing.T, ref string) {
	pod := s.pod(t, "beside")
	id := s.start(t, pod, s.config("c", ref, "sleep", "1000"))
	other := s.n.RunPod(t, s.n.PodConfig("v1"))
	old, err := s.n.CRI.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	if err != nil || len(old.GetItems()) != 1 || old.GetItems()[0].GetId() != other.ID {
		t.Errorf("v1 sees %v, %v", old.GetItems(), err)
	}
	mine, err := s.ListPodSandbox(t.Context(), &cri1alpha.ListPodSandboxRequest{})
	if err != nil || len(mine.GetItems()) != 1 || mine.GetItems()[0].GetId() != pod {
		t.Errorf("the API of 2017 sees %v, %v", mine.GetItems(), err)
	}
	_, err = s.n.CRI.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
	wantCode(t, "v1 asks for it", err, codes.NotFound, "")
	if r, err := s.ExecSync(t.Context(), &cri1alpha.ExecSyncRequest{ContainerId: id, Cmd: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}); err != nil ||
		string(r.GetStdout()) != "out\n" || string(r.GetStderr()) != "err\n" || r.GetExitCode() != 3 {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := s.UpdateContainerResources(t.Context(), &cri1alpha.UpdateContainerResourcesRequest{ContainerId: id, Linux: &cri1alpha.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}}); err != nil {
		t.Error(err)
	}
	st, err := s.ListContainerStats(t.Context(), &cri1alpha.ListContainerStatsRequest{Filter: &cri1alpha.ContainerStatsFilter{PodSandboxId: pod}})
	if err != nil || len(st.GetStats()) != 1 || st.GetStats()[0].GetAttributes().GetId() != id || st.GetStats()[0].GetMemory().GetWorkingSetBytes().GetValue() == 0 {
		t.Errorf("%v, %v", st, err)
	}
	other.Remove(t)
	s.remove(t, pod)
}

// deaths: containers and their logs continue.
func (s *alphaSuite) deaths(t *testing.T, ref string) {
	pod := s.pod(t, "deaths")
	id := s.start(t, pod, s.config("long", ref, "sh", "-c", "echo before; while ! test -e /data/go; do sleep 0.1; done; echo after", "sh"))
	cfg := s.config("waits", ref, "sh", "-c", "echo before; while ! test -e /data/go; do sleep 0.1; done; echo after")
	cfg.Mounts = []*cri1alpha.Mount{{HostPath: "/data", ContainerPath: "/data"}}
	waits := s.start(t, pod, cfg)
	s.n.Kill()
	s.n.KillKeeper()
	if err := os.WriteFile(filepath.Join(s.root, "data", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s.n.Up()
	if st := s.ended(t, waits); st.GetExitCode() != 0 {
		t.Errorf("%v", st)
	}
	if again := s.pod(t, "deaths"); again != pod {
		t.Errorf("the pod is %s, then %s", pod, again)
	}
	if got, want := s.log(t, "waits.log"), "stdout before\nstdout after"; got != want {
		t.Errorf("log:\n%s", got)
	}
	if st := s.status(t, id); st.GetState() != cri1alpha.ContainerState_CONTAINER_RUNNING {
		t.Errorf("%v", st)
	}
	s.remove(t, pod)
}

// addresses come of the range that was set last, and run out.
func (s *alphaSuite) addresses(t *testing.T) {
	set := func(cidr string) error {
		_, err := s.UpdateRuntimeConfig(t.Context(), &cri1alpha.UpdateRuntimeConfigRequest{RuntimeConfig: &cri1alpha.RuntimeConfig{NetworkConfig: &cri1alpha.NetworkConfig{PodCidr: cidr}}})
		return err
	}
	if err := set("10.77.5.9/30"); err != nil { // network, bridge, one pod, broadcast
		t.Fatal(err)
	}
	for _, bad := range []string{"", "10.77.5.0", "10.77.5.0/33", "fd00::/64", "nothing"} {
		wantCode(t, "range "+bad, set(bad), codes.InvalidArgument, "Failed to parse IP range")
	}
	pod := s.pod(t, "first")
	r, err := s.PodSandboxStatus(t.Context(), &cri1alpha.PodSandboxStatusRequest{PodSandboxId: pod})
	if err != nil || r.GetStatus().GetNetwork().GetIp() != "10.77.5.10" {
		t.Errorf("%v, %v", r, err)
	}
	_, err = s.RunPodSandbox(t.Context(), &cri1alpha.RunPodSandboxRequest{Config: alphaPod("second")})
	wantCode(t, "one more", err, codes.ResourceExhausted, "No unused IP addresses available")
	s.remove(t, pod)
}

// TestArgdata: a program, imported by its digest, gets its descriptors by argdata, in a pod with an
// ordinary container.
func TestArgdata(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := newAlpha(t)
		ref := s.busybox(t)
		for _, dir := range []string{"logs", "data"} {
			if err := os.Mkdir(filepath.Join(s.root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		name, file := s.program(t)
		pod := s.pod(t, "granted")
		cfg := &cri1alpha.ContainerConfig{
			Metadata: &cri1alpha.ContainerMetadata{Name: "server"}, Image: &cri1alpha.ImageSpec{Image: name}, LogPath: "server.log",
			Annotations: map[string]string{"mine": "kept"}, Envs: []*cri1alpha.KeyValue{{Key: "PASSWORD", Value: "secret"}},
			Mounts:  []*cri1alpha.Mount{{HostPath: "/data", ContainerPath: "/data"}},
			Argdata: "{log: !container_log , data: !mount /data, listen: !listen {tcp: 8080}, greeting: hello from argdata}",
		}
		id := s.start(t, pod, cfg)
		sidecar := s.start(t, pod, s.config("sidecar", ref, "sleep", "1000"))
		p, err := s.PodSandboxStatus(t.Context(), &cri1alpha.PodSandboxStatusRequest{PodSandboxId: pod})
		if err != nil {
			t.Fatal(err)
		}
		get := func(path string) (text string) {
			nodetest.Eventually(t, path+" is answered", func() bool {
				resp, err := http.Get("http://" + net.JoinHostPort(p.GetStatus().GetNetwork().GetIp(), "8080") + path) //nolint:noctx // on this machine
				if err != nil {
					return false
				}
				b, err := io.ReadAll(resp.Body)
				text = string(b)
				return err == nil && resp.Body.Close() == nil
			})
			return text
		}
		if got := get("/hello"); got != "hello from argdata" {
			t.Errorf("%q", got)
		}
		if got := get("/environment"); got != "LISTEN_PID=1 LISTEN_FDS=4 LISTEN_FDNAMES=argdata:log:data:listen" {
			t.Errorf("environment %q", got)
		}
		get("/write?text=written")
		if b, err := os.ReadFile(filepath.Join(s.root, "data", "written")); err != nil || string(b) != "written" {
			t.Errorf("%q, %v", b, err)
		}
		if st := s.status(t, id); len(st.GetAnnotations()) != 1 || st.GetAnnotations()["mine"] != "kept" || st.GetImageRef() != name {
			t.Errorf("%v", st)
		}
		_, err = s.ExecSync(t.Context(), &cri1alpha.ExecSyncRequest{ContainerId: id, Cmd: []string{"/x"}})
		wantCode(t, "exec", err, codes.FailedPrecondition, "holds only its descriptors")
		if r, err := s.ExecSync(t.Context(), &cri1alpha.ExecSyncRequest{ContainerId: sidecar, Cmd: []string{"wget", "-qO-", "http://127.0.0.1:8080/hello"}}); err != nil || string(r.GetStdout()) != "hello from argdata" {
			t.Errorf("%v, %v", r, err)
		}
		if _, err := s.StopContainer(t.Context(), &cri1alpha.StopContainerRequest{ContainerId: id, Timeout: 0}); err != nil {
			t.Error(err)
		}
		// The last line is written once, despite the agent's death.
		s.n.Kill()
		s.n.Up()
		if st := s.ended(t, id); st.GetExitCode() != 9 {
			t.Errorf("%v", st)
		}
		if got := s.log(t, "server.log"); got != logBegins+"stdout logged by a grant"+logEnds {
			t.Errorf("log:\n%s", got)
		}

		nothing := &cri1alpha.ContainerConfig{Metadata: &cri1alpha.ContainerMetadata{Name: "nothing"}, Image: &cri1alpha.ImageSpec{Image: name}, LogPath: "nothing.log", Argdata: "{greeting: x}"}
		if st := s.ended(t, s.start(t, pod, nothing)); st.GetExitCode() != 3 || !strings.Contains(s.log(t, "nothing.log"), "operation not permitted") {
			t.Errorf("without a grant: %v", st)
		}
		gone := s.start(t, pod, &cri1alpha.ContainerConfig{
			Metadata: &cri1alpha.ContainerMetadata{Name: "gone"}, Image: &cri1alpha.ImageSpec{Image: name}, LogPath: "gone.log", Argdata: "{listen: !listen {tcp: 8081}}",
		})
		if _, err := s.RemoveContainer(t.Context(), &cri1alpha.RemoveContainerRequest{ContainerId: gone}); err != nil {
			t.Error(err)
		}
		if got := s.log(t, "gone.log"); got != strings.TrimSuffix(logBegins, "\n")+logEnds {
			t.Errorf("log of a removed container:\n%s", got)
		}
		refuse := func(what, argdata, image string, code codes.Code, text string) {
			t.Helper()
			_, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: &cri1alpha.ContainerConfig{
				Metadata: &cri1alpha.ContainerMetadata{Name: "refused"}, Image: &cri1alpha.ImageSpec{Image: image}, Argdata: argdata,
			}})
			wantCode(t, what, err, code, text)
		}
		refuse("a mount of nothing", "a: !mount /none", name, codes.InvalidArgument, `line 1, column 4: Unknown volume mount "/none"`)
		refuse("an unknown tag", "a: !unknown x", name, codes.InvalidArgument, "line 1, column 4")
		refuse("labels that are numbers", "a: !server {k: 1}", name, codes.InvalidArgument, "Switchboard label keys and values must be strings")
		refuse("a program without argdata", "", name, codes.InvalidArgument, "needs argdata")
		refuse("no such program", "null", "sha256:"+strings.Repeat("0", 64), codes.NotFound, "")

		created, err := s.CreateContainer(t.Context(), &cri1alpha.CreateContainerRequest{PodSandboxId: pod, Config: &cri1alpha.ContainerConfig{
			Metadata: &cri1alpha.ContainerMetadata{Name: "changed"}, Image: &cri1alpha.ImageSpec{Image: name}, Argdata: "null",
		}})
		if err != nil {
			t.Fatal(err)
		}
		forge(t, file)
		_, err = s.StartContainer(t.Context(), &cri1alpha.StartContainerRequest{ContainerId: created.GetContainerId()})
		wantCode(t, "start of a program that is another one now", err, codes.DataLoss, "its content is that of sha256:")
		refuse("a program that is another one now", "null", name, codes.DataLoss, "its content is that of sha256:")
		if _, err := s.images.RemoveImage(t.Context(), &cri1alpha.RemoveImageRequest{Image: &cri1alpha.ImageSpec{Image: name}}); err != nil {
			t.Error(err)
		}
		if r, err := s.images.ImageStatus(t.Context(), &cri1alpha.ImageStatusRequest{Image: &cri1alpha.ImageSpec{Image: name}}); err != nil || r.GetImage() != nil {
			t.Errorf("%v, %v", r, err)
		}
		s.remove(t, pod)
		s.n.Check()
	})
}

// forge puts another content under a program's name.
func forge(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(b, 0), 0o555); err != nil {
		t.Fatal(err)
	}
}

// program builds the static program of the tests, imports it, and returns its name and its file.
func (s *alphaSuite) program(t *testing.T) (name, file string) {
	t.Helper()
	built := filepath.Join(t.TempDir(), "granted")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", built, "../node/testdata/granted")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	b, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	name = "sha256:" + hex.EncodeToString(sum[:])
	out, err := s.n.CLI("import", "--program", built)
	if err != nil || strings.TrimSpace(out) != name {
		t.Fatalf("import: %s, %v", out, err)
	}
	list, err := s.images.ListImages(t.Context(), &cri1alpha.ListImagesRequest{Filter: &cri1alpha.ImageFilter{Image: &cri1alpha.ImageSpec{Image: name}}})
	if err != nil || len(list.GetImages()) != 1 || list.GetImages()[0].GetId() != name || list.GetImages()[0].GetSize() != uint64(len(b)) {
		t.Errorf("%v, %v", list, err)
	}
	_, err = s.images.PullImage(t.Context(), &cri1alpha.PullImageRequest{Image: &cri1alpha.ImageSpec{Image: name}})
	wantCode(t, "pull", err, codes.InvalidArgument, "Images can only be pulled by URL, not by checksum")
	return name, filepath.Join(s.n.Root, "programs", name)
}
