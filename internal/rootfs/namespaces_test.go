package rootfs

import (
	"context"
	"os"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// TestNamespacesAreMadeOncePerMapping: the last ones stay open, others are made again, and each caller has a descriptor of its own.
func TestNamespacesAreMadeOncePerMapping(t *testing.T) {
	made := 0
	n := &namespaces{make: func(context.Context, []specs.LinuxIDMapping, []specs.LinuxIDMapping, ...specs.LinuxNamespaceType) ([]*os.File, error) {
		made++
		f, err := os.Open(os.DevNull)
		return []*os.File{f}, err
	}}
	open := func(first uint32) {
		t.Helper()
		f, err := n.open(t.Context(), []core.IDRange{{Host: first, Size: 10}}, []core.IDRange{{Host: first, Size: 10}})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for range 3 {
		for first := range uint32(maxNamespaces) {
			open(first * 10)
		}
	}
	if made != maxNamespaces {
		t.Errorf("%d were made for %d mappings", made, maxNamespaces)
	}
	open(0)     // the last that is used
	open(10000) // closes the one of 10
	open(0)
	if made != maxNamespaces+1 || len(n.kept) != maxNamespaces {
		t.Errorf("%d were made, %d are open", made, len(n.kept))
	}
	if open(10); made != maxNamespaces+2 {
		t.Errorf("%d were made", made)
	}
	for _, k := range n.kept {
		_ = k.file.Close()
	}
}
