package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// grantedImage builds the test's static program and pulls an image of it.
func grantedImage(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	return grantedImages(t, n, imagetest.Image{})[0]
}

// grantedImages is grantedImage with the rest of some images.
func grantedImages(t *testing.T, n *nodetest.Node, images ...imagetest.Image) (refs []string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "granted")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./testdata/granted")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	registry := imagetest.NewRegistry(t)
	for i, image := range images {
		image.Layers = [][]imagetest.File{{
			{Name: "program", Body: text, Mode: 0o755}, {Name: "script", Body: []byte("#!/program\n"), Mode: 0o755}, {Name: "text", Body: []byte("text"), Mode: 0o644},
		}}
		ref := registry.Push("granted"+strconv.Itoa(i), "latest", image.Build())
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	return refs
}

// granted is a container of that image with a document.
func granted(name, image, document string, mounts ...*runtimeapi.Mount) *runtimeapi.ContainerConfig {
	cfg := nodetest.ContainerConfig(name, image, "/program")
	cfg.Annotations = map[string]string{core.GrantAnnotation: document}
	cfg.Envs = []*runtimeapi.KeyValue{{Key: "PASSWORD", Value: []byte("secret")}}
	cfg.Mounts = mounts
	return cfg
}

// TestAProgramHoldsWhatItIsGranted: a granted program and an ordinary one share a pod. The pod's port
// is the granted program's, which neither agent nor keeper is needed for.
func TestAProgramHoldsWhatItIsGranted(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image, busybox := grantedImage(t, n), n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("mixed"))
		data := t.TempDir()
		mount := &runtimeapi.Mount{ContainerPath: "/data", HostPath: data}
		c := pod.Run(t, granted("server", image, "{log: !container_log , data: !mount /data, listen: !listen {tcp: 8080}, greeting: hello from a grant}", mount))
		sidecar := pod.Run(t, nodetest.ContainerConfig("sidecar", busybox, "sleep", "1000"))
		get := func(path, want string) {
			t.Helper()
			nodetest.Eventually(t, path+" is answered", func() bool {
				r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: sidecar.ID, Cmd: []string{"wget", "-qO-", "http://127.0.0.1:8080" + path}, Timeout: 30})
				if err == nil && r.GetExitCode() == 0 && string(r.GetStdout()) != want {
					t.Errorf("%s: %q, want %q", path, r.GetStdout(), want)
				}
				return err == nil && r.GetExitCode() == 0
			})
		}
		get("/hello", "hello from a grant")
		get("/environment", "LISTEN_PID=1 LISTEN_FDS=4 LISTEN_FDNAMES=argdata:log:data:listen")
		get("/write?text=written", "<nil>")
		if b, err := os.ReadFile(filepath.Join(data, "written")); err != nil || string(b) != "written" {
			t.Errorf("%q, %v", b, err)
		}
		if log := c.ReadLog(t); !strings.Contains(log, "stdout F logged by a grant\n") {
			t.Errorf("log %q", log)
		}
		_, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/program"}})
		if err == nil || !strings.Contains(err.Error(), "holds only its descriptors") {
			t.Errorf("exec: %v", err)
		}
		verbose, err := n.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: c.ID, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"confinement":{"landlock":`, `"seccomp":true,"no_new_privileges":true,"no_capabilities":true`, `"runtime":"grant"`} {
			if !strings.Contains(verbose.GetInfo()["info"], want) {
				t.Errorf("inspect lacks %s: %s", want, verbose.GetInfo()["info"])
			}
		}
		st, err := n.CRI.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		handlers := map[string]bool{}
		for _, h := range st.GetRuntimeHandlers() {
			handlers[h.GetName()] = true
		}
		if !handlers[core.GrantHandler] {
			t.Errorf("handlers %v", handlers)
		}
		n.Kill()
		n.KillKeeper()
		n.Up()
		get("/hello", "hello from a grant")
		n.Check()
		pod.Remove(t)
		n.Check()
	})
}

// TestWithoutAGrant: the program gets an error from the kernel, and a document that cannot be
// granted is refused with its place, before anything runs.
func TestWithoutAGrant(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := grantedImage(t, n)
		cfg := n.PodConfig("without")
		cfg.Annotations = map[string]string{core.GrantAnnotation + "/by-pod": "{greeting: x}"}
		pod := n.RunPod(t, cfg)
		c := pod.Run(t, granted("nothing", image, "{greeting: x}"))
		if st := c.WaitExited(t); st.GetExitCode() != 3 || !strings.Contains(c.ReadLog(t), "operation not permitted") {
			t.Errorf("it ended with %d: %s", st.GetExitCode(), c.ReadLog(t))
		}
		byPod := granted("by-pod", image, "")
		byPod.Annotations = nil
		c = pod.Run(t, byPod)
		if st := c.WaitExited(t); st.GetExitCode() != 3 || !strings.Contains(c.ReadLog(t), "operation not permitted") {
			t.Errorf("by the pod's annotation, it ended with %d: %s", st.GetExitCode(), c.ReadLog(t))
		}
		before := nodetest.Descriptors(t, n.Pid())
		for name, bad := range map[string]struct {
			document, program, text string
			code                    codes.Code
		}{
			"unknown mount":     {"data: !mount /etc", "/program", `line 1, column 7: Unknown volume mount "/etc"`, codes.InvalidArgument},
			"unknown tag":       {"data: !everything x", "/program", "line 1, column 7", codes.InvalidArgument},
			"not YAML":          {"data: [", "/program", "line", codes.InvalidArgument},
			"forged identity":   {"to: !client {client_owner: cli}", "/program", `line 1, column 5: Attempted to override predefined label "client_owner"`, codes.InvalidArgument},
			"a script":          {"{}", "/script", "not a program but a script", codes.Unknown},
			"not executable":    {"{}", "/text", "not a file that can be executed", codes.Unknown},
			"no such program":   {"{}", "/nowhere", "no such program", codes.Unknown},
			"out of the image":  {"{}", "/../../../../../../bin/busybox", "no such program", codes.Unknown},
			"listener taken by": {"[!listen {tcp: 8090}, !listen {tcp: 8090}]", "/program", "address already in use", codes.FailedPrecondition},
		} {
			cfg := granted(strings.ReplaceAll(name, " ", "-"), image, bad.document)
			cfg.Command = []string{bad.program}
			r, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config})
			if err == nil { // it is the start that fails, as for every program that cannot be started
				_, err = n.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: r.GetContainerId()})
			}
			if err == nil || !strings.Contains(err.Error(), bad.text) || bad.code != codes.Unknown && status.Code(err) != bad.code {
				t.Errorf("%s: %v", name, err)
			}
		}
		nodetest.Eventually(t, "no descriptor of a failed launch is left", func() bool {
			return len(nodetest.More(nodetest.Descriptors(t, n.Pid()), before)) == 0
		})
		pod.Remove(t)
		n.Check()
	})
}
