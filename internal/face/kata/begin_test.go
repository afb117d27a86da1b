package kata

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/codes"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
)

// TestHealthIsAnsweredBeforeTheEngineIsThere: other calls wait for it. Those that still wait
// when the agent ends get an error.
func TestHealthIsAnsweredBeforeTheEngineIsThere(t *testing.T) {
	for _, begins := range []bool{true, false} {
		r := &rig{node: enginetest.New(t), socket: filepath.Join(t.TempDir(), "s"), served: make(chan error, 1)}
		l, err := new(net.ListenConfig).Listen(t.Context(), "unix", r.socket)
		if err != nil {
			t.Fatal(err)
		}
		f, err := New(Options{Deps: face.Deps{Logger: slog.New(slog.DiscardHandler)}, Machine: &fakeMachine{}, Requests: Requests{Deny: []string{"GetMetricsRequest"}}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { r.served <- f.Serve(ctx, l) }()
		client := r.dial(t)
		agent, health := katav1.NewAgentServiceClient(client), katav1.NewHealthClient(client)
		asked, answered := make(chan struct{}), make(chan codes.Code, 1)
		go func() {
			close(asked)
			answered <- code(agent.ListInterfaces(t.Context(), &katav1.ListInterfacesRequest{}))
		}()
		<-asked
		if a, err := health.Check(t.Context(), &katav1.CheckRequest{}); err != nil || a.GetStatus() != katav1.HealthCheckResponse_SERVING {
			t.Errorf("Check: %v, %v", a, err)
		}
		<-f.Called()
		if c := code(agent.GetMetrics(t.Context(), &katav1.GetMetricsRequest{})); c != codes.PermissionDenied {
			t.Errorf("what is denied is so at once: %s", c)
		}
		select {
		case c := <-answered:
			t.Errorf("a call was answered with %s by an agent without an engine", c)
		default:
		}
		if begins {
			f.Begin(r.node.As(core.OwnerKata))
			if c := <-answered; c != codes.OK {
				t.Errorf("then it is answered with %s", c)
			}
		}
		cancel()
		if err := <-r.served; err != nil {
			t.Errorf("serve: %v", err)
		}
		if !begins {
			if c := <-answered; c == codes.OK {
				t.Error("a call succeeded without an engine")
			}
		}
	}
}

// TestRequestsOfCalls compares the names with the protocol's.
func TestRequestsOfCalls(t *testing.T) {
	methods := katav1.File_kata_v1_agent_proto.Services().ByName("AgentService").Methods()
	for i := range methods.Len() {
		m := methods.Get(i)
		if got := requestOf(string(m.Name())); got != string(m.Input().Name()) {
			t.Errorf("the request of %s is %s, not %s", m.Name(), m.Input().Name(), got)
		}
	}
}
