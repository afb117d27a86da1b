package ocispec

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// TestTakeRelabels: no runtime sees the options.
func TestTakeRelabels(t *testing.T) {
	shared := []string{"rbind", "z", "ro"}
	s := &specs.Spec{Mounts: []specs.Mount{{Source: "/a", Options: shared}, {Source: "/b", Options: []string{"Z"}}, {Source: "/c", Options: []string{"rbind"}}}}
	list := TakeRelabels(s)
	if !slices.Equal(list, []core.Relabel{{Path: "/a"}, {Path: "/b", Private: true}}) {
		t.Errorf("%+v", list)
	}
	if !slices.Equal(s.Mounts[0].Options, []string{"rbind", "ro"}) || len(s.Mounts[1].Options) != 0 || len(s.Mounts[2].Options) != 1 || len(shared) != 3 {
		t.Errorf("%+v", s.Mounts)
	}
}

func TestParseSELinux(t *testing.T) {
	for text, want := range map[string]*core.SELinux{
		"": {}, "disable": nil, "type:spc_t": {Type: "spc_t"}, "user:u role:r level:s0:c1,c2 filetype:f_t": {User: "u", Role: "r", Level: "s0:c1,c2", FileType: "f_t"},
	} {
		got, err := ParseSELinux(strings.Fields(text))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"x", "type:", "kind:x", "disable type:x", "type:a:b", "nested"} {
		if got, err := ParseSELinux(strings.Fields(text)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
}

// FuzzParse: parts that are accepted have no separator.
func FuzzParseSELinux(f *testing.F) {
	f.Add("type:spc_t\nlevel:s0:c1,c2")
	f.Add("disable")
	f.Fuzz(func(t *testing.T, text string) {
		ask, err := ParseSELinux(strings.Split(text, "\n"))
		if err != nil || ask == nil {
			return
		}
		for _, part := range []string{ask.User, ask.Role, ask.Type, ask.FileType} {
			if strings.ContainsAny(part, ": \x00\n") {
				t.Errorf("%q: %+v", text, ask)
			}
		}
	})
}
