package node

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestDefaultUlimits shows engine.ulimits in containers of kubelet and of the command line, in an exec, and in inspect. A request
// for another limit counts.
func TestDefaultUlimits(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "ulimits = [\"nofile=333:444\", \"fsize=5120000\"]\n"})
		image := n.Busybox(t)
		const show = "ulimit -n; ulimit -Hn; ulimit -f"
		pod := n.RunPod(t, n.PodConfig("limits"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", show+"; sleep 1000"))
		roottest.Eventually(t, "the container has written its limits", func() bool {
			return strings.Count(c.ReadLog(t), "\n") >= 3
		})
		for _, want := range []string{"stdout F 333\n", "stdout F 444\n", "stdout F 10000\n"} { // blocks of 512 bytes
			if log := c.ReadLog(t); !strings.Contains(log, want) {
				t.Errorf("no %q in %q", want, log)
			}
		}
		must := func(want string, args ...string) {
			t.Helper()
			if out, err := n.CLI(args...); err != nil || strings.TrimSpace(out) != want {
				t.Errorf("%s: %q, %v; want %q", args, out, err, want)
			}
		}
		if out, err := n.CLI("run", "-d", "--name", "a", "--ulimit", "nofile=55:66", image, "/bin/sleep", "1000"); err != nil {
			t.Fatalf("%s, %v", out, err)
		}
		must("55\n66\n10000", "exec", "a", "/bin/sh", "-c", show)
		must("nofile 55 fsize 5120000", "inspect", "-f", "{{range .HostConfig.Ulimits}}{{.Name}} {{.Soft}} {{end}}", "a")
		n.Check()
	})
}

// TestDefaultUlimitsOfEveryFace shows engine.ulimits in the containers of every orchestrator.
func TestDefaultUlimitsOfEveryFace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		socket := filepath.Join(dir, "docker.sock")
		f := newUserFacesWith(t, "ulimits = [\"nofile=333:444\"]\n[face.docker]\nenabled = true\nsocket = \""+socket+"\"\n")
		docker := dockerAPI{t, socket}
		if code := docker.call("POST", "/images/create?fromImage="+strings.ReplaceAll(f.image, ":", "%3A"), nil, nil); code != http.StatusOK {
			t.Fatalf("pull: %d", code)
		}
		docker.run("dockerlimits", f.image, map[string]any{}, "/bin/sleep", "1000")
		docker.run("dockerown", f.image, map[string]any{"Ulimits": []map[string]any{{"Name": "nofile", "Soft": 55, "Hard": 66}}}, "/bin/sleep", "1000")
		limits := map[string]string{"dockerlimits": "333 444", "dockerown": "55 66"}
		for face, start := range map[string]func(name, user string, nnp bool) made{"cli": f.byCLI, "cri": f.byCRI, "swarm": f.bySwarm, "nomad": f.byNomad, "mesos": f.byMesos} {
			limits[start(face+"limits", "0", false).key] = "333 444"
		}
		for name, want := range limits {
			if got := f.cli("exec", "--force", f.id(name), "/bin/sh", "-c", "awk '/open files/ {print $4, $5}' /proc/1/limits"); got != want {
				t.Errorf("%s has %q, want %s", name, got, want)
			}
		}
		f.n.Check()
	})
}
