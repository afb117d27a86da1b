package kata

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/ttrpc"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/kata/qemu"
	"github.com/longshore/longshore/test/nodetest"
)

// tool runs the command line against a guest's agent, and returns its output and success.
type tool func(t *testing.T, args ...string) (string, bool)

func newTool(guest string) tool {
	return func(t *testing.T, args ...string) (string, bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
		defer cancel()
		out, err := exec.CommandContext(ctx, filepath.Join(nodetest.Bin(t), "longshore"), append([]string{"--guest", guest}, args...)...).CombinedOutput()
		return string(out), err == nil
	}
}

// says fails the test unless a command succeeds and prints each of the texts.
func (run tool) says(t *testing.T, args []string, want ...string) {
	t.Helper()
	out, ok := run(t, args...)
	for _, w := range want {
		if !ok || !strings.Contains(out, w) {
			t.Errorf("longshore %s: %v, %q lacks %q", strings.Join(args, " "), ok, out, w)
		}
	}
}

// refuses fails the test unless a command fails and prints a text.
func (run tool) refuses(t *testing.T, want string, args ...string) {
	t.Helper()
	if out, ok := run(t, args...); ok || !strings.Contains(out, want) {
		t.Errorf("longshore %s: %v, %q lacks %q", strings.Join(args, " "), ok, out, want)
	}
}

// ready runs a lasting container "pod", reads its output, and runs one "gone" that ends with
// 42.
func (a *agent) ready(t *testing.T, storages ...*katav1.Storage) {
	t.Helper()
	a.sandbox(t)
	a.run(t, "pod", a.spec("echo here I am; exec sleep 100000"), storages...)
	if r, err := a.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "pod", ExecId: "pod", Len: 100}); err != nil || string(r.GetData()) != "here I am\n" {
		t.Fatalf("ReadStdout: %v, %v", r, err)
	}
	a.run(t, "gone", a.spec("exit 42"))
	_ = a.wait(t, "gone", "gone")
}

// asked runs the host's people's commands on a ready guest.
func (run tool) asked(t *testing.T) {
	t.Helper()
	run.says(t, []string{"ps", "-a"}, "pod", "running", "gone", "42")
	run.says(t, []string{"exec", "--force", "pod", "cat", "/proc/1/cmdline"}, "sleep")
	run.says(t, []string{"why", "gone"}, "42")
	run.says(t, []string{"inspect", "pod"}, `"kata"`)
	run.says(t, []string{"top", "pod"}, "sleep")
	run.says(t, []string{"stats", "--no-stream", "pod"}, "pod", "B")
	run.says(t, []string{"events", "--since", "0", "--no-follow"}, "container.exited")
	run.says(t, []string{"logs", "pod"}, "here I am\n")
}

// TestTheHostsTool: the tool works on `longshore guest`, and only lists and inspects when
// options deny requests.
func TestTheHostsTool(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		pair := func(t *testing.T, args ...string) (*agent, tool) {
			socket := filepath.Join(t.TempDir(), "control.sock")
			a := startAs(t, []string{filepath.Join(nodetest.Bin(t), "longshore"), "guest"}, append(args, "--control", "unix://"+socket)...)
			a.ready(t)
			return a, newTool("unix://" + socket)
		}
		t.Run("everything", func(t *testing.T) {
			a, run := pair(t)
			run.asked(t)
			if r, err := a.GetGuestDetails(t.Context(), &katav1.GuestDetailsRequest{}); err != nil || !slices.Contains(r.GetAgentDetails().GetStorageHandlers(), "image_guest_pull") {
				t.Errorf("it pulls no images: %v, %v", r, err)
			}
			if _, err := a.SetPolicy(t.Context(), &katav1.SetPolicyRequest{Policy: guarded}); err != nil {
				t.Fatal(err)
			}
			run.says(t, []string{"ps"}, "pod", "running")
			run.refuses(t, "only calls that list and inspect", "logs", "pod")
		})
		t.Run("restricted", func(t *testing.T) {
			_, run := pair(t, "--deny", "ExecProcessRequest")
			run.says(t, []string{"ps"}, "pod", "running")
			run.refuses(t, "only calls that list and inspect", "exec", "--force", "pod", "true")
			run.refuses(t, "only calls that list and inspect", "logs", "pod")
		})
	})
}

// TestTheHostsToolInAGuest: the same by vsock, with `longshore guest` as the first process
// of a virtual machine.
func TestTheHostsToolInAGuest(t *testing.T) {
	qemu.Wanted(t)
	m, _ := boot(t, "agent.control_vport=1026")
	client := ttrpc.NewClient(m.Dial(t, qemu.AgentPort))
	defer func() { _ = client.Close() }()
	a := &agent{AgentServiceService: katav1.NewAgentServiceClient(client), health: katav1.NewHealthClient(client), root: "/run/image"}
	a.ready(t, &katav1.Storage{Driver: "blk", Source: qemu.DiskAt, Fstype: "ext4", MountPoint: a.root, Options: []string{"ro"}})
	newTool("hvsock://" + m.Socket() + ":1026").asked(t)
	newTool("hvsock://"+m.Socket()+":1027").refuses(t, "no agent answers", "ps")
	if _, err := a.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
		t.Errorf("DestroySandbox: %v", err)
	}
	<-m.Ended()
}
