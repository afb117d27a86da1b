package engine_test

import (
	"context"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// countingStore counts how often sandboxes are read and objects written.
type countingStore struct {
	core.Store
	mu   sync.Mutex // guards uses
	uses uses
}

type uses struct{ sandboxReads, sandboxWrites, containerWrites int }

func (s *countingStore) add(n uses) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses.sandboxReads += n.sandboxReads
	s.uses.sandboxWrites += n.sandboxWrites
	s.uses.containerWrites += n.containerWrites
}

func (s *countingStore) since() uses {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.uses
	s.uses = uses{}
	return u
}

func (s *countingStore) View(fn func(core.Tx) error) error {
	return s.Store.View(func(tx core.Tx) error { return fn(countingTx{tx, s}) })
}

func (s *countingStore) Update(fn func(core.Tx) error) error {
	return s.Store.Update(func(tx core.Tx) error { return fn(countingTx{tx, s}) })
}

type countingTx struct {
	core.Tx
	s *countingStore
}

func (tx countingTx) Sandboxes() core.Table[core.Sandbox] {
	return countingTable[core.Sandbox]{tx.Tx.Sandboxes(), tx.s, uses{sandboxReads: 1}, uses{sandboxWrites: 1}}
}

func (tx countingTx) Containers() core.Table[core.Container] {
	return countingTable[core.Container]{tx.Tx.Containers(), tx.s, uses{}, uses{containerWrites: 1}}
}

type countingTable[T any] struct {
	core.Table[T]
	s           *countingStore
	read, wrote uses
}

func (t countingTable[T]) Get(id core.ID) (T, error) {
	t.s.add(t.read)
	return t.Table.Get(id)
}

func (t countingTable[T]) Put(o T) error {
	t.s.add(t.wrote)
	return t.Table.Put(o)
}

// TestAVerbReadsAndWritesOnce: a create writes its record before anything is made, and everything
// else once, when all is made. A create that also starts the program records everything before
// the start. No verb reads its sandbox twice.
func TestAVerbReadsAndWritesOnce(t *testing.T) {
	n := enginetest.Fakes(t)
	store := &countingStore{Store: n.Options.Store}
	n.Options.Store = store
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	n.Start()
	client := n.As(core.OwnerCRI)
	var sb core.Sandbox
	var c core.Container
	cfg := func(key core.Key, run bool) core.ContainerConfig {
		return core.ContainerConfig{Key: key, Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Run: run, Spec: func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) {
			return &specs.Spec{Process: &specs.Process{Args: []string{"sleep"}}}, []byte("data of " + key), nil
		}}
	}
	for _, v := range []struct {
		verb string
		call func() error
		want uses
	}{
		{"create sandbox", func() (err error) {
			sb, err = client.CreateSandbox(t.Context(), core.SandboxConfig{Key: "pod"})
			return err
		}, uses{sandboxWrites: 2}},
		{"create", func() (err error) {
			c, err = client.CreateContainer(t.Context(), cfg("c", false))
			return err
		}, uses{sandboxReads: 1, containerWrites: 2}},
		{"create that runs", func() error {
			_, err := client.CreateContainer(t.Context(), cfg("runs", true))
			return err
		}, uses{sandboxReads: 1, containerWrites: 3}},
		{"start", func() error { return client.StartContainer(t.Context(), c.ID) }, uses{containerWrites: 1}},
		{"exec", func() error {
			_, _, err := client.Exec(t.Context(), c.ID, core.ProcessConfig{Spec: &specs.Process{Args: []string{"true"}}})
			return err
		}, uses{sandboxReads: 1, containerWrites: 1}},
		{"pause", func() error { return client.PauseContainer(t.Context(), c.ID) }, uses{containerWrites: 1}},
		{"resume", func() error { return client.ResumeContainer(t.Context(), c.ID) }, uses{containerWrites: 1}},
		{"update", func() error {
			_, err := client.UpdateContainer(t.Context(), c.ID, &specs.LinuxResources{})
			return err
		}, uses{containerWrites: 1}},
	} {
		store.since()
		if err := v.call(); err != nil {
			t.Fatalf("%s: %v", v.verb, err)
		}
		if got := store.since(); got != v.want {
			t.Errorf("%s: %+v, want %+v", v.verb, got, v.want)
		}
	}
	if string(c.Data) != "data of c" {
		t.Errorf("data %q", c.Data)
	}
	if err := client.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
}
