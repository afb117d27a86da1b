package ocispec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

func TestParseLevels(t *testing.T) {
	for text, want := range map[string]string{
		"read-only-system": "read-only-system", "no-exec-from-writable": "read-only-system no-exec-from-writable",
		" no-network-bind , no-network-connect": "no-network-bind no-network-connect", "no-network-bind,no-network-bind": "no-network-bind",
	} {
		if l, err := ocispec.ParseLevels(text); err != nil || strings.Join(l.Names(), " ") != want {
			t.Errorf("%q: %v, %v", text, l.Names(), err)
		}
	}
	for _, bad := range []string{"", ",", "read-only-system,", "Read-Only-System", "all", strings.Repeat("no-network-bind,", 100) + "no-network-bind"} {
		if l, err := ocispec.ParseLevels(bad); !errdefs.IsInvalidArgument(err) || l != (ocispec.Levels{}) {
			t.Errorf("%q: %v, %v", bad, l, err)
		}
	}
}

func FuzzParseLevels(f *testing.F) {
	f.Add("read-only-system,no-network-bind")
	f.Add("no-exec-from-writable ,")
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ocispec.ParseLevels(text)
		if err != nil {
			return
		}
		if again, err := ocispec.ParseLevels(strings.Join(l.Names(), ",")); err != nil || again != l {
			t.Errorf("%q: %v becomes %v, %v", text, l, again, err)
		}
	})
}

func TestApplyLevels(t *testing.T) {
	mounts := []specs.Mount{
		{Destination: "/data", Type: "bind", Source: "/srv", Options: []string{"rbind", "rw", "exec"}},
		{Destination: "/conf", Type: "bind", Source: "/srv", Options: []string{"rbind", "ro"}},
		{Destination: "/all", Type: "bind", Source: "/srv", Options: []string{"rbind", "rro"}},
		{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"exec"}},
	}
	spec := func(levels string) *specs.Spec {
		s := &specs.Spec{Mounts: mounts, Linux: &specs.Linux{}}
		ocispec.SetLevels(s, levels)
		return s
	}
	for _, levels := range []string{"", "read-only-system,no-network-bind"} {
		s := spec(levels)
		if err := ocispec.ApplyLevels(s); err != nil || s.Linux.Seccomp != nil || !slices.EqualFunc(s.Mounts, mounts, func(a, b specs.Mount) bool { return slices.Equal(a.Options, b.Options) }) {
			t.Errorf("%q: %+v, %v", levels, s, err)
		}
	}
	s := spec("no-exec-from-writable")
	if err := ocispec.ApplyLevels(s); err != nil || s.Linux.Seccomp == nil {
		t.Fatalf("%v, %v", s.Linux.Seccomp, err)
	}
	for i, last := range []string{"rnoexec", "ro", "rro", "noexec"} {
		if o := s.Mounts[i].Options; o[len(o)-1] != last {
			t.Errorf("%s: %v", s.Mounts[i].Destination, o)
		}
	}
	if len(mounts[0].Options) != 3 {
		t.Errorf("the request's own mounts have changed: %v", mounts)
	}
	bad := &specs.Spec{Annotations: map[string]string{core.LandlockAnnotation: "much"}}
	if err := ocispec.ApplyLevels(bad); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), core.LandlockAnnotation) {
		t.Errorf("an unknown level: %v", err)
	}
}
