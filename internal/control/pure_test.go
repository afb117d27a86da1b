package control

import (
	"strings"
	"testing"

	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

func TestEveryCallIsClassified(t *testing.T) {
	for _, d := range []grpc.ServiceDesc{
		longshorev1.Containers_ServiceDesc, longshorev1.Images_ServiceDesc, longshorev1.Volumes_ServiceDesc, longshorev1.Node_ServiceDesc,
	} {
		var names []string
		for _, m := range d.Methods {
			names = append(names, m.MethodName)
		}
		for _, m := range d.Streams {
			names = append(names, m.StreamName)
		}
		for _, n := range names {
			if _, known := reads("/" + d.ServiceName + "/" + n); !known {
				t.Errorf("%s/%s: does it read only?", d.ServiceName, n)
			}
		}
	}
}

func TestPickPrefersTheBestMatch(t *testing.T) {
	metas := []core.Meta{
		{ID: "aaaa1", Owner: core.OwnerCLI, Key: "web"},
		{ID: "aaaa2", Owner: core.OwnerCRI, Key: "web"},
		{ID: "bbbb1", Owner: core.OwnerCRI, Key: "db"},
		{ID: "web99", Owner: core.OwnerNomad, Key: "job"},
		{ID: "cccc1", Owner: core.OwnerCRI, Key: "two"},
		{ID: "cccc2", Owner: core.OwnerNomad, Key: "two"},
	}
	for name, want := range map[string]int{"web": 0, "aaaa2": 1, "db": 2, "bbb": 2, "web9": 3, "none": -1} {
		if got, err := pick(name, metas); err != nil || got != want {
			t.Errorf("%s: %d, %v, want %d", name, got, err, want)
		}
	}
	for _, name := range []string{"two", "aaaa", ""} {
		if got, err := pick(name, metas); err == nil {
			t.Errorf("%s: %d", name, got)
		}
	}
}

func TestMadeUpNamesAreValid(t *testing.T) {
	for image, want := range map[string]string{
		"redis": "redis-", "docker.io/library/redis:7@sha256:abc": "redis-", "127.0.0.1:5000/a/b:1": "b-", "@": "container-",
	} {
		if got := madeUpName(image); !strings.HasPrefix(string(got), want) {
			t.Errorf("%s: %s", image, got)
		}
	}
}
