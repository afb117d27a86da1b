package cri

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	v1 "github.com/longshore/longshore/api/cri/v1"
)

// TestClientsThatStayConnectedKeepNobodyOut: more clients than may be connected are
// all answered, again and again, and a call in flight is not cut for them.
func TestClientsThatStayConnectedKeepNobodyOut(t *testing.T) {
	n := newTestNode(t, func(c *Config) { c.MaxConnections = 4 })
	events, err := n.GetContainerEvents(t.Context(), &v1.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Version(t.Context(), &v1.VersionRequest{}); err != nil { // the connection is open
		t.Fatal(err)
	}
	clients := make([]v1.RuntimeServiceClient, 20)
	for i := range clients {
		conn, err := grpc.NewClient(n.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		clients[i] = v1.NewRuntimeServiceClient(conn)
	}
	for range 3 {
		for i, c := range clients {
			if _, err := c.Version(t.Context(), &v1.VersionRequest{}, grpc.WaitForReady(true)); err != nil {
				t.Fatalf("client %d: %v", i, err)
			}
		}
	}
	pod, err := n.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: n.podConfig("p")})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := events.Recv(); err != nil || e.GetContainerId() != pod.GetPodSandboxId() {
		t.Errorf("the stream of events has %v, %v", e, err)
	}
}
