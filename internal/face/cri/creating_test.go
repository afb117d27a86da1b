package cri

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/roottest"
)

// slowNetwork delays each Setup, as a plugin that does not answer does.
type slowNetwork struct {
	core.Network
	entered chan core.ID  // each Setup's sandbox
	answers chan struct{} // lets one Setup continue

	hangs   atomic.Bool   // each Teardown waits for the end of its call, as with a plugin that hangs
	leaving chan struct{} // each Teardown that hangs
}

func (n *slowNetwork) Teardown(ctx context.Context, req core.NetworkRequest) error {
	if !n.hangs.Load() {
		return n.Network.Teardown(ctx, req)
	}
	n.leaving <- struct{}{}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (n *slowNetwork) Setup(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	n.entered <- req.Sandbox
	select {
	case <-n.answers:
		return n.Network.Setup(ctx, req)
	case <-ctx.Done():
		return core.NetworkStatus{}, context.Cause(ctx)
	}
}

// slowNode returns a node with a slow network.
func slowNode(t *testing.T) (*testNode, *slowNetwork) {
	t.Helper()
	n := &testNode{Node: enginetest.Fakes(t), logs: t.TempDir()}
	slow := &slowNetwork{Network: n.Options.Network, entered: make(chan core.ID, 10), answers: make(chan struct{}, 10), leaving: make(chan struct{}, 10)}
	n.Options.Network = slow
	n.Options.Runtimes = []core.Runtime{bundles{enginetest.Bundles{Runtime: n.Runtime}}}
	n.Start()
	n.serve(t)
	return n, slow
}

type ran struct {
	id  string
	err error
}

// run calls RunPodSandbox in the background.
func (n *testNode) run(ctx context.Context, cfg *v1.PodSandboxConfig) <-chan ran {
	done := make(chan ran, 1)
	go func() {
		resp, err := n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: cfg})
		done <- ran{resp.GetPodSandboxId(), err}
	}()
	return done
}

// states are the listed sandboxes with their states.
func (n *testNode) states(t *testing.T) map[string]v1.PodSandboxState {
	t.Helper()
	list, err := n.ListPodSandbox(t.Context(), &v1.ListPodSandboxRequest{})
	if err != nil {
		t.Fatal(err)
	}
	states := map[string]v1.PodSandboxState{}
	for _, sb := range list.GetItems() {
		states[sb.GetId()] = sb.GetState()
	}
	return states
}

func TestASandboxThatIsBeingCreatedIsListedAsNotReady(t *testing.T) {
	n, slow := slowNode(t)
	done := n.run(t.Context(), n.podConfig("web"))
	id := string(<-slow.entered)
	if got := n.states(t); len(got) != 1 || got[id] != v1.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("listed: %v", got)
	}
	st, err := n.PodSandboxStatus(t.Context(), &v1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil || st.GetStatus().GetState() != v1.PodSandboxState_SANDBOX_NOTREADY || st.GetStatus().GetMetadata().GetName() != "web" {
		t.Errorf("status %v, %v", st, err)
	}
	_, err = n.CreateContainer(t.Context(), &v1.CreateContainerRequest{
		PodSandboxId: id, SandboxConfig: n.podConfig("web"),
		Config: &v1.ContainerConfig{Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: "redis:7"}},
	})
	wantCode(t, "create a container in it", err, codes.FailedPrecondition)
	_, err = n.PodSandboxStats(t.Context(), &v1.PodSandboxStatsRequest{PodSandboxId: id})
	wantCode(t, "its stats", err, codes.FailedPrecondition)
	_, err = n.PortForward(t.Context(), &v1.PortForwardRequest{PodSandboxId: id, Port: []int32{80}})
	wantCode(t, "forward to it", err, codes.FailedPrecondition)
	slow.answers <- struct{}{}
	if r := <-done; r.err != nil || r.id != id {
		t.Errorf("%+v", r)
	}
	if got := n.states(t); got[id] != v1.PodSandboxState_SANDBOX_READY {
		t.Errorf("listed: %v", got)
	}
}

