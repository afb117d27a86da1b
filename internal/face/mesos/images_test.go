package mesos

import (
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
)

// TestPruneImages: used and named images stay, and so do the others' names.
func TestPruneImages(t *testing.T) {
	n := newTestNode(t)
	for _, name := range []string{"kept", "unused"} {
		n.Images.Offer(name, imagespec.ImageConfig{Cmd: []string{name}}, map[string]string{"etc/name": name})
		for _, owner := range []core.Owner{core.OwnerMesos, core.OwnerCRI} {
			if _, err := n.As(owner).Images.Pull(t.Context(), name, core.PullOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.is(launchA, 200, "")
	names := func(owner core.Owner) string {
		all, err := n.As(owner).Images.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, img := range all {
			list = append(list, strings.TrimSuffix(img.Names[0][strings.LastIndex(img.Names[0], "/")+1:], ":latest"))
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	n.is(`{"type":"PRUNE_IMAGES","prune_images":{"excluded_images":[{"type":"DOCKER","docker":{"name":"kept"}},{"type":"DOCKER","docker":{"name":"never-heard"}}]}}`, 200, "")
	if got := names(core.OwnerMesos); got != "busybox kept" {
		t.Errorf("ours: %s", got)
	}
	if got := names(core.OwnerCRI); got != "kept unused" {
		t.Errorf("the others': %s", got)
	}
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.is(removeA, 200, "")
	n.is(`{"type":"PRUNE_IMAGES"}`, 200, "")
	if got := names(core.OwnerMesos); got != "" {
		t.Errorf("after all: %s", got)
	}
}
