package node

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// refused asserts that err has a code and the texts.
func refused(t *testing.T, err error, code codes.Code, says ...string) {
	t.Helper()
	if err == nil {
		t.Error("it was not refused")
		return
	}
	if got := status.Code(err); got != code {
		t.Errorf("code %s, want %s: %v", got, code, err)
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("the error does not say %q: %v", s, err)
		}
	}
}

// clean asserts that records and kernel agree.
func clean(t *testing.T, n *nodetest.Node) {
	t.Helper()
	if out, err := n.CLI("check"); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// badContainer is an impossible container, and its error.
type badContainer struct {
	change func(cfg *runtimeapi.ContainerConfig)
	starts bool // it may be created, and its start is refused then
	code   codes.Code
	says   []string
}

func security(cfg *runtimeapi.ContainerConfig) *runtimeapi.LinuxContainerSecurityContext {
	if cfg.Linux.SecurityContext == nil {
		cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{}
	}
	return cfg.Linux.SecurityContext
}

func command(args ...string) func(*runtimeapi.ContainerConfig) {
	return func(cfg *runtimeapi.ContainerConfig) { cfg.Command = args }
}

func mount(host, target string) func(*runtimeapi.ContainerConfig) {
	return func(cfg *runtimeapi.ContainerConfig) {
		cfg.Mounts = []*runtimeapi.Mount{{HostPath: host, ContainerPath: target}}
	}
}

func badContainers(dir, bare string) map[string]badContainer {
	return map[string]badContainer{
		"unknown user": {
			change: func(cfg *runtimeapi.ContainerConfig) { security(cfg).RunAsUsername = "ghost" },
			code:   codes.InvalidArgument, says: []string{"user", "ghost"},
		},
		"unknown capability": {
			change: func(cfg *runtimeapi.ContainerConfig) {
				security(cfg).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_NONSENSE"}}
			},
			code: codes.InvalidArgument, says: []string{"capability", "SYS_NONSENSE"},
		},
		"missing program":             {change: command("/bin/nothing"), starts: true, code: codes.NotFound, says: []string{"/bin/nothing", "no such file"}},
		"missing program in PATH":     {change: command("nothing"), starts: true, code: codes.NotFound, says: []string{"nothing", "not found in $PATH"}},
		"directory as the program":    {change: command("/etc"), starts: true, code: codes.PermissionDenied, says: []string{"/etc", "no executable file"}},
		"program that is no program":  {change: command("/etc/passwd"), starts: true, code: codes.PermissionDenied, says: []string{"/etc/passwd", "permission denied"}},
		"file as directory target":    {change: mount(dir, "/etc/passwd"), code: codes.InvalidArgument, says: []string{"path /etc/passwd", "it is a file"}},
		"directory as file target":    {change: mount(filepath.Join(dir, "file"), "/etc"), code: codes.InvalidArgument, says: []string{"path /etc", "it is a directory"}},
		"target below a file":         {change: mount(dir, "/etc/passwd/below"), code: codes.NotFound, says: []string{"/etc/passwd/below", "not a directory"}},
		"mount source that is gone":   {change: mount(filepath.Join(dir, "gone"), "/mnt"), code: codes.InvalidArgument, says: []string{filepath.Join(dir, "gone")}},
		"empty command":               {change: func(cfg *runtimeapi.ContainerConfig) { cfg.Command, cfg.Image.Image = nil, bare }, code: codes.InvalidArgument, says: []string{"command"}},
		"working directory is a file": {change: func(cfg *runtimeapi.ContainerConfig) { cfg.WorkingDir = "/etc/passwd" }, code: codes.InvalidArgument, says: []string{"path /etc/passwd", "it is a file"}},
		"too little memory to start": {
			change: func(cfg *runtimeapi.ContainerConfig) {
				cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 16 << 10}
			},
			code: codes.ResourceExhausted, says: []string{"out of memory", "memory limit of 16384 bytes is too small"},
		},
		"huge environment": {
			change: func(cfg *runtimeapi.ContainerConfig) {
				cfg.Envs = []*runtimeapi.KeyValue{{Key: "HUGE", Value: bytes.Repeat([]byte("x"), 3<<20)}}
			},
			starts: true, code: codes.InvalidArgument, says: []string{"argument list too long"},
		},
		"image that is not there": {
			change: func(cfg *runtimeapi.ContainerConfig) { cfg.Image.Image = "127.0.0.1:1/no/such:image" },
			code:   codes.NotFound, says: []string{"127.0.0.1:1/no/such:image"},
		},
	}
}

