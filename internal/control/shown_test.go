package control

import (
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/longshore/longshore/internal/solo"

	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func TestOverlayDirectories(t *testing.T) {
	const table = "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n" +
		"175 87 0:60 / /run/a\\040b/rootfs rw,relatime shared:3 - overlay overlay rw,lowerdir=/l/2:/l/1,upperdir=/c/upper,workdir=/c/work,uuid=on\n" +
		"176 87 0:61 / /run/c/rootfs rw - tmpfs tmpfs rw\n" + "broken\n"
	want := map[string]string{"MergedDir": "/run/a b/rootfs", "LowerDir": "/l/2:/l/1", "UpperDir": "/c/upper", "WorkDir": "/c/work"}
	if got := overlayDirs(table, "/run/a b/rootfs"); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for _, root := range []string{"/run/c/rootfs", "/", "/nosuch"} {
		if got := overlayDirs(table, root); got != nil {
			t.Errorf("%s: %v", root, got)
		}
	}
}

// TestShownParts checks the parts of a stored request that inspect shows.
func TestShownParts(t *testing.T) {
	stored, err := protojson.Marshal(&longshorev1.CreateRequest{
		Image: "box", SeccompUnconfined: true, Apparmor: "mine", NewPrivileges: true, StopGrace: durationpb.New(3 * time.Second), CpuQuota: 1000,
		Mounts: []*longshorev1.Mount{{Source: "data", Target: "/data"}, {Anonymous: true, Target: "/a"}, {Source: "/etc", Target: "/e", ReadOnly: true}, {Source: "/a", Target: "/b", ReadOnly: true, Propagation: "rshared"}, {Source: "v", SubPath: "in/it", Target: "/c", NoCopy: true}, {Source: "/m", Target: "/n", ByMount: true}},
		Tmpfs:  []*longshorev1.Tmpfs{{Target: "/t", Options: []string{"size=1m", "noexec"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := shownOf(solo.Record{Request: stored})
	if err != nil {
		t.Fatal(err)
	}
	if got.Image != "box" || len(got.Security) != 3 || *got.StopGrace != 3*time.Second || !got.CPUQuota || got.Tmpfs["/t"] != "size=1m,noexec" || got.Health != nil {
		t.Errorf("%+v", got)
	}
	if m := got.Mounts; len(m) != 1 || m[0] != (shownMount{Type: "bind", Source: "/m", Target: "/n"}) {
		t.Errorf("mounts: %+v", m)
	}
	if b := strings.Join(got.Binds, " "); b != "data:/data /etc:/e:ro /a:/b:ro,rshared v/in/it:/c:nocopy" {
		t.Errorf("binds: %s", b)
	}
	if got, err := shownOf(solo.Record{}); got != nil || err != nil {
		t.Errorf("without a request: %+v, %v", got, err)
	}
	if _, err := shownOf(solo.Record{Request: []byte("[")}); err == nil {
		t.Error("half a request is taken")
	}
}
