package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// TestExchangesOfALogDirectory: no log reaches a directory of the node when a link to it takes
// the place of a log's directory, again and again, while containers are made, write, and reopen
// their logs.
func TestExchangesOfALogDirectory(t *testing.T) {
	attack := func(t *testing.T, o nodetest.Options, rounds int, enough bool) (made, refused, reached int) {
		t.Helper()
		n := nodetest.Start(t, o)
		image := n.Busybox(t)
		victim := filepath.Join(n.Dir, "victim")
		if err := os.Mkdir(victim, 0o777); err != nil {
			t.Fatal(err)
		}
		pod := n.RunPod(t, n.PodConfig("logs"))
		dir := pod.Config.GetLogDirectory()
		if err := os.Mkdir(dir+"/c", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, dir+"/link"); err != nil {
			t.Fatal(err)
		}
		stop := beneathtest.Exchange(t, dir+"/c", dir+"/link")
		for i := 0; i < rounds && (!enough || reached == 0); i++ {
			cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", "echo said")
			cfg.LogPath = "c/0.log"
			r, err := n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config})
			if err != nil {
				refused++
			} else {
				made++
				c := r.GetContainerId()
				_, err := n.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: c})
				_, reopened := n.CRI.ReopenContainerLog(t.Context(), &v1.ReopenContainerLogRequest{ContainerId: c})
				if err == nil && reopened == nil {
					pod.Container(c, cfg).WaitExited(t)
				}
				if _, err := n.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: c}); err != nil {
					t.Error(err)
				}
			}
			list, err := os.ReadDir(victim)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range list {
				if reached++; !strings.HasPrefix(e.Name(), "0.log") {
					t.Errorf("made %s", e.Name())
				}
				if err := os.Remove(filepath.Join(victim, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		times := stop()
		t.Logf("made %d, refused %d, reached %d; %d exchanges", made, refused, reached, times)
		pod.Remove(t)
		n.Check()
		return made, refused, reached
	}
	roottest.Run(t, func(t *testing.T) {
		t.Run("weakened", func(t *testing.T) {
			o := nodetest.Options{Bin: nodetest.Weakened(t), Env: []string{weaken.Env + "=" + string(weaken.Beneath)}}
			if _, _, reached := attack(t, o, 200, true); reached == 0 {
				t.Error("the attack shows nothing")
			}
		})
		t.Run("native", func(t *testing.T) {
			made, refused, reached := attack(t, nodetest.Options{}, beneathtest.Rounds(t), false)
			if made == 0 || refused == 0 || reached > 0 {
				t.Errorf("made %d, refused %d, reached %d", made, refused, reached)
			}
		})
	})
}

// TestALogMayBeNoLink: neither a log's file nor a directory between it and the pod's log
// directory, which may itself be reached by one.
func TestALogMayBeNoLink(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		victim := filepath.Join(n.Dir, "victim")
		if err := os.WriteFile(victim, []byte("its own\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg := n.PodConfig("logs")
		disk := filepath.Join(n.Dir, "disk")
		if err := os.Mkdir(disk, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(disk, filepath.Join(n.Dir, "logs")); err != nil {
			t.Fatal(err)
		}
		pod := n.RunPod(t, cfg)
		good := nodetest.ContainerConfig("good", image, "/bin/echo", "said")
		good.LogPath = "deep/er/0.log"
		pod.Run(t, good).WaitExited(t)
		if b, err := os.ReadFile(filepath.Join(disk, "logs/deep/er/0.log")); err != nil || !strings.Contains(string(b), "said") {
			t.Errorf("%q, %v", b, err)
		}
		if err := os.Symlink(victim, filepath.Join(disk, "logs/linked.log")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(disk, filepath.Join(disk, "logs/dir")); err != nil {
			t.Fatal(err)
		}
		for _, log := range []string{"linked.log", "dir/0.log"} {
			bad := nodetest.ContainerConfig("bad", image, "/bin/echo", "said")
			bad.LogPath = log
			r, err := n.CRI.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: pod.ID, Config: bad, SandboxConfig: pod.Config})
			if err != nil {
				continue
			}
			if _, err := n.CRI.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: r.GetContainerId()}); err == nil {
				pod.Container(r.GetContainerId(), bad).WaitExited(t)
			}
			if log != "linked.log" {
				t.Errorf("a container with its log at %s was made", log)
			}
			if _, err := n.CRI.RemoveContainer(t.Context(), &v1.RemoveContainerRequest{ContainerId: r.GetContainerId()}); err != nil {
				t.Error(err)
			}
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "its own\n" {
			t.Errorf("the node's file has %q, %v", b, err)
		}
		if _, err := os.Stat(filepath.Join(disk, "0.log")); err == nil {
			t.Error("a log was made by a link")
		}
		pod.Remove(t)
		n.Check()
	})
}
