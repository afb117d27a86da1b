package nomad_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/conformancetest"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest/corpus"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
)

// TestShapesOfPublicJobsRunAsWithDocker compares the containers that the driver, announced as docker, makes
// for tasks of all shapes with those of docker's driver. Only the shapes of corpus.Differs may differ.
func TestShapesOfPublicJobsRunAsWithDocker(t *testing.T) {
	r := newRig(t, nil)
	r.Client = nomadtest.Relay(t, "-name="+plugin.DockerName)
	r.Configure(t, map[string]any{"socket": r.socket, "allow_privileged": true, "allow_caps": []string{"all"}, "volumes": map[string]any{"enabled": true}}, nil)
	passwd := map[string]string{"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/srv:/bin/sh\n"}
	for _, tag := range []string{"1", "latest"} {
		r.AddImage("registry.example/stay:"+tag, ocispec.ImageConfig{Entrypoint: corpus.Entrypoint(), Cmd: corpus.Command(), Env: []string{"PATH=/bin"}}, passwd)
	}
	alloc := filepath.Join(r.dir, allocID)
	p := corpus.Place{Image: "registry.example/stay", Tag: "1", Host: t.TempDir(), TaskDir: filepath.Join(alloc, "web"), Addr: "10.88.0.77"}
	group := filepath.Join(t.TempDir(), "netns")
	for _, name := range []string{filepath.Join(p.Host, "m/f"), filepath.Join(alloc, "alloc/data/f"), group} {
		write(t, name)
	}
	for _, name := range corpus.Files() {
		write(t, filepath.Join(p.TaskDir, name))
	}
	var count corpus.Count
	for i, s := range corpus.Shapes() {
		task := nomadtest.Task(r.dir, allocID, "web", fmt.Sprintf("%08x", i), s.Config(p))
		if s.User {
			task.User = fmt.Sprint(corpus.UserID)
		}
		task.Resources.AllocatedResources.Memory.MemoryMb = corpus.MemoryMB
		switch s.Group {
		case "bridge", "cni":
			task.NetworkIsolationSpec = &nomaddriver.NetworkIsolationSpec{Mode: nomaddriver.NetworkIsolationSpec_GROUP, Path: group}
			fallthrough
		case "host", "none": // a group without a block network has no ports to name, but templates of jobs may
			task.Resources.Ports = []*nomaddriver.PortMapping{{Label: corpus.Label, Value: 21000, To: corpus.Port}}
		case "task":
			task.Resources.AllocatedResources.Networks = []*nomaddriver.NetworkResource{{Ip: "192.0.2.1", DynamicPorts: []*nomaddriver.NetworkPort{{Label: corpus.Label, Value: 21000}}}}
		}
		_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task})
		got, why := corpus.Given{Refused: err != nil}, fmt.Sprint(err)
		if err == nil {
			c, err := r.As(core.OwnerNomad).ContainerByKey(t.Context(), core.Key(task.GetId()))
			if err != nil {
				t.Fatal(err)
			}
			sb, err := r.As(core.OwnerNomad).Sandbox(t.Context(), c.Sandbox)
			if err != nil {
				t.Fatal(err)
			}
			got, why = corpus.Of(sb, c, r.Runtime.Spec(c.ID)), ""
		}
		if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil && !got.Refused {
			t.Error(err)
		}
		count.Add(t, s, cmp.Diff(s.ByDocker(p), got, cmpopts.EquateEmpty()), why)
	}
	count.Print(t)
}

func write(t *testing.T, name string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestDifferencesFromDockerHaveRows: each difference in corpus.Differs has a row in docs/conformance.md.
func TestDifferencesFromDockerHaveRows(t *testing.T) {
	doc := conformancetest.Read(t, "../../..")
	for _, d := range corpus.Differs {
		if !strings.Contains(doc, "| "+d.Row+" |") {
			t.Errorf("docs/conformance.md has no row %q", d.Row)
		}
	}
}
