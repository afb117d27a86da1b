package base

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// TestACallWaitsForABusyAgent: the socket takes the connection, and the agent answers later than gRPC's first try to
// connect again would come.
func TestACallWaitsForABusyAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	served := make(chan error, 1)
	late := time.AfterFunc(reconnect.BaseDelay+500*time.Millisecond, func() { served <- server.Serve(l) })
	defer func() {
		if late.Stop() {
			return
		}
		server.Stop()
		<-served
	}()
	a := &App{Options: Options{Getenv: func(string) string { return "" }}, socket: path}
	err = a.Call(func(c *Client) error {
		_, err := c.Node.Version(t.Context(), &longshorev1.VersionRequest{})
		return err
	})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("wanted an answer of the server, which has no methods: %v", err)
	}
}
