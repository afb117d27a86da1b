package endings

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/bench/server"
	"github.com/longshore/longshore/test/nodetest"
)

// containerdConfig changes the directories, and defaults that the test's machine forbids.
const containerdConfig = `version = 2
root = %[1]q
state = %[2]q
imports = []
[grpc]
address = %[3]q
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = %[4]q
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = %[5]q
[plugins."io.containerd.internal.v1.opt"]
path = %[5]q
`

// peer is a containerd; its containers die as ours do. The node has nothing but its sockets.
type peer struct {
	*nodetest.Node
	program, config, socket, image string
	cmd                            *exec.Cmd
}

func startContainerd(t *testing.T, program, ref string) *peer {
	t.Helper()
	dir := t.TempDir()
	images, err := server.ServeImages()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(images.Close)
	p := &peer{
		Node:    &nodetest.Node{Dir: dir, Cgroup: roottest.Cgroup(t)},
		program: program, config: filepath.Join(dir, "config.toml"), socket: "/run/endings/containerd.sock", image: ref,
	}
	// Its state is in the test's own /run.
	config := fmt.Sprintf(containerdConfig, filepath.Join(dir, "root"), filepath.Dir(p.socket), p.socket, images.Pause, filepath.Join(dir, "none"))
	if err := os.WriteFile(p.config, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("unix://"+p.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	p.CRI, p.Images = runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	p.up(t)
	t.Cleanup(p.kill)
	if _, err := p.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *peer) up(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(p.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	p.cmd = exec.Command(p.program, "--config", p.config) //nolint:forbidigo // it outlives the contexts of subtests
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = log, log, append(os.Environ(), "PATH="+filepath.Dir(p.program)+":"+os.Getenv("PATH"))
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	if _, err := p.CRI.Version(ctx, &runtimeapi.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
		said, _ := os.ReadFile(filepath.Join(p.Dir, "log"))
		t.Fatalf("containerd: %v\n%s", err, said)
	}
}

func (p *peer) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// killShim ends containerd's counterpart of our keeper, of one pod.
func (p *peer) killShim(t *testing.T, pod string) {
	t.Helper()
	for _, pid := range nodetest.Processes("containerd-shim-runc-v2", "") {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && strings.Contains(string(line), pod) {
			kill(t, pid)
		}
	}
}

// executed runs a program in the container, and stops that if stop is set.
func executed(stop bool, command ...string) act {
	return func(t *testing.T, n *nodetest.Node, f face, x *container) bool {
		t.Helper()
		if _, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: x.ID, Cmd: command}); err != nil {
			t.Log(err)
		}
		if stop {
			f.stop(t, syscall.SIGTERM, time.Minute)
		}
		return true
	}
}

// away ends containerd, or its shim, or both, and the container.
func (p *peer) away(containerd, shim bool) act {
	return func(t *testing.T, _ *nodetest.Node, f face, x *container) bool {
		t.Helper()
		if containerd {
			p.kill()
		}
		if c, ok := f.(*criFace); ok && shim {
			p.killShim(t, c.pod.ID)
		}
		_ = syscall.Kill(x.Pid, syscall.SIGKILL) // it may have ended with its shim
		if containerd {
			p.up(t)
		}
		return true
	}
}

func (p *peer) frozenAndStopped(t *testing.T, _ *nodetest.Node, f face, x *container) bool {
	t.Helper()
	nodetest.Lines(t, filepath.Join(filepath.Dir(p.program), "ctr"), "--address", p.socket, "-n", "k8s.io", "task", "pause", x.ID)
	f.stop(t, syscall.SIGTERM, 0)
	return true
}

// acts are those that need our command line for our own containers; nil has no like there.
func (p *peer) acts() map[string]act {
	return map[string]act{
		"exec-out-of-memory": executed(true, "/bin/tail", "/dev/zero"),
		"above-high":         executed(false, "/bin/touch", "/tmp/go"),
		"frozen":             p.frozenAndStopped,
		"frozen-killed":      nil,
		"agent-away":         p.away(true, false), "keeper-away": p.away(false, true), "agent-and-keeper-away": p.away(true, true),
		"custom-signal": stopped(0, time.Second), "real-time-signal": stopped(0, time.Second), // by TERM, which they ignore
		"sandbox-out-of-memory": nil, "node-out-of-memory": nil, "all-away": nil, "node-restarted": nil,
	}
}

// says lets one of its containers die, and returns its status; "" for a death that it cannot have.
func (p *peer) says(t *testing.T, d death) string {
	t.Helper()
	if own, ok := p.acts()[d.name]; ok {
		if d.does = own; own == nil {
			return ""
		}
	}
	f := &criFace{n: p.Node, image: p.image, adjust: func(pod *runtimeapi.PodSandboxConfig) {
		pod.Linux.CgroupParent, pod.Hostname, pod.Linux.SecurityContext.NamespaceOptions.Network = p.Cgroup, "", runtimeapi.NamespaceMode_NODE
	}}
	if !f.start(t, d.name, d) {
		return ""
	}
	defer f.remove(t)
	if d.does != nil {
		nodetest.Eventually(t, "it is up", func() bool { return strings.Contains(f.c.ReadLog(t), "up") })
		st, err := p.CRI.ContainerStatus(t.Context(), &runtimeapi.ContainerStatusRequest{ContainerId: f.c.ID, Verbose: true})
		if err != nil {
			t.Fatal(err)
		}
		x := container{ID: f.c.ID}
		if err := json.Unmarshal([]byte(st.GetInfo()["info"]), &x); err != nil || x.Pid == 0 {
			t.Fatalf("no pid: %v, %v", st.GetInfo(), err)
		}
		if !d.does(t, p.Node, f, &x) {
			f.stop(t, syscall.SIGTERM, 0)
			return ""
		}
	}
	return f.ended(t)
}

// beside prints a containerd's statuses after the same deaths, beside ours.
func beside(t *testing.T, ref string, ours map[string]string) {
	t.Helper()
	program := os.Getenv("CONTAINERD")
	if program == "" {
		t.Skip("CONTAINERD names no containerd")
	}
	p := startContainerd(t, program, ref)
	for _, d := range deaths {
		if ours[d.name] != "" {
			t.Run(d.name, func(t *testing.T) {
				if said := p.says(t, d); said == "" {
					t.Logf("longshore: %s", ours[d.name])
				} else {
					t.Logf("longshore: %s\ncontainerd: %s", ours[d.name], said)
				}
			})
		}
	}
}
