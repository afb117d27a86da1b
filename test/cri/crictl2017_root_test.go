package cri

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// crictl2017Env names crictl of cri-tools v0.2, which speaks the API of 2017.
const crictl2017Env = "CRICTL2017"

// TestCrictlOf2017 goes through an ordinary pod's whole life with the crictl of that time.
func TestCrictlOf2017(t *testing.T) {
	bin := os.Getenv(crictl2017Env)
	if bin == "" {
		t.Skip(crictl2017Env + " names no crictl of cri-tools v0.2")
	}
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.cri.alpha]\nenabled = true\n"})
		c := tool{t: t, bin: bin, n: n}
		c.file("crictl.yaml", object{"runtime-endpoint": filepath.Join(n.State, "cri.sock"), "image-endpoint": filepath.Join(n.State, "cri.sock"), "timeout": 30})
		wantHas := func(out string, want ...string) {
			t.Helper()
			for _, w := range want {
				if !strings.Contains(out, w) {
					t.Errorf("no %q in\n%s", w, out)
				}
			}
		}
		wantHas(c.run("info"), "longshore", "v1alpha1")
		wantHas(c.run("status"), "RuntimeReady", "NetworkReady")

		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		ref := imagetest.NewRegistry(t).Push("busybox", "latest", built)
		wantHas(c.run("pull", ref), "sha256:")
		image := c.run("images", "-q")
		wantHas(c.run("inspecti", ref), image)

		logs := filepath.Join(n.Dir, "logs")
		if err := os.Mkdir(logs, 0o755); err != nil {
			t.Fatal(err)
		}
		pod := c.file("pod.json", object{
			"metadata": object{"name": "web", "namespace": "default", "uid": "u1", "attempt": 1}, "log_directory": logs, "hostname": "web",
			"labels": object{"app": "web"}, "linux": object{},
		})
		container := c.file("container.json", object{
			"metadata": object{"name": "app"}, "image": object{"image": ref}, "log_path": "busybox/0.log", "stdin": true,
			"command": []string{"/bin/sh", "-c", "mkdir /www; echo page > /www/index.html; httpd -p 8080 -h /www; echo hello; echo oops >&2; while read line; do echo heard $line; done; exec sleep 1000"}, "linux": object{},
		})
		podID := c.run("runs", pod)
		if podID != "name=web,uid=u1,namespace=default,attempt=1" {
			t.Errorf("runs: %s", podID)
		}
		if again := c.run("runs", pod); again != podID {
			t.Errorf("runs again: %s", again)
		}
		wantHas(c.run("inspects", podID), "Status: SANDBOX_READY", "app -> web")
		if out := c.run("sandboxes", "--quiet", "--label", "app=web", "--state", "ready"); out != podID {
			t.Errorf("sandboxes: %s", out)
		}
		id := c.run("create", podID, container, pod)
		if id != podID+"|name=app,attempt=0" {
			t.Errorf("create: %s", id)
		}
		wantHas(c.run("ps", "--sandbox", podID, "-v"), id, "CONTAINER_CREATED")
		c.run("start", id)
		nodetest.Eventually(t, "both lines are in the log", func() bool {
			out, errs, err := c.try("logs", id)
			return err == nil && out == "hello\n" && errs == "oops\n"
		})
		wantHas(c.run("inspect", id), "State: CONTAINER_RUNNING")
		wantHas(c.run("inspect", "-o", "json", id), filepath.Join(logs, "busybox/0.log"))

		if out := c.run("exec", "-s", id, "/bin/echo", "from", "inside"); out != "from inside" {
			t.Errorf("exec -s: %q", out)
		}
		if out, errs, err := c.try("exec", "--", id, "/bin/sh", "-c", "echo out; echo err >&2"); err != nil || out != "out\n" || errs != "err\n" {
			t.Errorf("exec: %q, %q, %v", out, errs, err)
		}
		if out, errs, err := c.try("exec", "-t", id, "/bin/tty"); err != nil || !strings.HasPrefix(out, "/dev/") {
			t.Errorf("exec -t: %q, %q, %v", out, errs, err)
		}
		if _, _, err := c.try("exec", "--", id, "/bin/sh", "-c", "exit 7"); err == nil {
			t.Error("exec of a failure succeeds")
		}
		c.attach(id)
		c.forward(podID)
		c.run("update", "--memory", "67108864", id)
		if out := c.run("exec", "-s", id, "/bin/hostname"); out != "web" {
			t.Errorf("host name %q", out)
		}

		c.run("stop", "--timeout", "0", id)
		wantHas(c.run("inspect", id), "State: CONTAINER_EXITED", "Exit Code: 9")
		c.run("rm", id)
		if out := c.run("ps", "--quiet"); out != "" {
			t.Errorf("ps: %s", out)
		}
		c.run("stops", podID)
		wantHas(c.run("inspects", podID), "Status: SANDBOX_NOTREADY")
		c.run("rms", podID)
		if out := c.run("sandboxes", "--quiet"); out != "" {
			t.Errorf("sandboxes: %s", out)
		}
		c.run("rmi", ref)
		if out := c.run("images", "-q"); out != "" {
			t.Errorf("images: %s", out)
		}
		n.Check()
	})
}

// long starts a lasting command of the tool, and returns its output and its kill.
func (c tool) long(stdin *os.File, args ...string) (*bufio.Scanner, func()) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), roottest.Patience())
	cmd := exec.CommandContext(ctx, c.bin, append([]string{"--config", filepath.Join(c.n.Dir, "crictl.yaml")}, args...)...)
	cmd.Stderr = os.Stderr
	if stdin != nil {
		cmd.Stdin = stdin
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return bufio.NewScanner(out), func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
		cancel()
	}
}

// attach says something to the container and hears its answer.
func (c tool) attach(id string) {
	c.t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	out, end := c.long(r, "attach", "-i", id)
	defer end()
	if _, err := w.WriteString("hello\n"); err != nil {
		c.t.Fatal(err)
	}
	if !out.Scan() || out.Text() != "heard hello" {
		c.t.Errorf("attach: %q, %v", out.Text(), out.Err())
	}
	// Its input ends the session, and not the container's.
	if err := w.Close(); err != nil {
		c.t.Fatal(err)
	}
	if out.Scan() || out.Err() != nil {
		c.t.Errorf("attach goes on: %q, %v", out.Text(), out.Err())
	}
}

// forward asks the pod's server over a port that the tool opens here.
func (c tool) forward(pod string) {
	c.t.Helper()
	out, end := c.long(nil, "port-forward", pod, "18080:8080")
	defer end()
	if !out.Scan() || !strings.Contains(out.Text(), "18080") {
		c.t.Errorf("port-forward: %q, %v", out.Text(), out.Err())
		return
	}
	nodetest.Eventually(c.t, "the page is there", func() bool {
		resp, err := http.Get("http://127.0.0.1:18080/") //nolint:noctx // on this machine
		if err != nil {
			return false
		}
		b, err := io.ReadAll(resp.Body)
		return err == nil && resp.Body.Close() == nil && string(b) == "page\n"
	})
}
