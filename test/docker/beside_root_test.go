package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// PrintEnv names a file that gets all answers of both sides.
const printEnv = "LONGSHORE_BESIDE_PRINT"

// registryIP is the address of the registry for both sides.
const registryIP = "10.96.0.1"

// TestBesideDockerd sends all scenes to dockerd 28, of the packages in LONGSHORE_DOCKER_DIR, and to a node, and compares the
// answers. Each difference must be a line of the table of known differences, and each line of it a difference.
func TestBesideDockerd(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodetest.Bridge(t, "beside0", registryIP+"/24")
		files := prepared(t)
		registry := startRegistry(t)
		vars := func() map[string]string { return map[string]string{"reg": registry, "dir": t.TempDir()} }
		docker := newSide("docker", startDockerd(t), vars(), files)
		ours := newSide("ours", startNode(t, registry), vars(), files)
		var transcript strings.Builder
		known := newKnown(t)
		number := 0
		for _, sc := range scenes() {
			if only := os.Getenv("LONGSHORE_BESIDE_SCENE"); only != "" && !strings.Contains(sc.name, only) {
				continue
			}
			both := [2]chan []facts{make(chan []facts, 1), make(chan []facts, 1)}
			for i, s := range []*side{docker, ours} {
				go func() {
					s.do(step{do: "POST /images/load?quiet=1", body: "@box.tar", headers: tarBody})
					var list []facts
					for _, st := range sc.steps {
						began := time.Now()
						list = append(list, s.play(st))
						if d := time.Since(began); d > time.Second {
							t.Logf("%s: %s took %s", s.name, st.do, d)
						}
					}
					s.clear()
					both[i] <- list
				}()
			}
			want, got := <-both[0], <-both[1]
			for i, st := range sc.steps {
				number++
				fmt.Fprintf(&transcript, "== %s: %s %s\n", sc.name, st.do, st.body)
				for _, f := range []facts{want[i], got[i]} {
					text, _ := json.MarshalIndent(f, "", "  ")
					fmt.Fprintf(&transcript, "%s\n", text)
				}
				for _, d := range compare(want[i], got[i]) {
					known.difference(t, sc.name, st.title(), d)
				}
			}
		}
		known.check(t)
		t.Logf("%d requests, %d differences", number, known.found)
		if name := os.Getenv(printEnv); name != "" {
			if err := os.WriteFile(name, []byte(transcript.String()), 0o600); err != nil {
				t.Error(err)
			}
		}
	})
}

// startDockerd starts dockerd in a network namespace of its own, and returns its socket.
func startDockerd(t *testing.T) string {
	t.Helper()
	packages, home := nodetest.DockerHome(t)
	netns := nodetest.Plug(t, "beside0", "dockerd0", "10.96.0.2/24").NetNS()
	d, err := dockerd.Start(dockerd.Options{
		Packages: packages, Home: home, Flags: []string{"--cgroup-parent", roottest.Cgroup(t), "--insecure-registry", registryIP + "/24", "--group", "0"},
		Wrap: func(argv ...string) []string { return append([]string{"nsenter", "--net=" + netns}, argv...) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	if err := d.Answers(ctx); err != nil {
		if why := d.Lacks(); why != "" {
			t.Skipf("dockerd does not run on this machine: %s", why)
		}
		t.Fatal(err)
	}
	var version struct{ Version string }
	if err := d.Get(ctx, "/version", &version); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(version.Version, "28.") {
		t.Skipf("this is dockerd %s: the table is that of dockerd 28 (hack/dockerd.sh DIR forky)", version.Version)
	}
	return filepath.Join(home, "sock")
}

// startNode starts a node with the Docker Engine API, and returns its socket.
func startNode(t *testing.T, registry string) string {
	t.Helper()
	certs := t.TempDir()
	if err := os.Mkdir(filepath.Join(certs, registry), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(certs, registry, "hosts.toml"), []byte("server = \"http://"+registry+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "longshore-beside-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "docker.sock")
	n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.docker]\nenabled = true\nsocket = %q\n", certs, socket)})
	t.Cleanup(n.Check)
	return socket
}

// startRegistry serves two images at an address that both sides reach, and returns its host and port.
func startRegistry(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", registryIP+":0")
	if err != nil {
		t.Fatal(err)
	}
	registry, server := imagetest.Serve(l)
	t.Cleanup(func() { _ = server.Close() })
	registry.Push("box", "latest", boxImage(t))
	registry.Push("box", "2", boxImage(t, "two"))
	return registry.Host
}

// boxImage is the image of all scenes.
func boxImage(t *testing.T, more ...string) imagetest.Built {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", append([]string{"pwd", "sort", "tar", "test"}, nodetest.Applets...)...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	users := []imagetest.File{
		{Name: "srv/seed", Mode: 0o644, Body: []byte("from the image\n" + strings.Join(more, ""))},
		{Name: "etc/passwd", Mode: 0o644, Body: []byte("root:x:0:0:root:/:/bin/sh\nann:x:1000:1000::/:/bin/sh\n")},
		{Name: "etc/group", Mode: 0o644, Body: []byte("root:x:0:\nann:x:1000:\n")},
	}
	return imagetest.Image{Layers: [][]imagetest.File{files, users}, Config: ocispec.ImageConfig{
		Cmd: []string{"sh"}, Env: []string{"PATH=/bin"}, Labels: map[string]string{"of": "the-box"}, ExposedPorts: map[string]struct{}{"8080/tcp": {}},
	}}.Build()
}

// prepared are the files that steps send.
func prepared(t *testing.T) map[string][]byte {
	t.Helper()
	var box bytes.Buffer
	if err := imagetest.WriteDocker(&box, map[string]imagetest.Built{"docker.io/library/box:latest": boxImage(t)}); err != nil {
		t.Fatal(err)
	}
	tree := imagetest.Tar([]imagetest.File{{Name: "d/", Mode: 0o755}, {Name: "d/f", Mode: 0o640, Body: []byte("data\n")}})
	owners := imagetest.Tar([]imagetest.File{{Name: "owned/", UID: 5, GID: 6}, {Name: "owned/f", UID: 7, GID: 8, Mode: 0o600, Body: []byte("x")}, {Name: "owned/hard", Hard: "owned/f"}, {Name: "owned/link", Link: "f"}})
	return map[string][]byte{
		"owners.tar": owners, "conflict.tar": imagetest.Tar([]imagetest.File{{Name: "seed/", Mode: 0o755}}),
		"box.tar": box.Bytes(), "tree.tar": tree, "tree.tar.gz": imagetest.Compress(tree, "gzip"), "garbage": []byte("this is no archive, and longer than a block of one\n"),
	}
}
