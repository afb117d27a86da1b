package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/networks"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheAgentDiesAtEveryStage kills the agent between every two stages of every
// verb, starts it again on the same node, and finds nothing amiss: check is
// clean, the same names can be used again, and when all is removed nothing is
// left.
func TestTheAgentDiesAtEveryStage(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		r := &round{n: n, image: n.Busybox(t), pull: pushTiny(t)}
		for _, shared := range []bool{false, true} {
			if err := r.drive(t.Context(), shared); err != nil {
				t.Fatalf("without a fail point: %v", err)
			}
		}
		for _, drive := range []func(context.Context) error{r.again, r.connected} {
			if err := drive(t.Context()); err != nil {
				t.Fatalf("without a fail point: %v", err)
			}
		}
		n.Check()
		before := n.Baseline(t).Lasting()
		for _, stage := range engine.Stages() {
			verb, _, _ := strings.Cut(stage, ".")
			pod := func(shared bool) func(context.Context) error {
				return func(ctx context.Context) error { return r.drive(ctx, shared) }
			}
			drive := pod(strings.HasSuffix(verb, "_sandbox"))
			switch verb {
			case "renew":
				drive = r.again
			case networks.VerbAttach, networks.VerbDetach, networks.VerbEgress:
				drive = r.connected
			}
			t.Run(stage, func(t *testing.T) { r.die(t, stage, drive, before) })
			if verb == "exit" { // of an exec, and of a main process
				t.Run(stage+"/main", func(t *testing.T) { r.die(t, stage, pod(true), before) })
			}
		}
	})
}

// pushTiny serves an image that is small enough to be pulled in every round.
func pushTiny(t *testing.T) string {
	t.Helper()
	return imagetest.NewRegistry(t).Push("tiny", "latest", tiny())
}

// round is one way through every verb, with the same names each time.
type round struct {
	n     *nodetest.Node
	image string
	pull  string
}

// die lets the agent die at a stage that drive reaches, and checks the next one.
func (r *round) die(t *testing.T, stage string, drive func(context.Context) error, before nodetest.Holdings) {
	n := r.n
	n.Kill() // a kind end would take the keeper along, as nothing runs
	n.SetEnv("LONGSHORE_FAILPOINT=" + stage)
	n.Up()
	if err := drive(t.Context()); err == nil {
		t.Errorf("the stage was never reached")
		n.Kill()
	} else if ws := n.Died(); !ws.Signaled() || ws.Signal() != syscall.SIGKILL {
		t.Errorf("the agent did not die at the stage: wait status %#x after %v", ws, err)
	}
	n.SetEnv()
	n.Up()
	if out, err := n.CLI("check"); err != nil {
		t.Errorf("check after the restart: %v\n%s", err, out)
	}
	if err := r.clear(t.Context()); err != nil {
		t.Fatalf("remove what is there: %v", err)
	}
	if err := drive(t.Context()); err != nil {
		t.Fatalf("the same names again: %v", err)
	}
	if out, err := n.CLI("check"); err != nil {
		t.Errorf("check at the end: %v\n%s", err, out)
	}
	same(t, n, before)
}

// same waits until the node's holdings are as before.
func same(t *testing.T, n *nodetest.Node, before nodetest.Holdings) {
	t.Helper()
	var diff string
	t.Cleanup(func() {
		if t.Failed() && diff != "" {
			t.Logf("what is not as before (-before +after):\n%s", diff)
		}
	})
	nodetest.Eventually(t, "nothing of it is left", func() bool {
		diff = cmp.Diff(before, n.Holdings(t).Lasting())
		return diff == ""
	})
}

// again starts an ended container again. Only the command line does that.
func (r *round) again(ctx context.Context) error {
	const name = "again"
	if _, err := r.n.CLI("run", "-d", "--name", name, r.image, "/bin/sh", "-c", "echo x >> /runs; exec sleep 1000"); err != nil {
		return err
	}
	if _, err := r.n.CLI("stop", "-t", "0", name); err != nil {
		return err
	}
	if err := r.released(ctx, name); err != nil {
		return err
	}
	if _, err := r.n.CLI("start", name); err != nil {
		return err
	}
	_, err := r.n.CLI("rm", "-f", name)
	return err
}

// connected changes the egress list of a running container, puts it on a second network and takes it off again. Only the command line does that.
func (r *round) connected(context.Context) error {
	const name, network = "connected", "beside"
	if out, err := r.n.CLI("network", "create", "--subnet", "10.79.0.0/24", network); err != nil && !strings.Contains(out+err.Error(), "already exists") {
		return err
	}
	for _, line := range [][]string{
		{"run", "-d", "--name", name, "--egress", "internet", r.image, "/bin/sleep", "1000"},
		{"egress", "set", name, "none"},
		{"network", "connect", network, name},
		{"network", "disconnect", network, name},
		{"rm", "-f", name},
		{"network", "rm", network},
	} {
		if _, err := r.n.CLI(line...); err != nil {
			return err
		}
	}
	return nil
}

