package arch_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// slim are the packages that a small agent is built of, such as one in a virtual
// machine's guest: the engine, a face's frame, and what starts containers.
var slim = []string{
	"internal/engine", "internal/engine/without", "internal/face", "internal/state", "internal/cgroup", "internal/adjust", "internal/keeper",
	"internal/runtime/native", "internal/ocispec", "internal/pin", "internal/rootfs", "internal/stats", "internal/autopsy",
	"internal/volume", "internal/logs", "internal/kmsg",
}

// heavy are the families that a slim build must not link, not even indirectly, and
// the package of ours that a full agent hands in instead.
var heavy = []struct{ family, instead string }{
	{"google.golang.org/grpc", "the faces' own servers, internal/obs"},
	{"google.golang.org/protobuf", "the faces' own servers"},
	{"github.com/prometheus/", "internal/obs"},
	{"go.etcd.io/bbolt", "internal/state/bolt"},
	{"github.com/godbus/", "internal/cgroup/systemd"},
	{"github.com/coreos/go-systemd/", "internal/cgroup/systemd"},
	{"github.com/spf13/cobra", "internal/cli"},
	{"github.com/containerd/containerd/", "internal/image"},
	{"github.com/containerd/ttrpc", "internal/face/cri/nri"},
	{"k8s.io/", "internal/face/cri"},
	{"tags.cncf.io/container-device-interface", "internal/adjust/cdi"},
	{"github.com/containernetworking/", "internal/network"},
	{"github.com/google/nftables", "internal/network"},
	{"github.com/sirupsen/logrus", "internal/obs"},
}

// TestASlimBuildImportsNothingHeavy: who needs the engine without Kubernetes, systemd
// or a database does not link them.
func TestASlimBuildImportsNothingHeavy(t *testing.T) {
	for _, room := range slim {
		for _, f := range heavyIn(deps(t, room)) {
			t.Errorf("%s depends on %s", room, f)
		}
	}
	// The check finds what it looks for.
	found := strings.Join(heavyIn(deps(t, "internal/agent")), ", ")
	for _, h := range heavy {
		if !strings.Contains(found, h.family) && h.family != "github.com/spf13/cobra" {
			t.Errorf("the whole agent is not seen to link %s", h.family)
		}
	}
}

// inGuest are the heavy families of which a guest's agent links something all the same.
var inGuest = map[string]string{
	"google.golang.org/grpc":      "its codes and statuses, which ttrpc has too",
	"google.golang.org/protobuf":  "Kata's messages",
	"github.com/containerd/ttrpc": "Kata's transport",
	"github.com/sirupsen/logrus":  "by ttrpc",
}

// TestAGuestLinksLittle: in a virtual machine the program's file is memory.
func TestAGuestLinksLittle(t *testing.T) {
	linked := deps(t, "cmd/longshore-guest")
	for _, h := range heavy {
		if _, ok := inGuest[h.family]; !ok && slices.ContainsFunc(linked, func(p string) bool { return strings.HasPrefix(p, h.family) }) {
			t.Errorf("longshore-guest links %s, which belongs to %s", h.family, h.instead)
		}
	}
	for _, p := range linked {
		if strings.HasPrefix(p, "google.golang.org/grpc/") && (strings.Contains(p, "transport") || strings.Contains(p, "balancer")) {
			t.Errorf("longshore-guest links %s: gRPC's server or client", p)
		}
		if strings.HasPrefix(p, "github.com/vishvananda/netlink") {
			t.Errorf("longshore-guest links %s, which takes 400 KB: internal/guest/rtnetlink does what a guest needs", p)
		}
	}
}

// TestTheGuestsKeeperLinksNoMore: what runs before the guest's agent in the file that both
// share is what longshore-keeper is made of, whose imports a test of its own guards.
func TestTheGuestsKeeperLinksNoMore(t *testing.T) {
	keeper := deps(t, "cmd/longshore-keeper")
	for _, p := range deps(t, "internal/guest/onefile") {
		if !slices.Contains(keeper, p) && p != module+"/internal/guest/onefile" {
			t.Errorf("the keeper in longshore-guest depends on %s", p)
		}
	}
}

// confined are the processes that read what strangers made, and the packages of ours
// that each may link. None of them links a network client or protobuf.
var confined = map[string][]string{
	"internal/face/mesos/fetch/store": {"internal/confine", "internal/face/mesos/fetch/store", "internal/weaken"},
}

// TestAConfinedProcessLinksLittle keeps packages out of these processes whose weaknesses
// would be theirs.
func TestAConfinedProcessLinksLittle(t *testing.T) {
	for room, allowed := range confined {
		var ours []string
		for _, p := range deps(t, room) {
			if rel, ok := strings.CutPrefix(p, module+"/"); ok {
				ours = append(ours, rel)
			}
			if p == "net" || p == "net/http" || strings.HasPrefix(p, "google.golang.org/") {
				t.Errorf("%s links %s", room, p)
			}
		}
		slices.Sort(ours)
		if !slices.Equal(ours, allowed) {
			t.Errorf("%s links %v of ours, want %v", room, ours, allowed)
		}
	}
}

// deps lists what a package links.
func deps(t *testing.T, room string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+"/"+room).Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", room, err)
	}
	return strings.Fields(string(out))
}

// heavyIn names the heavy families among packages, each once.
func heavyIn(packages []string) (found []string) {
	for _, h := range heavy {
		if slices.ContainsFunc(packages, func(p string) bool { return strings.HasPrefix(p, h.family) }) {
			found = append(found, h.family+", which belongs to "+h.instead)
		}
	}
	return found
}
