package nodetest

import (
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// Bed is a node with a client of the control API.
type Bed struct {
	*Node
	T   *testing.T
	API longshorev1.ContainersClient
}

// NewBed starts a node.
func NewBed(t *testing.T, o Options) *Bed {
	t.Helper()
	return Start(t, o).Bed(t)
}

// Bed is a bed on a node that has started.
func (n *Node) Bed(t *testing.T) *Bed {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(n.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &Bed{Node: n, T: t, API: longshorev1.NewContainersClient(conn)}
}

// Must runs a command of longshore and returns its output.
func (b *Bed) Must(args ...string) string {
	b.T.Helper()
	out, err := b.CLI(args...)
	if err != nil {
		b.T.Fatal(err)
	}
	return out
}

// Find returns a container, or nil.
func (b *Bed) Find(name string) *longshorev1.Container {
	b.T.Helper()
	resp, err := b.API.ListContainers(b.T.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		b.T.Fatal(err)
	}
	for _, c := range resp.GetContainers() {
		if c.GetName() == name {
			return c
		}
	}
	return nil
}

// Inspect returns a container that exists.
func (b *Bed) Inspect(name string) *longshorev1.Container {
	b.T.Helper()
	c := b.Find(name)
	if c == nil {
		b.T.Fatalf("no container %s", name)
	}
	return c
}

// FallsAsleep waits until the one container of an owner sleeps.
func (b *Bed) FallsAsleep(owner string) {
	b.T.Helper()
	Eventually(b.T, "the container of "+owner+" sleeps", func() bool {
		list, err := b.API.ListContainers(b.T.Context(), &longshorev1.ListContainersRequest{All: true, Owner: owner})
		return err == nil && len(list.GetContainers()) == 1 && list.GetContainers()[0].GetState() == "asleep"
	})
}
