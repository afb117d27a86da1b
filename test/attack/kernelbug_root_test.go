package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAKernelBugInAUserNamespace plants a bug of the kernel: a contained program gets every capability over its own user namespace, the
// host's mounts, and no filter of system calls. With engine.userns = "auto" it must reach nothing that is the host's. The control
// has the same bug without: there it reaches all.
func TestAKernelBugInAUserNamespace(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, userns := range []string{"off", "auto"} {
			t.Run(userns, func(t *testing.T) { kernelBug(t, userns) })
		}
	})
}

func kernelBug(t *testing.T, userns string) {
	t.Helper()
	n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("userns = %q\n", userns)})
	image := n.Busybox(t)
	// Other users can pass through /run.
	public, err := os.MkdirTemp("/run", "attacker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(public) })
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	self := filepath.Join(public, "attacker")
	if err := os.WriteFile(self, own, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(public, 0o755); err != nil {
		t.Fatal(err)
	}
	pod := n.RunPod(t, n.PodConfig("bug")).Run(t, nodetest.ContainerConfig("bug", image, "/bin/sleep", "65501"))
	if _, err := n.CLI("run", "-d", "--name", "bug", image, "/bin/sleep", "65502"); err != nil {
		t.Fatal(err)
	}
	for name, id := range map[string]string{"pod": pod.ID, "container": "bug"} {
		said, err := n.CLI("inspect", "-f", "{{.State.Pid}}", id)
		if err != nil {
			t.Fatal(err)
		}
		pid := strings.TrimSpace(said)
		count := map[outcome]int{}
		for i, p := range kernelBugProbes() {
			dir := filepath.Join(public, pid, strconv.Itoa(i))
			attacked(t, dir)
			args := []string{self, probeArg, p.name, dir, strconv.Itoa(n.Pid())}
			if userns == "auto" {
				args = append([]string{"nsenter", fmt.Sprintf("--user=/proc/%s/ns/user", pid), "-S", "0", "-G", "0", "--"}, args...)
			}
			out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %s: %v: %s", name, p.name, err, out)
			}
			r := decode(out)
			count[r.Outcome]++
			want := refused
			if userns == "off" {
				want = reached
			}
			if r.Outcome != want && r.Outcome != absent {
				t.Errorf("%s: %s is %s", name, p.name, r)
			}
			if mapped := strings.Contains(r.Evidence, "uid_map 0 0 "); mapped != (userns == "off") {
				t.Errorf("%s: %s: %s", name, p.name, r)
			}
		}
		fmt.Printf("a kernel bug in a %s, userns %s: %d of %d attempts reached\n", name, userns, count[reached], len(kernelBugProbes()))
		if userns == "off" && count[reached] < len(kernelBugProbes())-3 {
			t.Errorf("the control reached %d only", count[reached])
		}
	}
	if _, err := n.CLI("rm", "-f", "bug"); err != nil {
		t.Error(err)
	}
}

// attacked makes the files that an attempt may change.
func attacked(t *testing.T, dir string) {
	t.Helper()
	for f, mode := range kernelBugFiles() {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("the host's own\n"), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "closed"), 0o700); err != nil {
		t.Fatal(err)
	}
}
