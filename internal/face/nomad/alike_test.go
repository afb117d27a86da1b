package nomad_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	nomadhclspec "github.com/longshore/longshore/api/nomad/hclspec"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
)

// version is an agent that tells which one it is.
type version struct {
	nomaddriver.UnimplementedDriverServer
	name  string
	asked atomic.Int32
}

func (v *version) TaskConfigSchema(context.Context, *nomaddriver.TaskConfigSchemaRequest) (*nomaddriver.TaskConfigSchemaResponse, error) {
	v.asked.Add(1)
	attr := &nomadhclspec.Spec{Block: &nomadhclspec.Spec_Attr{Attr: &nomadhclspec.Attr{Name: v.name, Type: "string"}}}
	return &nomaddriver.TaskConfigSchemaResponse{Spec: attr}, nil
}

// TestAnAgentIsNotAskedForItsSchemaByEachTask: but the next agent's may be another
// one.
func TestAnAgentIsNotAskedForItsSchemaByEachTask(t *testing.T) {
	dir, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "nomad.sock")
	c := nomadtest.Relay(t)
	c.Configure(t, map[string]any{"socket": socket}, nil)
	schema := func() string {
		t.Helper()
		resp, err := c.Driver.TaskConfigSchema(t.Context(), &nomaddriver.TaskConfigSchemaRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetSpec().GetAttr().GetName()
	}
	for _, name := range []string{"first", "second"} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		agent, server := &version{name: name}, grpc.NewServer()
		nomaddriver.RegisterDriverServer(server, agent)
		served := make(chan error, 1)
		go func() { served <- server.Serve(l) }()
		if !eventually(t, func() bool { return schema() == name }) {
			t.Errorf("the schema of %s never comes", name)
		}
		schema() // the first answer may have come before the relay knew the agent
		before := agent.asked.Load()
		for range 3 {
			if got := schema(); got != name {
				t.Errorf("the schema is that of %q, not of %s", got, name)
			}
		}
		if n := agent.asked.Load() - before; n > 0 {
			t.Errorf("%s was asked %d times more", name, n)
		}
		c.Configure(t, map[string]any{"socket": socket, "logs": "fifo"}, nil)
		if schema(); agent.asked.Load() != before+1 {
			t.Errorf("%s was not asked with another configuration", name)
		}
		server.Stop()
		<-served
	}
}
