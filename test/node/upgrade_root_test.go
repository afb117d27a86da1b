package node

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestUpgradeOfTheKeeper: a new file in the place of longshore-keeper is named by version and doctor, becomes the keeper by
// `longshore upgrade` under running containers, and a file that is no keeper does not.
func TestUpgradeOfTheKeeper(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		bin := t.TempDir()
		if out, err := exec.CommandContext(t.Context(), "cp", "-r", nodetest.Bin(t)+"/.", bin).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		image := n.Busybox(t)
		keeper := filepath.Join(bin, "longshore-keeper")
		program, err := os.ReadFile(keeper)
		if err != nil {
			t.Fatal(err)
		}
		replace := func(content []byte) {
			t.Helper()
			if err := os.WriteFile(keeper+".new", content, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(keeper+".new", keeper); err != nil {
				t.Fatal(err)
			}
		}
		state := func(name string) string {
			t.Helper()
			out, err := n.CLI("version", "--json")
			var v struct {
				Agent struct {
					Processes []struct {
						Name, State string
						Pid         int
					}
				}
			}
			if perr := json.Unmarshal([]byte(out), &v); err != nil || perr != nil {
				t.Fatalf("%v, %v: %s", err, perr, out)
			}
			for _, p := range v.Agent.Processes {
				if p.Name == name && p.Pid > 1 {
					return p.State
				}
			}
			t.Fatalf("no process %s: %s", name, out)
			return ""
		}

		pod := n.RunPod(t, n.PodConfig("upgrade"))
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sh", "-c", "trap 'echo told; exit 7' TERM; i=0; while :; do i=$((i+1)); echo $i; usleep 2000; done"))
		before := n.Processes("keeper")
		for _, name := range []string{"agent", "keeper", "nest"} {
			if s := state(name); s != "current" {
				t.Errorf("%s is %q", name, s)
			}
		}
		if out, err := n.CLI("upgrade"); err != nil || strings.Contains(out, "upgraded") {
			t.Errorf("nothing to upgrade: %q, %v", out, err)
		}

		replace([]byte("#!/bin/sh\nexit 1\n"))
		if out, err := n.CLI("upgrade"); err == nil || state("keeper") != "replaced" || !strings.Contains(n.Finding(t, "programs"), "keeper, pid") {
			t.Errorf("a file that is no keeper: %q, %v", out, err)
		}
		for i := range 3 {
			replace(append(append([]byte{}, program...), strings.Repeat("x", i+1)...))
			if s := state("keeper"); s != "replaced" {
				t.Errorf("after the exchange of its file the keeper is %q", s)
			}
			if out, err := n.CLI("upgrade"); err != nil || !strings.Contains(out, "upgraded  keeper\n") {
				t.Errorf("upgrade: %q, %v", out, err)
			}
			if s, nest := state("keeper"), state("nest"); s != "current" || nest != "replaced" {
				t.Errorf("after the upgrade the keeper is %q, the nest %q", s, nest)
			}
			if d := n.Finding(t, "programs"); !strings.Contains(d, "each from its installed file") {
				t.Error(d)
			}
			r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/bin/echo", "here"}, Timeout: 30})
			if err != nil || string(r.GetStdout()) != "here\n" {
				t.Errorf("exec: %v, %v", r, err)
			}
		}
		if now := n.Processes("keeper"); len(now) != 1 || len(before) != 1 || now[0] != before[0] {
			t.Errorf("keepers %v, and %v before", now, before)
		}
		if st := c.Status(t); st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING {
			t.Errorf("the container: %v", st)
		}
		if _, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 30}); err != nil {
			t.Fatal(err)
		}
		if st := c.Status(t); st.GetExitCode() != 7 {
			t.Errorf("the exit: %v", st)
		}
		last := 0
		for line := range strings.Lines(c.ReadLog(t)) {
			_, text, _ := strings.Cut(strings.TrimSpace(line), " F ")
			if text == "told" {
				last = -last
				break
			}
			if last++; text != strconv.Itoa(last) {
				t.Fatalf("line %d of the log is %q", last, line)
			}
		}
		if last >= -3 {
			t.Errorf("the log has %d lines and no end", last)
		}
		pod.Remove(t)
		clean(t, n)
	})
}
