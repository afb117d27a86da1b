package nomad

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest/corpus"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestShapesOfPublicJobsRunAsWithDocker runs a task of each shape with Nomad and our driver, announced as
// docker, and compares its container with that of docker's driver.
func TestShapesOfPublicJobsRunAsWithDocker(t *testing.T) {
	o := options{name: "docker", plugin: "allow_privileged = true\n allow_caps = [\"all\"]\n volumes {\n enabled = true\n }"}
	start(t, o, func(r *rig) {
		p := corpus.Place{Image: r.pushStay("1"), Tag: "1", Host: filepath.Join(r.dir, "host")}
		r.pushStay("latest")
		for _, dir := range []string{p.Host, filepath.Join(p.Host, "m")} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		// A task on the bridge tells which addresses the bridge has; the last of 256 after it is free.
		r.run(strings.ReplaceAll(job("first", "service", once, "", `network_mode = "bridge"`+"\n"+`args = ["-c", "ip -o -4 addr show eth0; sleep 1000"]`), `driver = "longshore"`, `driver = "docker"`))
		line := r.logged(r.allocation("first", "running"), "inet")
		first, err := netip.ParsePrefix(strings.Fields(line[strings.Index(line, "inet"):])[1])
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		r.purge("first")
		addr := first.Addr().As4()
		addr[3] = 250
		p.Addr = netip.AddrFrom4(addr).String()
		var count corpus.Count
		n := 0
		for shapes := range slices.Chunk(corpus.Shapes(), 40) {
			name := fmt.Sprintf("shapes-%d", n)
			n++
			r.run(shapesJob(name, shapes, p))
			for group, a := range r.settled(name, len(shapes)) {
				s, at := shapes[group], p
				at.TaskDir = filepath.Join(r.dir, "data", "alloc", a.ID, "main")
				got := r.given(a)
				count.Add(t, s, cmp.Diff(s.ByDocker(at), got, cmpopts.EquateEmpty()), a.event("main", "Driver Failure").DisplayMessage)
			}
			r.purge(name)
			r.must("system", "gc")
			r.nothingLeft()
		}
		count.Print(t)
	})
}

// pushStay pushes the image of the corpus, and returns its name without the tag.
func (r *rig) pushStay(tag string) string {
	r.t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", "sh", "sleep")
	if err != nil {
		r.t.Fatal(err)
	}
	files = append(files, imagetest.File{Name: "bin/stay", Body: []byte("#!/bin/sh\ntrap exit TERM\nsleep 100000 &\nwait\n"), Mode: 0o755})
	img := imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Entrypoint: corpus.Entrypoint(), Cmd: corpus.Command(), Env: []string{"PATH=/bin"}}}
	return strings.TrimSuffix(r.registry.Push("stay", tag, img.Build()), ":"+tag)
}

// shapesJob is a job with a group for each shape, by its index.
func shapesJob(name string, shapes []corpus.Shape, p corpus.Place) string {
	var b strings.Builder
	fmt.Fprintf(&b, "job %q {\n", name)
	for i, s := range shapes {
		group := once + "\n ephemeral_disk {\n size = 150\n }\n"
		port := fmt.Sprintf("port %q {\n to = %d\n }\n", corpus.Label, corpus.Port)
		resources := fmt.Sprintf("cpu = 10\n memory = %d\n", corpus.MemoryMB)
		switch s.Group {
		case "bridge", "cni":
			group += "network {\n mode = \"bridge\"\n" + port + "}\n"
		case "host", "none":
			group += "network {\n" + port + "}\n"
		case "task":
			resources += fmt.Sprintf("network {\n port %q {}\n }\n", corpus.Label)
		}
		user, files := "", ""
		if s.User {
			user = fmt.Sprintf("user = \"%d\"\n", corpus.UserID)
		}
		for _, f := range corpus.Files() {
			files += template(f, "text")
		}
		fmt.Fprintf(&b, "group \"g%d\" {\n%s\ntask \"main\" {\n driver = \"docker\"\n %s kill_timeout = \"1s\"\nconfig {\n%s}\nresources {\n%s}\n%s}\n}\n", i, group, user, s.HCL(p), resources, files)
	}
	b.WriteString("}\n")
	return b.String()
}

// settled waits until each of the n groups of a job has a task that runs or has failed, and returns their
// allocations by the group's index.
func (r *rig) settled(name string, n int) map[int]alloc {
	r.t.Helper()
	found := map[int]alloc{}
	r.eventually("all tasks of "+name+" run or have failed", func() bool {
		clear(found)
		for _, a := range r.allocs(name) {
			var i int
			if _, err := fmt.Sscanf(a.TaskGroup, "g%d", &i); err == nil && slices.Contains([]string{"running", "failed", "complete"}, a.ClientStatus) {
				found[i] = a
			}
		}
		return len(found) == n
	})
	return found
}

// given describes the container of an allocation's task.
func (r *rig) given(a alloc) corpus.Given {
	r.t.Helper()
	id, err := r.CLI("ps", "-q", "--no-trunc", "--filter", "label=com.hashicorp.nomad.alloc_id="+a.ID)
	if err != nil {
		r.t.Fatal(err)
	}
	if id = strings.TrimSpace(id); id == "" {
		return corpus.Given{Refused: true}
	}
	var c []struct {
		Record struct {
			core.Container
			Spec *specs.Spec
		}
	}
	var sb []core.Sandbox
	r.inspect(id, &c)
	r.inspect(string(c[0].Record.Sandbox), &sb)
	return corpus.Of(sb[0], c[0].Record.Container, c[0].Record.Spec)
}

// inspect reads the agent's document about a container or a sandbox.
func (r *rig) inspect(name string, v any) {
	r.t.Helper()
	out, err := r.CLI("inspect", name)
	if err == nil {
		err = json.Unmarshal([]byte(out), v)
	}
	if err != nil {
		r.t.Fatalf("inspect %s: %v\n%s", name, err, out)
	}
}
