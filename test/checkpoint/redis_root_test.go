package checkpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
	"github.com/longshore/longshore/test/nodetest"
)

// redisMiB is the size of Redis' data.
const redisMiB = 64

// redis is Redis of the machine or of LONGSHORE_SLEEPERS_DIR, with the directories that its container gets from the host.
type redis struct {
	sleeptest.Program
	argv   []string
	mounts map[string]string // by their sources
}

func newRedis(t *testing.T) redis {
	t.Helper()
	all := sleeptest.Programs()
	r := redis{Program: all[slices.IndexFunc(all, func(p sleeptest.Program) bool { return p.Name == "redis" })], mounts: map[string]string{}}
	var err error
	if r.argv, err = r.Argv(sleeptest.Launch{Dir: "/tmp", Addr: "0.0.0.0:6379"}); err != nil {
		t.Skipf("no Redis: %v", err)
	}
	for _, dir := range []string{"/usr", "/lib", "/lib64"} {
		if path, err := filepath.EvalSymlinks(dir); err == nil {
			r.mounts[path] = dir
		}
	}
	if dir := os.Getenv(sleeptest.DirEnv); dir != "" {
		r.mounts[dir] = dir
	}
	return r
}

// flags are the flags of longshore run for the mounts.
func (r redis) flags() (list []string) {
	for from, to := range r.mounts {
		list = append(list, "-v", from+":"+to+":ro")
	}
	return list
}

