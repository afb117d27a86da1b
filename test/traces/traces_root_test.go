package traces

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
	"github.com/longshore/longshore/test/traces/collector"
)

// TestAPodIsOneTree: the calls of a client with a trace, as kubelet's, and the verbs and stages below them are one tree, from the pull of the
// image to the program's start. Lists without a trace have no span, and a command has a trace of its own.
func TestAPodIsOneTree(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		all := collector.Start(t)
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[network]\nmode = \"builtin\"\n[traces]\nendpoint = %q\n", all.Addr)})

		const trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
		ctx := metadata.AppendToOutgoingContext(t.Context(), "traceparent", "00-"+trace+"-"+parent+"-01")
		image := n.Busybox(t)
		if _, err := n.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
			t.Fatal(err)
		}
		pod := n.PodConfig("traced")
		r, err := n.CRI.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: pod})
		if err != nil {
			t.Fatal(err)
		}
		c, err := n.CRI.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: r.GetPodSandboxId(), SandboxConfig: pod, Config: nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"),
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.CRI.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.CRI.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{}); err != nil {
			t.Fatal(err)
		}
		if out, err := n.CLI("run", "--rm", image, "true"); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		n.Stop() // the agent exports the last spans

		byID := map[string]collector.Span{}
		var names, others []string
		for _, p := range all.Spans(func(p collector.Span) bool { return p.Trace == trace }) {
			byID[p.ID] = p
			names = append(names, p.GetName())
		}
		roots := 0
		for _, p := range byID {
			up, ok := byID[p.Parent]
			switch {
			case p.Parent == parent:
				roots++
			case !ok:
				t.Errorf("the parent of %s is not there", p.GetName())
			case p.GetStartTimeUnixNano()+1e6 < up.GetStartTimeUnixNano():
				t.Errorf("%s begins before %s", p.GetName(), up.GetName())
			}
			if p.GetEndTimeUnixNano() < p.GetStartTimeUnixNano() {
				t.Errorf("%s ends before it begins", p.GetName())
			}
		}
		if roots != 4 {
			t.Errorf("%d spans directly below the client's, want 4 calls", roots)
		}
		for _, want := range []string{
			"cri PullImage", "pull.pulled", "cri RunPodSandbox", "create_sandbox.network", "cri CreateContainer", "create", "create.root", "create.launch", "cri StartContainer", "start", "start.launch",
		} {
			if !slices.Contains(names, want) {
				t.Errorf("no span %s", want)
			}
		}
		if !slices.ContainsFunc(names, func(s string) bool {
			return strings.HasPrefix(s, "downloading sha256:") || strings.HasPrefix(s, "unpacking sha256:")
		}) {
			t.Error("no span of a layer")
		}
		for _, p := range all.Spans(func(collector.Span) bool { return true }) {
			others = append(others, p.GetName())
		}
		if slices.Contains(others, "cri ListContainers") {
			t.Error("a list without a trace has a span")
		}
		if !slices.Contains(others, "control Create") {
			t.Error("a command has no span")
		}
		if t.Failed() {
			t.Logf("in the trace: %q; all: %q", names, others)
		}
		n.Launch()
		n.Up()
		n.Check()
	})
}

// TestACollectorThatIsAway: the node works if its collector never answers.
func TestACollectorThatIsAway(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // it accepts, and nobody reads
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[traces]\nendpoint = %q\n", l.Addr())})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("p"))
		pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/true")).WaitExited(t)
		pod.Remove(t)
		n.Stop()
		n.Launch()
		n.Up()
		n.Check()
	})
}
