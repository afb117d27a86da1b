package checkpoint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// onePod runs a pod with one counter, and stores it in a directory.
func onePod(t *testing.T, b *bed, name string, cfg *runtimeapi.ContainerConfig) (dir string) {
	t.Helper()
	pod := b.RunPod(t, b.PodConfig(name))
	id := pod.Run(t, cfg).ID
	dir = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := b.CRI.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{PodSandboxId: pod.ID, OutputPath: dir, ContainerIds: []string{id}}); err != nil {
		t.Fatal(err)
	}
	pod.Remove(t)
	return dir
}

// restoreOne restores the pod of a directory, and starts its container.
func restoreOne(t *testing.T, b *bed, dir, name string, cfg *runtimeapi.ContainerConfig) (pod *nodetest.Pod, restored, started error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	config := b.PodConfig(name)
	made, err := b.CRI.RestorePod(ctx, &runtimeapi.RestorePodRequest{CheckpointPath: dir, Config: config, ContainerConfigs: []*runtimeapi.ContainerConfig{cfg}})
	if err != nil {
		return nil, err, nil
	}
	_, err = b.CRI.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: made.GetRestoredContainers()[0].GetContainerId()})
	return b.Pod(made.GetPodSandboxId(), config), nil, err
}

func counterConfig(b *bed, more ...string) *runtimeapi.ContainerConfig {
	cfg := nodetest.ContainerConfig("c", b.image, "sh", "-c", counter)
	cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{
		Capabilities: &runtimeapi.Capability{AddCapabilities: more}, Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	return cfg
}

// TestARestoreWithMoreRightsIsRefused: the processes of a checkpoint have rights that the restored container does not have. They do not
// run.
func TestARestoreWithMoreRightsIsRefused(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		unconfined, privileges, many := counterConfig(b), counterConfig(b), counterConfig(b, "NET_ADMIN")
		unconfined.Linux.SecurityContext.Seccomp.ProfileType = runtimeapi.SecurityProfile_Unconfined
		noNew := counterConfig(b)
		noNew.Linux.SecurityContext.NoNewPrivs = true
		for i, c := range []struct {
			name    string
			was, is *runtimeapi.ContainerConfig
			words   string
		}{
			{"a capability", many, counterConfig(b), "CAP_NET_ADMIN"},
			{"no filter", unconfined, counterConfig(b), "seccomp"},
			{"privileges", privileges, noNew, "no_new_privs"},
			{"the same", counterConfig(b), counterConfig(b), ""},
			{"fewer", counterConfig(b), counterConfig(b, "NET_ADMIN"), ""},
		} {
			dir := onePod(t, b, fmt.Sprint("was", i), c.was)
			name := fmt.Sprint("is", i)
			pod, restored, started := restoreOne(t, b, dir, name, c.is)
			log, _ := os.ReadFile(filepath.Join(b.Dir, "logs", name, "c.log"))
			err := restored
			if err == nil {
				err = started
			}
			switch {
			case c.words == "" && err != nil:
				t.Errorf("%s: %v", c.name, err)
			case c.words != "" && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.words)):
				t.Errorf("%s: %v, want %q", c.name, err, c.words)
			case c.words != "" && len(log) > 0:
				t.Errorf("%s: it ran: %s", c.name, log)
			}
			if pod != nil {
				pod.Remove(t)
			}
		}
		b.whole()
	})
}

// TestPodCheckpointsAreRefused makes calls with wrong arguments. They leave nothing.
func TestPodCheckpointsAreRefused(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t)
		pod := b.RunPod(t, b.PodConfig("p"))
		cfg := counterConfig(b)
		id, waits := pod.Run(t, cfg).ID, pod.Create(t, nodetest.ContainerConfig("waits", b.image, "true")).ID
		full := t.TempDir()
		if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		good := func(change func(*runtimeapi.CheckpointPodRequest)) *runtimeapi.CheckpointPodRequest {
			req := &runtimeapi.CheckpointPodRequest{PodSandboxId: pod.ID, OutputPath: t.TempDir(), ContainerIds: []string{id}}
			change(req)
			return req
		}
		timed, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for name, c := range map[string]struct {
			ctx  context.Context //nolint:containedctx // a case
			req  *runtimeapi.CheckpointPodRequest
			code codes.Code
		}{
			"no deadline":    {t.Context(), good(func(*runtimeapi.CheckpointPodRequest) {}), codes.InvalidArgument},
			"no container":   {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = nil }), codes.InvalidArgument},
			"one twice":      {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = []string{id, id} }), codes.InvalidArgument},
			"one that waits": {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = []string{id, waits} }), codes.FailedPrecondition},
			"nobody":         {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = []string{"nobody"} }), codes.NotFound},
			"no pod":         {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.PodSandboxId = "nobody" }), codes.NotFound},
			"relative":       {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = "here" }), codes.InvalidArgument},
			"full":           {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = full }), codes.FailedPrecondition},
			"option":         {timed, good(func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{"fast": "1"} }), codes.InvalidArgument},
		} {
			if _, err := b.CRI.CheckpointPod(c.ctx, c.req); status.Code(err) != c.code {
				t.Errorf("%s: %v, want %v", name, err, c.code)
			}
			if list, _ := os.ReadDir(c.req.GetOutputPath()); len(list) > 0 && name != "full" {
				t.Errorf("%s left %v", name, list)
			}
		}
		pod.Remove(t)
		dir := onePod(t, b, "q", cfg)
		other := counterConfig(b)
		other.Command = []string{"sh", "-c", "true"}
		named := counterConfig(b)
		named.Metadata.Name = "other"
		for name, c := range map[string]struct {
			dir  string
			cfg  *runtimeapi.ContainerConfig
			code codes.Code
		}{
			"no checkpoint":   {t.TempDir(), cfg, codes.InvalidArgument},
			"another command": {dir, other, codes.FailedPrecondition},
			"another name":    {dir, named, codes.InvalidArgument},
		} {
			if _, err, _ := restoreOne(t, b, c.dir, "r", c.cfg); status.Code(err) != c.code {
				t.Errorf("%s: %v, want %v", name, err, c.code)
			}
		}
		if list, err := b.CRI.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}); err != nil || len(list.GetItems()) > 0 {
			t.Errorf("left %v, %v", list, err)
		}
		b.whole()
	})
}