// fill connects to a Redis and gives it its data.
func (r redis) fill(t *testing.T, addr string, mib int) sleeptest.Client {
	t.Helper()
	var c sleeptest.Client
	roottest.Eventually(t, "Redis answers", func() (ok bool) {
		var err error
		c, err = r.Connect(t.Context(), addr, mib)
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// sum makes a connection and returns the digest of the data.
func (r redis) sum(t *testing.T, addr string) (sum string) {
	t.Helper()
	roottest.Eventually(t, "Redis answers at "+addr, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := r.Dial(ctx, addr)
		if err != nil {
			return false
		}
		defer func() { _ = c.Close() }()
		sum, err = c.Sum(ctx)
		return err == nil
	})
	return sum
}

func digest(t *testing.T, c sleeptest.Client) string {
	t.Helper()
	sum, err := c.Sum(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestARedisContinues stores a Redis with 64 MiB of data. It continues with the same data in the same container, with its connections
// kept and closed, and from the tar in a container of another node, which pulls the image.
func TestARedisContinues(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodetest.Bridge(t, "nodes", "192.0.2.1/24")
		link := nodetest.Plug(t, "nodes", "other", "192.0.2.2/24")
		image, certs := nodetest.ServeBusybox(t, "192.0.2.1")
		o := nodetest.Options{Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n", certs)}
		r, b := newRedis(t), bedOf(t, o)
		o.NetNS = link.NetNS()
		other := bedOf(t, o)
		b.Must(append(append([]string{"run", "-d", "--name", "r", "-p", "6379:6379"}, r.flags()...), append([]string{image}, r.argv...)...)...)
		addr := b.Find("r").GetAddresses()[0] + ":6379"
		c := r.fill(t, addr, redisMiB)
		want := digest(t, c)
		if out, err := b.CLI("checkpoint", "r"); err == nil || !strings.Contains(err.Error(), "tcp") && !strings.Contains(err.Error(), "connected") {
			t.Errorf("a checkpoint with a connection: %s, %v", out, err)
		}
		if got := digest(t, c); got != want {
			t.Errorf("after the refusal the data is %s, want %s", got, want)
		}

		begun := time.Now()
		b.Must("checkpoint", "--tcp-established", "r")
		stored := time.Since(begun)
		begun = time.Now()
		b.Must("restore", "r")
		t.Logf("stored in %v, restored in %v", stored, time.Since(begun))
		if got := digest(t, c); got != want { // by the connection of before
			t.Errorf("restored, its data is %s, want %s", got, want)
		}

		b.Must("checkpoint", "--tcp-close", "r")
		b.Must("restore", "r")
		if got := r.sum(t, addr); got != want {
			t.Errorf("restored without its connections, its data is %s, want %s", got, want)
		}
		if sum, err := c.Sum(t.Context()); err == nil {
			t.Errorf("its connection was closed, and has answered %s", sum)
		}

		file := filepath.Join(t.TempDir(), "r.tar")
		b.Must("checkpoint", "--leave-running", "--export", file, "r")
		b.shows(file)
		other.Must("restore", "--name", "r2", file)
		if got := r.sum(t, "192.0.2.2:6379"); got != want {
			t.Errorf("on another node its data is %s, want %s", got, want)
		}
		if got := r.sum(t, addr); got != want {
			t.Errorf("left running, its data is %s, want %s", got, want)
		}
		other.Must("rm", "-f", "r2")
		other.whole()
		b.Must("rm", "-f", "r")
		b.whole()
	})
}

// podBed has a pod with a Redis and a counter.
type podBed struct {
	*bed
	r       redis
	configs []*runtimeapi.ContainerConfig
	pod     *nodetest.Pod
	ids     []string
	addr    string
}

func newPodBed(t *testing.T, mib int) (*podBed, string) {
	t.Helper()
	p := &podBed{bed: newBed(t), r: newRedis(t)}
	cfg := nodetest.ContainerConfig("redis", p.image, p.r.argv...)
	for from, to := range p.r.mounts {
		cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{HostPath: from, ContainerPath: to, Readonly: true})
	}
	p.configs = []*runtimeapi.ContainerConfig{cfg, nodetest.ContainerConfig("counter", p.image, "sh", "-c", counter)}
	p.pod = p.RunPod(t, p.PodConfig("p"))
	for _, cfg := range p.configs {
		p.ids = append(p.ids, p.pod.Run(t, cfg).ID)
	}
	p.addr = p.address(p.pod.ID)
	c := p.r.fill(t, p.addr, mib)
	want := digest(t, c)
	_ = c.Close()
	return p, want
}

func (p *podBed) address(id string) string {
	p.T.Helper()
	st, err := p.CRI.PodSandboxStatus(p.T.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
	if err != nil {
		p.T.Fatal(err)
	}
	return st.GetStatus().GetNetwork().GetIp() + ":6379"
}

// checkpoint stores the pod in a directory.
func (p *podBed) checkpoint(dir string) error {
	ctx, cancel := context.WithTimeout(p.T.Context(), 2*time.Minute)
	defer cancel()
	_, err := p.CRI.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{PodSandboxId: p.pod.ID, OutputPath: dir, ContainerIds: p.ids, Options: map[string]string{"tcp": "close"}})
	return err
}

// restore makes a pod of a directory.
func (p *podBed) restore(dir, name string) (*runtimeapi.RestorePodResponse, error) {
	ctx, cancel := context.WithTimeout(p.T.Context(), 2*time.Minute)
	defer cancel()
	return p.CRI.RestorePod(ctx, &runtimeapi.RestorePodRequest{CheckpointPath: dir, Config: p.PodConfig(name), ContainerConfigs: p.configs})
}

// states returns the states of a pod's containers in the order of configs.
func (p *podBed) states(pod string) []runtimeapi.ContainerState {
	p.T.Helper()
	list, err := p.CRI.ListContainers(p.T.Context(), &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{PodSandboxId: pod}})
	if err != nil {
		p.T.Fatal(err)
	}
	states := make([]runtimeapi.ContainerState, len(p.configs))
	for i, cfg := range p.configs {
		for _, c := range list.GetContainers() {
			if c.GetMetadata().GetName() == cfg.GetMetadata().GetName() {
				states[i] = c.GetState()
			}
		}
	}
	return states
}

// TestAPodContinues stores a pod with a Redis of 64 MiB, removes it, and restores it as another pod.
func TestAPodContinues(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p, want := newPodBed(t, redisMiB)
		dir := t.TempDir()
		begun := time.Now()
		if err := p.checkpoint(dir); err != nil {
			t.Fatal(err)
		}
		t.Logf("stored in %v", time.Since(begun))
		running, created := runtimeapi.ContainerState_CONTAINER_RUNNING, runtimeapi.ContainerState_CONTAINER_CREATED
		if got := p.states(p.pod.ID); !slices.Equal(got, []runtimeapi.ContainerState{running, running}) {
			t.Errorf("after the checkpoint: %v", got)
		}
		p.shows(filepath.Join(dir, "container-0.tar"))
		p.pod.Remove(t)
		begun = time.Now()
		made, err := p.restore(dir, "q")
		if err != nil {
			t.Fatal(err)
		}
		if got := p.states(made.GetPodSandboxId()); !slices.Equal(got, []runtimeapi.ContainerState{created, created}) {
			t.Errorf("restored: %v", got)
		}
		for i, c := range made.GetRestoredContainers() {
			if c.GetName() != p.configs[i].GetMetadata().GetName() {
				t.Errorf("container %d is %v", i, c)
			}
			if _, err := p.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("restored and started in %v", time.Since(begun))
		if got := p.states(made.GetPodSandboxId()); !slices.Equal(got, []runtimeapi.ContainerState{running, running}) {
			t.Errorf("started: %v", got)
		}
		if got := p.r.sum(t, p.address(made.GetPodSandboxId())); got != want {
			t.Errorf("restored, its data is %s, want %s", got, want)
		}
		log := filepath.Join(p.Dir, "logs", "q", "counter.log")
		first := ""
		roottest.Eventually(t, "the counter counts", func() bool {
			b, _ := os.ReadFile(log)
			f := strings.Fields(string(b))
			if len(f) >= 4 {
				first = f[3]
			}
			return first != ""
		})
		if first == "1" {
			t.Error("the counter began anew")
		}
		p.Must("check")
		q := p.Pod(made.GetPodSandboxId(), p.PodConfig("q"))
		q.Remove(t)
		p.whole()
	})
}