// TestBadContainersAreToldAndLeaveNothing: the error for an impossible container names fault
// and place, no half of one stays, and the name is free.
func TestBadContainersAreToldAndLeaveNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.cri]\ncreate_mount_sources = false\n"})
		image := n.Busybox(t)
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		bare := pushTiny(t)
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: bare}}); err != nil {
			t.Fatal(err)
		}
		pod := n.RunPod(t, n.PodConfig("bad"))
		first := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		if _, err := n.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: first.ID}); err != nil {
			t.Fatal(err)
		}
		var before nodetest.Holdings
		nodetest.Eventually(t, "the first container's layer is gone", func() bool {
			before = n.Baseline(t).Lasting()
			return !slices.ContainsFunc(before["files root"], func(f string) bool { return strings.Contains(f, "/trash/") && !strings.HasSuffix(f, "/trash/") })
		})
		for name, bad := range badContainers(dir, bare) {
			t.Run(name, func(t *testing.T) {
				cfg := nodetest.ContainerConfig("c", image, "/bin/sleep", "1000")
				cfg.LogPath = strings.ReplaceAll(name, " ", "-") + ".log"
				bad.change(cfg)
				tryBad(t, n, pod, cfg, &bad)
				clean(t, n)
				good := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
				if _, err := n.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: good.ID}); err != nil {
					t.Error(err)
				}
			})
		}
		same(t, n, before)
		pod.Remove(t)
		clean(t, n)
	})
}

// tryBad asks for an impossible container, and removes its remains.
func tryBad(t *testing.T, n *nodetest.Node, pod *nodetest.Pod, cfg *runtimeapi.ContainerConfig, bad *badContainer) {
	t.Helper()
	ctx := t.Context()
	made, err := n.CRI.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config})
	if !bad.starts || err != nil { // a runtime that sees it early says so at once
		refused(t, err, bad.code, bad.says...)
		if log := pod.Container("", cfg).Log; err != nil {
			if _, err := os.Lstat(log); !os.IsNotExist(err) {
				t.Errorf("a log is left at %s: %v", log, err)
			}
		}
	} else {
		_, err := n.CRI.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.GetContainerId()})
		refused(t, err, bad.code, bad.says...)
		st, err := n.CRI.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: made.GetContainerId()})
		if err != nil {
			t.Fatal(err)
		}
		if got := st.GetStatus(); got.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || got.GetExitCode() != 128 || got.GetReason() != "StartError" || got.GetMessage() == "" {
			t.Errorf("after a start that was refused it is %v, exit code %d, %q", got.GetState(), got.GetExitCode(), got.GetMessage())
		}
	}
	if id := made.GetContainerId(); id != "" {
		if _, err := n.CRI.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Error(err)
		}
	}
	list, err := n.CRI.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list.GetContainers() {
		t.Errorf("container %s is there, %v", c.GetId(), c.GetState())
	}
}

// TestAnUnprivilegedProgramOpensItsOutput: user 65534 can open its output again, by both names.
func TestAnUnprivilegedProgramOpensItsOutput(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("nobody"))
		cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c",
			"id -u; echo x > /dev/stdout; echo y > /proc/self/fd/2; echo z > /dev/stderr; echo $?")
		security(cfg).RunAsUser = &runtimeapi.Int64Value{Value: 65534}
		security(cfg).RunAsGroup = &runtimeapi.Int64Value{Value: 65534}
		c := pod.Run(t, cfg)
		if st := c.WaitExited(t); st.GetExitCode() != 0 {
			t.Errorf("exit code %d: %s", st.GetExitCode(), st.GetMessage())
		}
		log := c.ReadLog(t)
		for _, line := range []string{" stdout F 65534\n", " stdout F x\n", " stderr F y\n", " stderr F z\n", " stdout F 0\n"} {
			if !strings.Contains(log, line) {
				t.Errorf("no %q in the log:\n%s", line, log)
			}
		}
		pod.Remove(t)
		clean(t, n)
	})
}

// pull asks for an image over CRI.
func pull(ctx context.Context, n *nodetest.Node, ref string) error {
	_, err := n.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return err
}

// forget removes an image over CRI.
func forget(t *testing.T, n *nodetest.Node, ref string) {
	t.Helper()
	if _, err := n.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Errorf("RemoveImage %s: %v", ref, err)
	}
}

// absent asserts that a refused pull has left no image.
func absent(t *testing.T, n *nodetest.Node, ref string) {
	t.Helper()
	st, err := n.Images.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil || st.GetImage() != nil {
		t.Errorf("after the refused pull: %v, %v", st.GetImage(), err)
	}
}

// tiny is a small image that no test runs.
func tiny() imagetest.Built {
	return imagetest.Image{Layers: [][]imagetest.File{{{Name: "etc/"}, {Name: "etc/tiny", Body: []byte("x")}}}}.Build()
}
