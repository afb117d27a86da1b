package mesos

import (
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
)

// TestImageVolumes: images are shown where they are wanted, read-only, beside an image
// and beside the host's root.
func TestImageVolumes(t *testing.T) {
	n := newTestNode(t)
	for _, name := range []string{"data", "more"} {
		n.Images.Offer(name, imagespec.ImageConfig{}, map[string]string{"file": name})
	}
	volume := func(mode, at, image string) string {
		return `{"mode":"` + mode + `","container_path":"` + at + `","image":{"type":"DOCKER","docker":{"name":"` + image + `"}}}`
	}
	launch := func(id, volumes string) string {
		return strings.Replace(strings.Replace(launchA, `"volumes":[`, `"volumes":[`+volumes, 1), `"value":"a"`, `"value":"`+id+`"`, 1)
	}
	n.is(launch("a", volume("RO", "/opt/data", "data")+","+volume("RO", "more", "more")+","+volume("RO", "/again", "data")+","), 200, "")
	c := n.container("a")
	at := map[string]string{}
	for _, m := range n.Runtime.Spec(c.ID).Mounts {
		at[m.Destination] = m.Source
		if strings.Contains(m.Source, "/images/") && !slices.Contains(m.Options, "ro") {
			t.Errorf("mounted %v", m)
		}
	}
	for where, number := range map[string]string{"/opt/data": "0", "/mnt/mesos/sandbox/more": "1", "/again": "2"} {
		if !strings.HasSuffix(at[where], "/images/"+number) {
			t.Errorf("at %s is %q, want the image of number %s", where, at[where], number)
		}
	}
	if im := c.Config.Images; len(im) != 3 || im[0].Image != im[2].Image || im[0].Image == im[1].Image {
		t.Errorf("images %v", im)
	}
	n.is(`{"type":"PRUNE_IMAGES"}`, 200, "")
	if _, err := n.As(core.OwnerMesos).Images.Get(t.Context(), "data"); err != nil {
		t.Errorf("the image of a volume after PRUNE_IMAGES: %v", err)
	}
	n.is(launch("b", volume("RW", "/opt/data", "data")+","), 501, "an image as volume in mode RW: not implemented")
	n.is(launch("b", strings.Replace(volume("RO", "/opt/data", "data"), "DOCKER", "APPC", 1)+","), 501, "image type APPC: not implemented")
	n.is(launch("b", volume("RO", "/opt/data", "")+","), 400, "a docker image has no name")
	n.is(launch("b", volume("RO", "/", "data")+","), 400, `volume: container_path "/" hides the sandbox or the root`)
	if code, text := n.post(launch("b", volume("RO", "/opt/data", "unheard")+",")); code != 400 || !strings.Contains(text, "image unheard: ") {
		t.Errorf("an image that is nowhere: %d %q", code, text)
	}
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.is(removeA, 200, "")
	n.shutdown()
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
