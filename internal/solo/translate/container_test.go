package translate

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/ocispec"
)

// TestAppArmorProfiles: a container that names no profile has the default, and a privileged one none.
func TestAppArmorProfiles(t *testing.T) {
	for want, requests := range map[string][]*longshorev1.CreateRequest{
		"longshore-default": {{}, {Unmasked: true}},
		"mine":              {{Apparmor: "mine"}, {Apparmor: "mine", Privileged: true}},
		"":                  {{Apparmor: "unconfined"}, {Privileged: true}},
	} {
		for _, req := range requests {
			s := ocispec.New()
			if err := confine(s, req); err != nil || s.Process.ApparmorProfile != want {
				t.Errorf("%v: profile %q, want %q, %v", req, s.Process.ApparmorProfile, want, err)
			}
		}
	}
}

func TestMadeUpNamesAreValid(t *testing.T) {
	for image, want := range map[string]string{
		"redis": "redis-", "docker.io/library/redis:7@sha256:abc": "redis-", "127.0.0.1:5000/a/b:1": "b-", "@": "container-",
	} {
		if got := MadeUpName(image); !strings.HasPrefix(string(got), want) {
			t.Errorf("%s: %s", image, got)
		}
	}
}

func TestRangesOfHostPorts(t *testing.T) {
	got, err := toPorts([]*longshorev1.Port{{Host: 8000, HostLast: 8010, Container: 80}, {Host: 81, HostLast: 81, Container: 81}})
	if err != nil || got[0].Host != 8000 || got[0].HostLast != 8010 || got[1].HostLast != 81 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, p := range []*longshorev1.Port{{Host: 8010, HostLast: 8000, Container: 80}, {HostLast: 80, Container: 80}, {Host: 80, HostLast: 65536, Container: 80}} {
		if got, err := toPorts([]*longshorev1.Port{p}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %+v, %v", p, got, err)
		}
	}
}