// TestAPodCheckpointIsKilledAnywhere kills agent and keeper at random moments of a checkpoint and of a restore. The pod runs on with its
// data, a checkpoint is complete or refused, and nothing of a restore is left after its removal. LONGSHORE_CHECKPOINT_KILLS is the
// number of kills.
func TestAPodCheckpointIsKilledAnywhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		rounds := 9
		if s := os.Getenv("LONGSHORE_CHECKPOINT_KILLS"); s != "" {
			if _, err := fmt.Sscan(s, &rounds); err != nil {
				t.Fatal(err)
			}
		}
		p, want := newPodBed(t, 8)
		random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
		seen := map[string]int{}
		whole := t.TempDir()
		if err := p.checkpoint(whole); err != nil {
			t.Fatal(err)
		}
		for i := range rounds {
			victim := []string{"agent", "keeper", "agent and keeper"}[i%3]
			dir := t.TempDir()
			p.killed(random, victim, func() { _ = p.checkpoint(dir) })
			if got := p.r.sum(t, p.addr); got != want {
				t.Fatalf("round %d, %s: the data is %s, want %s", i, victim, got, want)
			}
			for _, s := range p.states(p.pod.ID) {
				if s != runtimeapi.ContainerState_CONTAINER_RUNNING {
					t.Fatalf("round %d, %s: a container is %v", i, victim, s)
				}
			}
			p.whole()
			_, err := os.Stat(filepath.Join(dir, "pod.json"))
			name := fmt.Sprint("r", i)
			made, rerr := p.restore(dir, name)
			if (err == nil) != (rerr == nil) {
				t.Fatalf("round %d, %s: pod.json: %v, restore: %v", i, victim, err, rerr)
			}
			seen[fmt.Sprintf("checkpoint, %s: complete %t", victim, err == nil)]++
			if rerr == nil {
				p.Pod(made.GetPodSandboxId(), p.PodConfig(name)).Remove(t)
			}
			seen["restore, "+victim+": "+p.killedRestore(random, victim, whole, fmt.Sprint("k", i), want)]++
			p.whole()
		}
		t.Log(seen)
	})
}

// killedRestore kills the victim in a restore and returns the state of the first container.
func (p *podBed) killedRestore(random *rand.Rand, victim, dir, name, want string) (state string) {
	p.T.Helper()
	p.killed(random, victim, func() {
		made, err := p.restore(dir, name)
		if err != nil {
			return
		}
		for _, c := range made.GetRestoredContainers() {
			ctx, cancel := context.WithTimeout(p.T.Context(), time.Minute)
			_, _ = p.CRI.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
			cancel()
		}
	})
	list, err := p.CRI.ListPodSandbox(p.T.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		p.T.Fatal(err)
	}
	state = "none"
	for _, sb := range list.GetItems() {
		if sb.GetMetadata().GetName() != name {
			continue
		}
		s := p.states(sb.GetId())[0]
		if state = s.String(); s == runtimeapi.ContainerState_CONTAINER_RUNNING {
			if got := p.r.sum(p.T, p.address(sb.GetId())); got != want {
				p.T.Fatalf("%s: the restored data is %s, want %s", victim, got, want)
			}
		}
		p.Pod(sb.GetId(), p.PodConfig(name)).Remove(p.T)
	}
	return state
}

// killed kills the victim at a random moment of a call, and brings it back.
func (p *podBed) killed(random *rand.Rand, victim string, call func()) {
	p.T.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	moment := time.NewTimer(time.Duration(random.IntN(900)) * time.Millisecond)
	select {
	case <-done:
	case <-moment.C:
	}
	if strings.Contains(victim, "keeper") {
		p.KillKeeper()
	}
	if strings.Contains(victim, "agent") {
		p.Kill()
	}
	<-done
	if strings.Contains(victim, "agent") {
		p.Up()
	}
	if strings.Contains(victim, "keeper") {
		p.KeeperBack()
	}
}
