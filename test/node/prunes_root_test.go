package node

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/roottest"
)

// TestPrunesTakeFilters: of unused containers, images, networks and volumes, half of them with a label and
// before a time, each prune with a filter removes those that fit, and nothing else.
func TestPrunesTakeFilters(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		v := startVolumes(t)
		conn, err := grpc.NewClient("unix://"+filepath.Join(v.State, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		api := prunable{t, longshorev1.NewContainersClient(conn), longshorev1.NewImagesClient(conn), longshorev1.NewNetworksClient(conn), longshorev1.NewVolumesClient(conn)}
		v.must(t, "run", "-d", "--name", "base", v.image, "/bin/sleep", "1000")
		for _, kind := range []struct {
			make  func(name string, labels ...string)
			have  func() []string
			prune [][]string
		}{
			{func(name string, labels ...string) {
				v.must(t, slices.Concat([]string{"run", "--name", name}, flags("-l", labels), []string{v.image, "/bin/true"})...)
			}, api.containers, [][]string{{"container", "prune", "-f"}, {"system", "prune", "-f"}}},
			{func(name string, labels ...string) {
				change := "LABEL name=" + name
				for _, l := range labels {
					change += " " + l
				}
				v.must(t, "commit", "-c", change, "base", name)
			}, api.images, [][]string{{"image", "prune", "-a", "-f"}, {"system", "prune", "-a", "-f"}, {"prune", "-a"}}},
			{func(name string, labels ...string) {
				v.must(t, append([]string{"network", "create", name}, flags("-l", labels)...)...)
			}, api.networks, [][]string{{"network", "prune", "-f"}}},
			{func(name string, labels ...string) {
				v.must(t, slices.Concat([]string{"volume", "create"}, flags("-l", labels), []string{name})...)
			}, api.volumes, [][]string{{"volume", "prune", "-a", "-f"}}},
		} {
			for _, prune := range kind.prune {
				kind.make("old", "kind=a", "plain=")
				kind.make("older", "kind=b")
				between := time.Now().Format(time.RFC3339Nano)
				kind.make("new", "kind=a", "plain=")
				all := []string{"new", "old", "older"}
				left := func(want []string, filters ...string) {
					t.Helper()
					v.must(t, append(slices.Clone(prune), flags("--filter", filters)...)...)
					if have := kind.have(); !slices.Equal(have, want) {
						t.Errorf("after %v with %v there are %v, want %v", prune, filters, have, want)
					}
				}
				left(all, "until=1h")
				left(all, "label=other")
				left(all, "label=kind=c")
				left(all, "label!=kind")
				left(all, "label=kind=b", "until=1h")
				left([]string{"new", "older"}, "label=kind=a", "label=plain", "until="+between)
				left([]string{"new"}, "until="+between)
				left(nil, "label!=kind=b", "label=kind")
			}
		}
		for _, bad := range []string{"until=never", "name=old", "until=1h --filter until=2h"} {
			args := append([]string{"image", "prune", "-f", "--filter"}, strings.Fields(bad)...)
			if out, err := v.CLI(args...); err == nil {
				t.Errorf("%v is accepted: %s", args, out)
			}
		}
		v.must(t, "rm", "-f", "base")
		v.must(t, "image", "prune", "-a", "-f")
		clean(t, v.Node)
	})
}

// flags puts a flag before each value.
func flags(flag string, values []string) (args []string) {
	for _, v := range values {
		args = append(args, flag, v)
	}
	return args
}

// prunable lists by the control API the test's objects.
type prunable struct {
	t  *testing.T
	ct longshorev1.ContainersClient
	im longshorev1.ImagesClient
	nw longshorev1.NetworksClient
	vo longshorev1.VolumesClient
}

// made returns the names that the test has given, sorted. Each object must have a time and its labels.
func (p prunable) made(err error, each func(add func(name string, labels map[string]string, dated bool))) (names []string) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
	each(func(name string, labels map[string]string, dated bool) {
		if !slices.Contains([]string{"old", "older", "new"}, name) {
			return
		}
		want := map[string]string{"old": "a", "older": "b", "new": "a"}[name]
		if labels["kind"] != want || !dated {
			p.t.Errorf("the API lists %s with labels %v, dated %v; want kind %s", name, labels, dated, want)
		}
		names = append(names, name)
	})
	slices.Sort(names)
	return names
}

func (p prunable) containers() []string {
	r, err := p.ct.ListContainers(p.t.Context(), &longshorev1.ListContainersRequest{Owner: "cli", All: true})
	return p.made(err, func(add func(string, map[string]string, bool)) {
		for _, c := range r.GetContainers() {
			add(c.GetKey(), c.GetLabels(), c.GetCreated().IsValid())
		}
	})
}

func (p prunable) images() []string {
	r, err := p.im.ListImages(p.t.Context(), &longshorev1.ListImagesRequest{Owner: "cli"})
	return p.made(err, func(add func(string, map[string]string, bool)) {
		for _, i := range r.GetImages() {
			add(i.GetLabels()["name"], i.GetLabels(), i.GetCreated().IsValid())
		}
	})
}

func (p prunable) networks() []string {
	r, err := p.nw.ListNetworks(p.t.Context(), &longshorev1.ListNetworksRequest{})
	return p.made(err, func(add func(string, map[string]string, bool)) {
		for _, n := range r.GetNetworks() {
			add(n.GetName(), n.GetLabels(), n.GetCreated().IsValid())
		}
	})
}

func (p prunable) volumes() []string {
	r, err := p.vo.ListVolumes(p.t.Context(), &longshorev1.ListVolumesRequest{})
	return p.made(err, func(add func(string, map[string]string, bool)) {
		for _, v := range r.GetVolumes() {
			add(v.GetName(), v.GetLabels(), v.GetCreated().IsValid())
		}
	})
}
