package cri

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

type object = map[string]any

// TestCrictl goes through a pod's whole life with the real crictl.
func TestCrictl(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Runtime: os.Getenv("LONGSHORE_TEST_RUNTIME")})
		c := newTool(t, n)
		if out := c.run("version"); !strings.Contains(out, "longshore") {
			t.Errorf("version:\n%s", out)
		}
		var info struct {
			Status struct {
				Conditions []struct {
					Type, Reason string
					Status       bool
				}
			}
		}
		c.json(&info, "info")
		for _, cond := range info.Status.Conditions {
			if !cond.Status {
				t.Errorf("info: %+v", cond)
			}
		}

		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		ref := imagetest.NewRegistry(t).Push("busybox", "latest", built)
		c.run("pull", ref)
		if out := c.run("images", "-q"); !strings.HasPrefix(out, "sha256:") {
			t.Errorf("images: %s", out)
		}
		var image struct {
			Status struct {
				ID       string
				RepoTags []string
			}
		}
		c.json(&image, "inspecti", ref)
		if len(image.Status.RepoTags) != 1 || image.Status.RepoTags[0] != ref || image.Status.ID == "" {
			t.Errorf("inspecti: %+v", image)
		}

		logs := filepath.Join(n.Dir, "logs")
		pod := c.file("pod.json", object{
			"metadata": object{"name": "web", "namespace": "default", "uid": "u1", "attempt": 1}, "log_directory": logs, "hostname": "web",
			"labels": object{"app": "web"}, "linux": object{"security_context": object{"namespace_options": object{"pid": 1}}},
		})
		container := c.file("container.json", object{
			"metadata": object{"name": "app"}, "image": object{"image": ref}, "log_path": "app.log",
			"command": []string{"/bin/sh", "-c", "echo hello; echo oops >&2; exec sleep 1000"}, "linux": object{},
		})
		podID := c.run("runp", pod)
		if again := c.run("runp", pod); again != podID {
			t.Errorf("runp again: %s, first %s", again, podID)
		}
		id := c.run("create", podID, container, pod)
		if out := c.run("ps", "-a", "-q"); out != id {
			t.Errorf("ps -a: %s", out)
		}
		if out := c.run("ps", "-q"); out != "" {
			t.Errorf("ps shows what does not run: %s", out)
		}
		c.run("start", id)
		if out := c.run("ps", "-q"); out != id {
			t.Errorf("ps: %s", out)
		}
		if out := c.run("pods", "-q", "--label", "app=web", "--state", "Ready"); out != podID {
			t.Errorf("pods: %s", out)
		}
		nodetest.Eventually(t, "both lines are in the log", func() bool {
			out, errs, err := c.try("logs", id)
			return err == nil && strings.TrimSpace(out) == "hello" && strings.TrimSpace(errs) == "oops"
		})

		if out := c.run("exec", "-s", id, "/bin/echo", "from", "inside"); out != "from inside" {
			t.Errorf("exec -s: %q", out)
		}
		if out, errs, err := c.try("exec", "-s", id, "/bin/sh", "-c", "echo out; echo err >&2; exit 7"); err == nil || !strings.Contains(errs, "exited with 7: err") {
			t.Errorf("exec -s of a failure: %v\n%s%s", err, out, errs)
		}
		if _, errs, err := c.try("exec", "-s", "--timeout", "1", id, "/bin/sleep", "100"); err == nil || !strings.Contains(errs, "DeadlineExceeded") {
			t.Errorf("exec -s with a timeout: %v\n%s", err, errs)
		}
		if out := c.run("exec", "-s", id, "/bin/ps"); strings.Contains(out, "sleep 100\n") {
			t.Errorf("the exec that timed out still runs:\n%s", out)
		}
		if out := c.run("exec", "-s", id, "/bin/hostname"); out != "web" {
			t.Errorf("host name %q", out)
		}

		var status struct {
			Status struct {
				ID, State, ImageID, LogPath string
				Metadata                    struct{ Name string }
			}
			Info struct{ Pid int }
		}
		c.json(&status, "inspect", id)
		if status.Status.State != "CONTAINER_RUNNING" || status.Status.ImageID != image.Status.ID || status.Info.Pid == 0 || status.Status.LogPath != filepath.Join(logs, "app.log") {
			t.Errorf("inspect: %+v", status)
		}
		var sandbox struct {
			Status struct {
				ID, State string
				Network   struct{ IP string }
			}
		}
		c.json(&sandbox, "inspectp", podID)
		if sandbox.Status.State != "SANDBOX_READY" || sandbox.Status.Network.IP == "" {
			t.Errorf("inspectp: %+v", sandbox)
		}
		var stats struct {
			Stats []struct {
				Attributes struct{ ID string }
				Memory     struct {
					WorkingSetBytes struct{ Value string }
				}
			}
		}
		c.json(&stats, "stats", "-o", "json")
		if len(stats.Stats) != 1 || stats.Stats[0].Attributes.ID != id || stats.Stats[0].Memory.WorkingSetBytes.Value == "" {
			t.Errorf("stats: %+v", stats)
		}
		if out := c.run("statsp", podID[:13]); !strings.Contains(out, "web") {
			t.Errorf("statsp:\n%s", out)
		}
		c.run("update", "--memory", "67108864", id)
		var updated struct {
			Status struct {
				Resources struct {
					Linux struct{ MemoryLimitInBytes string }
				}
			}
		}
		c.json(&updated, "inspect", id)
		if got := updated.Status.Resources.Linux.MemoryLimitInBytes; got != "67108864" {
			t.Errorf("memory limit after the update: %q", got)
		}
		if out := c.run("imagefsinfo"); !strings.Contains(out, "usedBytes") {
			t.Errorf("imagefsinfo:\n%s", out)
		}
		for _, args := range [][]string{{"checkpoint", "--export", "/x", id}} {
			if _, errs, err := c.try(args...); err == nil || !strings.Contains(errs, "Unimplemented") {
				t.Errorf("crictl %s: %v\n%s", args[0], err, errs)
			}
		}

		// As crictl's own examples: without namespace options a pod shares its
		// pid namespace.
		shared := c.file("shared.json", object{"metadata": object{"name": "shared", "namespace": "default", "uid": "u2"}, "log_directory": logs, "linux": object{}})
		sharedID := c.run("runp", shared)
		first := c.run("create", "--no-pull", sharedID, c.file("first.json", object{
			"metadata": object{"name": "first"}, "image": object{"image": ref}, "command": []string{"/bin/sleep", "1001"}, "linux": object{},
		}), shared)
		second := c.run("create", "--no-pull", sharedID, c.file("second.json", object{
			"metadata": object{"name": "second"}, "image": object{"image": ref}, "command": []string{"/bin/sleep", "1002"}, "linux": object{},
		}), shared)
		c.run("start", first, second)
		if out := c.run("exec", "-s", first, "/bin/ps"); !strings.Contains(out, "sleep 1001") || !strings.Contains(out, "sleep 1002") {
			t.Errorf("processes of a pod with one pid namespace:\n%s", out)
		}
		c.run("rmp", "-f", sharedID)

		c.run("stop", id)
		c.json(&status, "inspect", id)
		if status.Status.State != "CONTAINER_EXITED" {
			t.Errorf("after stop: %+v", status)
		}
		c.run("rm", id)
		c.run("stopp", podID)
		if out := c.run("pods", "-q", "--state", "NotReady"); out != podID {
			t.Errorf("pods after stopp: %s", out)
		}
		c.run("rmp", podID)
		c.run("rmi", ref)
		for _, list := range [][]string{{"ps", "-a", "-q"}, {"pods", "-q"}, {"images", "-q"}} {
			if out := c.run(list...); out != "" {
				t.Errorf("crictl %s at the end: %s", list[0], out)
			}
		}
		n.Check()
	})
}
