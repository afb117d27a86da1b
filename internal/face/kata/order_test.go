package kata

import (
	"context"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
)

// reached has the states of a sandbox with its container c1, in their order.
var reached = map[string]func(*testing.T, *rig){ //nolint:gochecknoglobals // a table
	"none":    bare,
	"sandbox": boxed,
	"created": func(t *testing.T, r *rig) {
		t.Helper()
		r.sandbox(t)
		if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: specOf(t, "cat")}); err != nil {
			t.Fatal(err)
		}
	},
	"running": running,
	"paused":  paused,
	"ended":   ended,
	"removed": func(t *testing.T, r *rig) {
		t.Helper()
		ended(t, r)
		if _, err := r.RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{ContainerId: "c1"}); err != nil {
			t.Fatal(err)
		}
	},
}

// asks makes a call and ignores its answer.
func asks[Q, A proto.Message](call func(agent, context.Context, Q) (A, error), req Q) func(*testing.T, agent) error {
	return func(t *testing.T, a agent) error {
		t.Helper()
		_, err := call(a, t.Context(), req)
		return err
	}
}

// ordered are the calls of the table: about c1, if they are about a container.
var ordered = map[string]func(*testing.T, agent) error{ //nolint:gochecknoglobals // a table
	"CreateSandbox":  asks(agent.CreateSandbox, &katav1.CreateSandboxRequest{SandboxId: "s1"}),
	"DestroySandbox": asks(agent.DestroySandbox, &katav1.DestroySandboxRequest{}),
	"CreateContainer": func(t *testing.T, a agent) error {
		t.Helper()
		return asks(agent.CreateContainer, &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: specOf(t, "cat")})(t, a)
	},
	"StartContainer":    asks(agent.StartContainer, &katav1.StartContainerRequest{ContainerId: "c1"}),
	"RemoveContainer":   asks(agent.RemoveContainer, &katav1.RemoveContainerRequest{ContainerId: "c1"}),
	"ExecProcess":       asks(agent.ExecProcess, &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: processOf("cat")}),
	"SignalProcess":     asks(agent.SignalProcess, &katav1.SignalProcessRequest{ContainerId: "c1", ExecId: "c1", Signal: 15}),
	"SignalAll":         asks(agent.SignalProcess, &katav1.SignalProcessRequest{ContainerId: "c1", Signal: 9}),
	"WaitProcess":       asks(agent.WaitProcess, &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: "c1"}),
	"UpdateContainer":   asks(agent.UpdateContainer, &katav1.UpdateContainerRequest{ContainerId: "c1", Resources: &katav1.LinuxResources{Memory: &katav1.LinuxMemory{Limit: 1 << 26}}}),
	"StatsContainer":    asks(agent.StatsContainer, &katav1.StatsContainerRequest{ContainerId: "c1"}),
	"PauseContainer":    asks(agent.PauseContainer, &katav1.PauseContainerRequest{ContainerId: "c1"}),
	"ResumeContainer":   asks(agent.ResumeContainer, &katav1.ResumeContainerRequest{ContainerId: "c1"}),
	"WriteStdin":        asks(agent.WriteStdin, &katav1.WriteStreamRequest{ContainerId: "c1", ExecId: "c1"}), // no data: the end
	"ReadStdout":        asks(agent.ReadStdout, &katav1.ReadStreamRequest{ContainerId: "c1", ExecId: "c1", Len: 1}),
	"ReadStderr":        asks(agent.ReadStderr, &katav1.ReadStreamRequest{ContainerId: "c1", ExecId: "c1", Len: 1}),
	"CloseStdin":        asks(agent.CloseStdin, &katav1.CloseStdinRequest{ContainerId: "c1", ExecId: "c1"}),
	"TtyWinResize":      asks(agent.TtyWinResize, &katav1.TtyWinResizeRequest{ContainerId: "c1", ExecId: "c1", Row: 1, Column: 1}),
	"GetDiagnosticData": asks(agent.GetDiagnosticData, &katav1.GetDiagnosticDataRequest{LogType: terminationLog, ContainerId: "c1"}),
	"UpdateInterface":   asks(agent.UpdateInterface, &katav1.UpdateInterfaceRequest{Interface: &katatypes.Interface{Name: "eth0"}}),
	"UpdateRoutes":      asks(agent.UpdateRoutes, &katav1.UpdateRoutesRequest{Routes: &katav1.Routes{Routes: []*katatypes.Route{{Device: "eth0"}}}}),
	"AddARPNeighbors":   asks(agent.AddARPNeighbors, &katav1.AddARPNeighborsRequest{Neighbors: &katav1.ARPNeighbors{ARPNeighbors: []*katatypes.ARPNeighbor{{ToIPAddress: &katatypes.IPAddress{Address: "192.0.2.9"}}}}}),
	"GetGuestDetails":   asks(agent.GetGuestDetails, &katav1.GuestDetailsRequest{MemBlockSize: true}),
	"CopyFile":          asks(agent.CopyFile, &katav1.CopyFileRequest{Path: "/f"}),
	"GetOOMEvent":       asks(agent.GetOOMEvent, &katav1.GetOOMEventRequest{}),
}

// TestOrder compares the calls with testdata/order.txt, which has each call's answer in each state
// of the sandbox and its container. "waits" is a call that is not answered before the sandbox is
// destroyed.
func TestOrder(t *testing.T) {
	b, err := os.ReadFile("testdata/order.txt")
	if err != nil {
		t.Fatal(err)
	}
	var states []string
	had := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "#"):
			continue
		case states == nil:
			states = f
			continue
		case len(f) != len(states) || ordered[f[0]] == nil || had[f[0]]:
			t.Fatalf("no line of the order's table: %q", line)
		}
		had[f[0]] = true
		for i, want := range f[1:] {
			t.Run(f[0]+" in "+states[i+1], func(t *testing.T) {
				r := newRig(t)
				reached[states[i+1]](t, r)
				answersInOrder(t, r, ordered[f[0]], want)
			})
		}
	}
	if len(states) != len(reached)+1 || len(had) != len(ordered) {
		t.Errorf("the table has %d states of %d and %d calls of %d", len(states)-1, len(reached), len(had), len(ordered))
	}
}

func answersInOrder(t *testing.T, r *rig, call func(*testing.T, agent) error, want string) {
	t.Helper()
	answer := make(chan error, 1)
	other := katav1.NewAgentServiceClient(r.dial(t))
	for len(r.waits) > 0 {
		<-r.waits
	}
	go func() { answer <- call(t, other) }()
	if want == "waits" {
		for number := range r.waits {
			if number == 2 { // the server has the question
				break
			}
		}
		select {
		case err := <-answer:
			t.Errorf("answered at once: %v", err)
		default:
		}
		if _, err := r.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
			t.Error(err)
		}
		<-answer // its code depends on the order of the two
		return
	}
	var code codes.Code
	if err := code.UnmarshalJSON([]byte(`"` + want + `"`)); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; status.Code(err) != code {
		t.Errorf("%v, want %v", err, code)
	}
}
