package logdrivers

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// texts returns the texts of the messages with a tag, sorted.
func (s *service) texts(tag string) (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.other {
		head, text, _ := strings.Cut(l, ": ")
		if strings.Contains(head, " "+tag+"[") {
			list = append(list, text)
		}
	}
	slices.Sort(list)
	return list
}

// got waits for both lines of the program under a tag.
func (s *service) got(t *testing.T, tag string) {
	t.Helper()
	roottest.Eventually(t, "both lines of "+tag+" arrive", func() bool { return slices.Equal(s.texts(tag), []string{"fault", "hello"}) })
}

const script = "echo hello; echo fault >&2"

// mesos calls the operator API.
func mesos(t *testing.T, n *nodetest.Node, call string, body map[string]any) (int, string) {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(n.State, "mesos.sock"))
	}}}
	defer c.CloseIdleConnections()
	data, err := json.Marshal(map[string]any{"type": call, strings.ToLower(call): body})
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent/api/v1", bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(out)
}

// nomad starts the plugin that Nomad starts.
func nomad(t *testing.T, n *nodetest.Node, more map[string]any) *nomadtest.Client {
	t.Helper()
	c := nomadtest.Plugin(t, filepath.Join(nodetest.Bin(t), "longshore"))
	config := map[string]any{"socket": filepath.Join(n.State, "nomad.sock")}
	for k, v := range more {
		config[k] = v
	}
	c.Configure(t, config, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	return c
}

// logsLeft returns the files of the followers.
func logsLeft(n *nodetest.Node) []string {
	list, _ := filepath.Glob(filepath.Join(n.Root, "log-drivers", "*"))
	return list
}

// TestPodsJobsAndMesosTasks: the annotation, the label and Nomad's block name a service of the network; sockets and files of the node
// are refused. The faces' own logs have the lines too.
func TestPodsJobsAndMesosTasks(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := listen(t, "127.0.0.1:0")
		address := "syslog-address=tcp://" + s.l.Addr().String()
		n := nodetest.Start(t, nodetest.Options{Config: "[network]\nmode = \"builtin\"\n[face.mesos]\nenabled = true\n"})
		image := n.Busybox(t)
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Fatal(err)
		}
		pushed := imagetest.NewRegistry(t).Push("busybox", "1", built)

		cfg := n.PodConfig("pod")
		cfg.Annotations = map[string]string{
			convert.LogDriverAnnotation: "syslog", convert.LogOptionsAnnotation: address + "\ntag=pod",
			convert.LogDriverAnnotation + ".second": "syslog", convert.LogOptionsAnnotation + ".second": address + "\ntag=second",
			convert.LogDriverAnnotation + ".quiet": "json-file",
			convert.LogDriverAnnotation + ".bad":   "syslog", convert.LogOptionsAnnotation + ".bad": "syslog-address=unix:///run/x",
		}
		p := n.RunPod(t, cfg)
		for _, name := range []string{"first", "second", "quiet"} {
			p.Run(t, nodetest.ContainerConfig(name, image, "/bin/sh", "-c", script)).WaitExited(t)
		}
		bad := nodetest.ContainerConfig("bad", image, "/bin/true")
		if _, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: p.ID, Config: bad, SandboxConfig: cfg}); err == nil || !strings.Contains(err.Error(), "belongs to the node's operator") {
			t.Errorf("a pod's socket: %v", err)
		}
		s.got(t, "pod")
		s.got(t, "second")
		p.Remove(t)

		label := func(driver, options string) []map[string]any {
			return []map[string]any{{"labels": map[string]any{"labels": []map[string]any{{"key": core.LogDriverLabel, "value": driver}, {"key": core.LogOptionsLabel, "value": options}}}}}
		}
		launch := func(name, options string) (int, string) {
			return mesos(t, n, "LAUNCH_CONTAINER", map[string]any{
				"container_id": map[string]any{"value": name}, "command": map[string]any{"value": script},
				"container": map[string]any{"type": "MESOS", "mesos": map[string]any{"image": map[string]any{"type": "DOCKER", "docker": map[string]any{"name": image}}}, "network_infos": label("syslog", options)},
			})
		}
		if status, text := launch("bad", "syslog-tls-ca-cert=/etc/shadow"); status != http.StatusBadRequest || !strings.Contains(text, "belongs to the node's operator") {
			t.Errorf("a file in a label of Mesos: %d %s", status, text)
		}
		if status, text := launch("task", address+"\ntag=task"); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		about := map[string]any{"container_id": map[string]any{"value": "task"}}
		if status, text := mesos(t, n, "WAIT_CONTAINER", about); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}
		s.got(t, "task")
		if out := cli(t, n, "logs", "task"); !strings.Contains(out, "hello") {
			t.Errorf("longshore logs: %q", out)
		}
		if status, text := mesos(t, n, "REMOVE_CONTAINER", about); status != http.StatusOK {
			t.Errorf("%d %s", status, text)
		}

		dir := filepath.Join(n.Dir, "alloc")
		const alloc = "5f0f0c4e-8d5c-4f3d-9a5d-000000000001"
		job := func(name string, logging map[string]any) *nomaddriver.TaskConfig {
			for _, d := range []string{"alloc/logs", "alloc/data", name + "/local", name + "/secrets"} {
				if err := os.MkdirAll(filepath.Join(dir, alloc, d), 0o777); err != nil {
					t.Fatal(err)
				}
			}
			return nomadtest.Task(dir, alloc, name, "aaaaaaaa", map[string]any{"image": pushed, "command": "/bin/sh", "args": []string{"-c", script}, "logging": logging})
		}
		options := map[string]any{"syslog-address": "tcp://" + s.l.Addr().String(), "tag": "web"}
		files := nomad(t, n, nil)
		refused := job("bad", map[string]any{"type": "fluentd", "config": map[string]any{"fluentd-address": "unix:///run/x"}})
		if _, err := files.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: refused}); err == nil || !strings.Contains(err.Error(), "belongs to the node's operator") {
			t.Errorf("a job's socket: %v", err)
		}
		task := job("web", map[string]any{"type": "syslog", "config": options})
		runTask(t, files, task, func() string {
			b, _ := os.ReadFile(filepath.Join(dir, alloc, "alloc/logs/web.stdout.0"))
			return string(b)
		})
		s.got(t, "web")

		// The FIFOs of Nomad's own collector have the lines too.
		fifos := nomad(t, n, map[string]any{"logs": "fifo"})
		options["tag"] = "fifo"
		task = job("fifo", map[string]any{"driver": "syslog", "config": options})
		task.StdoutPath, task.StderrPath = filepath.Join(n.Dir, "out"), filepath.Join(n.Dir, "err")
		read := fifo(t, task.StdoutPath)
		fifo(t, task.StderrPath)
		runTask(t, fifos, task, read)
		s.got(t, "fifo")

		if left := logsLeft(n); len(left) > 0 {
			t.Errorf("files of removed containers: %q", left)
		}
		n.Check()
	})
}