// released waits until the sandbox of an ended container has given back its namespaces.
func (r *round) released(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, roottest.Patience())
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		out, err := r.n.CLI("sandboxes")
		if err != nil {
			return err
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, name) && strings.Contains(line, "stopped") {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// clear removes every sandbox, as kubelet does unknown ones, the command line's objects, and the
// image.
func (r *round) clear(ctx context.Context) error {
	for _, line := range [][]string{{"rm", "-f", "again", "connected"}, {"network", "rm", "beside"}} {
		if out, err := r.n.CLI(line...); err != nil && !strings.Contains(out+err.Error(), "not found") {
			return err
		}
	}
	list, err := r.n.CRI.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	for _, p := range list.GetItems() {
		if err := r.removePod(ctx, p.GetId()); err != nil {
			return err
		}
	}
	_, err = r.n.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: r.pull}})
	return err
}

func (r *round) removePod(ctx context.Context, id string) error {
	if _, err := r.n.CRI.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		return err
	}
	_, err := r.n.CRI.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	return err
}

// drive goes through every verb. With shared the pod has one pid namespace and
// so an init, and the first process to end is a main one instead of an exec.
func (r *round) drive(ctx context.Context, shared bool) error {
	n, cri := r.n, r.n.CRI
	if _, err := n.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: r.pull}}); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	cfg := n.PodConfig("fail")
	if shared {
		cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	}
	pod, err := cri.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		return fmt.Errorf("run sandbox: %w", err)
	}
	ids := map[string]string{}
	for _, name := range []string{"kind", "stubborn", "parked"} {
		program := "trap 'exit 7' TERM; echo up; while :; do sleep 1000 & wait; done"
		if name == "stubborn" {
			program = "trap '' TERM; echo up; while :; do sleep 1000 & wait; done"
		}
		c, err := cri.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{
			PodSandboxId: pod.GetPodSandboxId(), SandboxConfig: cfg, Config: nodetest.ContainerConfig(name, r.image, "/bin/sh", "-c", program),
		})
		if err != nil {
			return fmt.Errorf("create %s: %w", name, err)
		}
		ids[name] = c.GetContainerId()
	}
	for _, name := range []string{"kind", "stubborn"} {
		if _, err := cri.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: ids[name]}); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		if err := r.up(ctx, filepath.Join(cfg.GetLogDirectory(), name+".log")); err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
	}
	if !shared {
		out, err := cri.ExecSync(ctx, &runtimeapi.ExecSyncRequest{ContainerId: ids["kind"], Cmd: []string{"/bin/sh", "-c", "echo out; exit 3"}})
		if err != nil {
			return fmt.Errorf("exec: %w", err)
		}
		if string(out.GetStdout()) != "out\n" || out.GetExitCode() != 3 {
			return fmt.Errorf("exec: printed %q, exit code %d", out.GetStdout(), out.GetExitCode())
		}
	}
	if err := r.stop(ctx, ids); err != nil {
		return err
	}
	if _, err := cri.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: ids["kind"]}); err != nil {
		return fmt.Errorf("remove: %w", err)
	}
	if err := r.removePod(ctx, pod.GetPodSandboxId()); err != nil {
		return fmt.Errorf("remove sandbox: %w", err)
	}
	if _, err := n.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: r.pull}}); err != nil {
		return fmt.Errorf("remove image: %w", err)
	}
	list, err := cri.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err == nil && len(list.GetContainers()) > 0 {
		err = errors.New("containers are left after their sandbox")
	}
	return err
}

// up waits until a container has said that it hears signals.
func (r *round) up(ctx context.Context, log string) error {
	ctx, cancel := context.WithTimeout(ctx, roottest.Patience())
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(log); err == nil && strings.HasSuffix(string(b), "F up\n") {
			return os.Remove(log)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stop stops one container kindly and one at once.
func (r *round) stop(ctx context.Context, ids map[string]string) error {
	for name, grace := range map[string]int64{"kind": 60, "stubborn": 0} {
		if _, err := r.n.CRI.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: ids[name], Timeout: grace}); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
		st, err := r.n.CRI.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: ids[name]})
		if err != nil {
			return fmt.Errorf("status %s: %w", name, err)
		}
		if got := st.GetStatus(); got.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || name == "stubborn" && got.GetExitCode() != 137 {
			return fmt.Errorf("%s is %v with exit code %d", name, got.GetState(), got.GetExitCode())
		}
	}
	return nil
}
