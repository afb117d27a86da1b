package dockerclients

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tcexec "github.com/testcontainers/testcontainers-go/exec"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTestcontainers uses each kind of call of testcontainers-go, with its reaper.
func TestTestcontainers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*roottest.Patience())
		defer cancel()
		site, err := network.New(ctx, network.WithLabels(map[string]string{"of": "site"}))
		if err != nil {
			t.Fatal(err)
		}
		web, err := testcontainers.Run(ctx, "busybox", testcontainers.WithCmd("sh", "-c", "echo ready; exec httpd -f -p 80 -h /www"),
			testcontainers.WithExposedPorts("80/tcp"), network.WithNetwork([]string{"web"}, site), testcontainers.WithEnv(map[string]string{"A": "b"}),
			testcontainers.WithFiles(testcontainers.ContainerFile{Reader: strings.NewReader("served\n"), ContainerFilePath: "/www/page", FileMode: 0o640}),
			testcontainers.WithConfigModifier(func(c *container.Config) {
				c.Healthcheck = &container.HealthConfig{Test: []string{"CMD", "wget", "-q", "-O-", "http://127.0.0.1/page"}, Interval: 100 * time.Millisecond}
			}),
			testcontainers.WithWaitStrategy(wait.ForLog("ready"), wait.ForListeningPort("80/tcp"), wait.ForHTTP("/page").WithPort("80/tcp"),
				wait.ForExec([]string{"true"}), wait.ForFile("/www/page"), wait.ForHealthCheck()))
		if err != nil {
			t.Fatal(err)
		}
		endpoint, err := web.PortEndpoint(ctx, "80/tcp", "http")
		if err != nil {
			t.Fatal(err)
		}
		if got := page(t, endpoint+"/page"); got != "served\n" {
			t.Errorf("a published port: %q", got)
		}
		if list, err := web.Networks(ctx); err != nil || !slices.Equal(list, []string{site.Name}) {
			t.Errorf("networks: %q, %v", list, err)
		}
		execs(ctx, t, web)
		files(ctx, t, web)

		peer, err := testcontainers.Run(ctx, "busybox", testcontainers.WithCmd("sh", "-c", "wget -q -O- http://web/page; exit 3"),
			network.WithNetwork(nil, site), testcontainers.WithWaitStrategy(wait.ForExit()))
		if err != nil {
			t.Fatal(err)
		}
		logs, err := peer.Logs(ctx)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(logs)
		if err != nil || string(text) != "served\n" {
			t.Errorf("logs: %q, %v", text, err)
		}
		if state, err := peer.State(ctx); err != nil || state.Running || state.ExitCode != 3 {
			t.Errorf("state after the end: %+v, %v", state, err)
		}

		again := []testcontainers.ContainerCustomizer{testcontainers.WithCmd("sleep", "1000"), testcontainers.WithReuseByName("kept")}
		first, err := testcontainers.Run(ctx, "busybox", again...)
		if err != nil {
			t.Fatal(err)
		}
		second, err := testcontainers.Run(ctx, "busybox", again...)
		if err != nil || first.GetContainerID() != second.GetContainerID() {
			t.Errorf("reuse: %v, %v: %v", first, second, err)
		}
		grace := time.Duration(0)
		if err := first.Stop(ctx, &grace); err != nil {
			t.Error(err)
		}
		if err := first.Start(ctx); err != nil || !first.IsRunning() {
			t.Errorf("start after a stop: %v", err)
		}

		if _, err := testcontainers.Run(ctx, "busybox:none"); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Errorf("an unknown image: %v", err)
		}
		for _, c := range []testcontainers.Container{web, peer, first} {
			if err := c.Terminate(ctx, testcontainers.StopTimeout(0)); err != nil {
				t.Error(err)
			}
		}
		if err := site.Remove(ctx); err != nil {
			t.Error(err)
		}
		if got := names(t); len(got) != 1 || !strings.HasPrefix(got[0], "/reaper_") {
			t.Errorf("containers at the end: %q", got)
		}
		r.Check()
	})
}

// execs runs commands in a container.
func execs(ctx context.Context, t *testing.T, c testcontainers.Container) {
	t.Helper()
	code, output, err := c.Exec(ctx, []string{"sh", "-c", "echo out; id -u; pwd; echo $A; exit 7"},
		tcexec.Multiplexed(), tcexec.WithUser("12"), tcexec.WithWorkingDir("/bin"), tcexec.WithEnv([]string{"A=c"}))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(output); err != nil || code != 7 || string(text) != "out\n12\n/bin\nc\n" {
		t.Errorf("exec: exit code %d, %q, %v", code, text, err)
	}
}

// files copies files into and out of a container.
func files(ctx context.Context, t *testing.T, c testcontainers.Container) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "deep"), []byte("below"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.CopyToContainer(ctx, []byte("copied"), "/srv/made/file", 0o604); err != nil {
		t.Fatal(err)
	}
	if err := c.CopyDirToContainer(ctx, dir, "/srv/"+filepath.Base(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"/srv/made/file": "copied", "/srv/" + filepath.Base(dir) + "/deep": "below"} {
		out, err := c.CopyFileFromContainer(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(out); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if _, err := c.CopyFileFromContainer(ctx, "/none"); err == nil {
		t.Error("a file that does not exist is copied")
	}
}

// TestRyuk ends a program that does not remove its containers: the reaper, which has the node's socket, does it.
func TestRyuk(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := start(t)
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), leavesEnv+"=1", "RYUK_RECONNECTION_TIMEOUT=1s")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || !strings.HasSuffix(string(out), "left\n") {
			t.Fatalf("the program: %v\n%s%s", err, out, &errs)
		}
		if got := names(t); len(got) != 2 {
			t.Errorf("containers after the program's end: %q", got)
		}
		nodetest.Eventually(t, "the reaper has removed all, and itself", func() bool { return len(names(t)) == 0 })
		c := docker(t)
		volumes, err := c.VolumeList(t.Context(), client.VolumeListOptions{})
		if err != nil || len(volumes.Items) != 0 {
			t.Errorf("volumes are left: %+v, %v", volumes.Items, err)
		}
		networks, err := c.NetworkList(t.Context(), client.NetworkListOptions{Filters: client.Filters{}.Add("type", "custom")})
		if err != nil || len(networks.Items) != 0 {
			t.Errorf("networks are left: %+v, %v", networks.Items, err)
		}
		r.Check()
	})
}

// leave starts a container on a network and with a volume, and leaves them.
func leave() {
	ctx := context.Background()
	site, err := network.New(ctx)
	if err == nil {
		_, err = testcontainers.Run(ctx, "busybox", testcontainers.WithCmd("sleep", "1000"), network.WithNetwork(nil, site),
			testcontainers.WithMounts(testcontainers.VolumeMount("kept", "/kept")))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("left")
}

// docker is a client of the node.
func docker(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.FromEnv)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// names returns the names of all containers.
func names(t *testing.T) (list []string) {
	t.Helper()
	all, err := docker(t).ContainerList(t.Context(), client.ContainerListOptions{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range all.Items {
		list = append(list, c.Names...)
	}
	slices.Sort(list)
	return list
}

// page requests a URL and returns the body of the answer.
func page(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