// fifo makes a FIFO. The function returns its output so far.
func fifo(t *testing.T, path string) func() string {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	out := &nomadtest.Buffer{}
	go func() { _, _ = io.Copy(out, f) }()
	return out.String
}

// runTask runs a task to its end, waits until Nomad's own log has its output, and removes it.
func runTask(t *testing.T, c *nomadtest.Client, task *nomaddriver.TaskConfig, log func() string) {
	t.Helper()
	if _, err := c.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()}); err != nil {
		t.Fatal(err)
	}
	roottest.Eventually(t, "Nomad's log has the line", func() bool { return log() == "hello\n" })
	if _, err := c.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
		t.Fatal(err)
	}
}

// TestTheNodesDefault: containers that name no driver have the operator's.
func TestTheNodesDefault(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		s := listen(t, "127.0.0.1:0")
		n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf("[network]\nmode = \"builtin\"\n[logs]\ndriver = \"syslog\"\noptions = { syslog-address = \"tcp://%s\", tag = \"{{.Name}}\" }\n", s.l.Addr())})
		image := n.Busybox(t)
		cli(t, n, "run", "-d", "--name", "given", image, "sh", "-c", script)
		cli(t, n, "run", "-d", "--name", "alone", "--log-driver", "json-file", image, "sh", "-c", script)
		cli(t, n, "run", "-d", "--name", "unlogged", "--log-driver", "none", image, "sh", "-c", script)
		pod := n.RunPod(t, n.PodConfig("pod"))
		pod.Run(t, nodetest.ContainerConfig("app", image, "/bin/sh", "-c", script)).WaitExited(t)
		s.got(t, "given")
		roottest.Eventually(t, "the pod's lines arrive", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.other) == 4
		})
		for _, name := range []string{"given", "alone", "unlogged"} {
			cli(t, n, "wait", name)
			cli(t, n, "rm", name)
		}
		pod.Remove(t)
		if list := s.texts("alone"); len(list) > 0 {
			t.Errorf("a container with json-file has sent %q", list)
		}
		n.Check()
	})
}