func TestARetryWaitsForTheFirstCall(t *testing.T) {
	n, slow := slowNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	first := n.run(ctx, n.podConfig("web"))
	id := string(<-slow.entered)
	retry := n.run(t.Context(), n.podConfig("web"))
	short, end := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer end()
	wantCode(t, "a retry that is given up", (<-n.run(short, n.podConfig("web"))).err, codes.DeadlineExceeded)
	slow.answers <- struct{}{}
	if r := <-first; r.err != nil || r.id != id {
		t.Errorf("first: %+v", r)
	}
	if r := <-retry; r.err != nil || r.id != id {
		t.Errorf("retry: %+v", r)
	}

	// Cancel the first call: the retry waits for its rollback, and creates the sandbox.
	first = n.run(ctx, n.podConfig("db"))
	id = string(<-slow.entered)
	retry = n.run(t.Context(), n.podConfig("db"))
	cancel()
	<-first
	second := string(<-slow.entered)
	slow.answers <- struct{}{}
	if r := <-retry; r.err != nil || r.id != second || r.id == id {
		t.Errorf("retry: %+v, the first was %s", r, id)
	}
	if got := n.states(t); len(got) != 2 {
		t.Errorf("listed: %v", got)
	}
}

func TestASandboxThatIsBeingCreatedCanBeStoppedAndRemoved(t *testing.T) {
	n, slow := slowNode(t)
	for name, end := range map[string]func(id string) error{
		"stop": func(id string) error {
			_, err := n.StopPodSandbox(t.Context(), &v1.StopPodSandboxRequest{PodSandboxId: id})
			return err
		},
		"remove": func(id string) error {
			_, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: id})
			return err
		},
	} {
		done := n.run(t.Context(), n.podConfig(name))
		id := string(<-slow.entered)
		if err := end(id); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantCode(t, "its create", (<-done).err, codes.Aborted)
		roottest.Eventually(t, "the end of the sandbox", func() bool { return len(n.states(t)) == 0 })
		// Its name is free.
		done = n.run(t.Context(), n.podConfig(name))
		again := string(<-slow.entered)
		slow.answers <- struct{}{}
		if r := <-done; r.err != nil || r.id != again {
			t.Errorf("%s: again: %+v", name, r)
		}
		if _, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: again}); err != nil {
			t.Error(err)
		}
	}
}

// TestADelThatHangsIsGivenUpByItsCaller cancels stops and removals of a pod while its network's teardown hangs. The
// pod stays, and the same calls work when the network answers again.
func TestADelThatHangsIsGivenUpByItsCaller(t *testing.T) {
	n, slow := slowNode(t)
	stop := func(ctx context.Context, id string) error {
		_, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: id})
		return err
	}
	remove := func(ctx context.Context, id string) error {
		_, err := n.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: id})
		return err
	}
	for name, calls := range map[string][]func(context.Context, string) error{"stopped": {stop, stop}, "removed": {remove, remove}, "both": {stop, remove}} {
		done := n.run(t.Context(), n.podConfig(name))
		<-slow.entered
		slow.answers <- struct{}{}
		pod := <-done
		if pod.err != nil {
			t.Fatal(pod.err)
		}
		slow.hangs.Store(true)
		for _, call := range calls {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- call(ctx, pod.id) }()
			<-slow.leaving
			cancel()
			wantCode(t, name+": a call that is given up", <-ended, codes.Canceled)
			// The agent gives it up as well: the next call gets the sandbox's lock.
			if _, there := n.states(t)[pod.id]; !there {
				t.Fatalf("%s: the pod is gone, and its network is not", name)
			}
		}
		slow.hangs.Store(false)
		for _, call := range []func(context.Context, string) error{stop, remove} {
			if err := call(t.Context(), pod.id); err != nil {
				t.Errorf("%s: once more: %v", name, err)
			}
		}
		if _, there := n.states(t)[pod.id]; there {
			t.Errorf("%s: the pod is still there", name)
		}
	}
}
