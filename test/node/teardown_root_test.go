package node

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTeardownLeavesNothing: teardown is refused while the agent runs, and after that it leaves
// no processes, mounts, cgroups and links of several owners, but images. Containers have time
// to end by themselves.
func TestTeardownLeavesNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		kernel := func() string {
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil {
				t.Fatal(err)
			}
			links, err := net.Interfaces()
			if err != nil {
				t.Fatal(err)
			}
			var all []string
			for line := range strings.Lines(string(mounts)) {
				all = append(all, "mount "+strings.Fields(line)[4])
			}
			for _, l := range links {
				all = append(all, "link "+l.Name)
			}
			slices.Sort(all)
			return strings.Join(all, "\n")
		}
		before := kernel()
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cfg := n.PodConfig("shared")
		cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		shared := n.RunPod(t, cfg)
		shared.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		p := n.RunPod(t, n.PodConfig("p"))
		farewell := filepath.Join(n.Dir, "farewell")
		if err := os.Mkdir(farewell, 0o755); err != nil {
			t.Fatal(err)
		}
		cc := nodetest.ContainerConfig("polite", image, "/bin/sh", "-c", "trap 'echo bye >/farewell/word; exit 0' TERM; echo up; while :; do sleep 0.1; done")
		cc.Mounts = []*runtimeapi.Mount{{HostPath: farewell, ContainerPath: "/farewell"}}
		polite := p.Run(t, cc)
		nodetest.Eventually(t, "the trap is set", func() bool { return strings.Contains(polite.ReadLog(t), "up") })
		if out, err := n.CLI("run", "-d", "--name", "own", image, "/bin/sleep", "1000"); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		teardown := func() (string, error) {
			ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
			defer cancel()
			out, err := exec.CommandContext(ctx, filepath.Join(nodetest.Bin(t), "longshore"), "teardown",
				"--config", filepath.Join(n.Dir, "config.toml"), "--root", n.Root, "--state", n.State).CombinedOutput()
			return string(out), err
		}
		if out, err := teardown(); err == nil || !strings.Contains(out, "stop it") {
			t.Fatalf("beside an agent: %v, %s", err, out)
		}
		n.Check()
		n.Kill()
		if out, err := teardown(); err != nil || out != "" {
			t.Fatalf("%v: %s", err, out)
		}
		if word, err := os.ReadFile(filepath.Join(farewell, "word")); err != nil || string(word) != "bye\n" {
			t.Errorf("the polite one: %q, %v", word, err)
		}
		if left := nodetest.Pair(""); len(left) != 0 {
			t.Errorf("keepers left: %v", left)
		}
		if left := nodetest.Processes("busybox", ""); len(left) != 0 {
			t.Errorf("containers left: %v", left)
		}
		if left := nodetest.Cgroups(t, n.Cgroup+"/*"); len(left) != 0 {
			t.Errorf("cgroups left: %v", left)
		}
		// Links go a moment after their namespaces.
		var after string
		nodetest.Eventually(t, "mounts and links are as before", func() bool {
			after = kernel()
			return after == before
		})
		// Again, and where no agent has ever been.
		if out, err := teardown(); err != nil {
			t.Errorf("again: %v: %s", err, out)
		}
		if err := os.RemoveAll(n.State); err != nil {
			t.Error(err)
		}
		if out, err := teardown(); err != nil || out != "" {
			t.Errorf("without a state directory: %v: %s", err, out)
		}
		if _, err := os.Stat(n.State); err == nil {
			t.Error("it made the state directory")
		}
		if err := os.MkdirAll(n.State, 0o700); err != nil {
			t.Fatal(err)
		}
		// A durable container that no agent has brought back yet.
		n.Up()
		if out, err := n.CLI("run", "-d", "--name", "durable", image, "/bin/sleep", "1000"); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		n.PowerCut()
		if err := os.RemoveAll(n.State); err != nil {
			t.Error(err)
		}
		if out, err := teardown(); err != nil || out != "" {
			t.Errorf("of a durable container after a boot: %v: %s", err, out)
		}
		if err := os.MkdirAll(n.State, 0o700); err != nil {
			t.Fatal(err)
		}
		n.Up()
		if out, err := n.CLI("ps", "-aq"); err != nil || out != "" {
			t.Errorf("containers left: %s, %v", out, err)
		}
		list, err := n.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
		if err != nil || len(list.GetImages()) != 1 {
			t.Errorf("images: %v, %v", list.GetImages(), err)
		}
		n.Check()
	})
}
