package cri

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestInspectTemplates: the templates of scripts for containerd print the kernel's facts with
// the real crictl, with each runtime that works here.
func TestInspectTemplates(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, h := range handlers(t) {
			t.Run(h.GetName(), func(t *testing.T) { inspectTemplates(t, h.GetName()) })
		}
	})
}

func inspectTemplates(t *testing.T, runtime string) {
	n := nodetest.Start(t, nodetest.Options{})
	c := newTool(t, n)
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	ref := imagetest.NewRegistry(t).Push("busybox", "latest", built)
	c.run("pull", ref)
	shared := t.TempDir()
	pod := c.file("pod.json", object{
		"metadata": object{"name": "web", "namespace": "default", "uid": "u1"}, "log_directory": filepath.Join(n.Dir, "logs"), "hostname": "web",
		"linux": object{"security_context": object{"namespace_options": object{"pid": 1}}},
	})
	podID := c.run("runp", "--runtime", runtime, pod)
	id := c.run("create", "--no-pull", podID, c.file("container.json", object{
		"metadata": object{"name": "app"}, "image": object{"image": ref}, "log_path": "app.log", "command": []string{"/bin/sleep", "1000"},
		"envs":   []object{{"key": "TOKEN", "value": []byte("s3cret")}},
		"mounts": []object{{"host_path": shared, "container_path": "/work"}},
		"linux":  object{"resources": object{"memory_limit_in_bytes": 67108864, "cpu_shares": 512}},
	}), pod)
	c.run("start", id)
	say := func(verb, object, template string) string {
		t.Helper()
		return c.run(verb, "-o", "go-template", "--template", template, object)
	}
	pid := say("inspect", id, "{{.info.pid}}")
	if _, err := strconv.Atoi(pid); err != nil {
		t.Fatalf("pid %q", pid)
	}
	link := func(pid, ns string) string {
		t.Helper()
		to, err := os.Readlink("/proc/" + pid + "/ns/" + ns)
		if err != nil {
			t.Fatal(err)
		}
		return to
	}
	inode := func(path string) string {
		t.Helper()
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		proc, err := os.Stat("/proc/" + pid + "/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return strconv.FormatBool(os.SameFile(st, proc))
	}

	for template, want := range map[string]string{
		"{{.info.sandboxID}}":                      podID,
		"{{.info.removing}} {{.info.snapshotKey}}": "false " + id,
		"{{.info.runtimeType}}":                    runtime,
		"{{.info.runtimeSpec.hostname}}":           "web",
		`{{range .info.runtimeSpec.mounts}}{{if (eq .destination "/work")}}{{.source}}{{end}}{{end}}`: shared,
		`{{index .info.runtimeSpec.annotations "io.kubernetes.cri.image-name"}}`:                      ref,
		"{{index .info.runtimeSpec.process.args 0}}":                                                  "/bin/sleep",
		"{{.info.config.metadata.name}} {{.status.metadata.name}}":                                    "app app",
	} {
		if got := say("inspect", id, template); got != want {
			t.Errorf("%s prints %q, want %q", template, got, want)
		}
	}
	if out := c.run("inspect", id); strings.Contains(out, "s3cret") || strings.Contains(out, "czNjcmV0") || !strings.Contains(out, `"TOKEN="`) {
		t.Errorf("variables in inspect:\n%s", out)
	}
	// A template reads the netns path, and nsenter goes there by the pod's pid.
	if path := say("inspect", id, `{{range .info.runtimeSpec.linux.namespaces}}{{if eq .type "network"}}{{.path}}{{end}}{{end}}`); inode(path) != "true" {
		t.Errorf("the container is not in %s", path)
	}
	if path := say("inspectp", podID, `{{range .info.runtimeSpec.linux.namespaces}}{{if eq .type "network"}}{{.path}}{{end}}{{end}}`); inode(path) != "true" {
		t.Errorf("the pod is not in %s", path)
	}
	if got := link(say("inspectp", podID, "{{.info.pid}}"), "net"); got != link(pid, "net") {
		t.Errorf("the pod's pid is in %s", got)
	}
	// Without a pid namespace of the pod there is no other process that it could be.
	if got := say("inspectp", podID, "{{.info.pid}}"); got != pid {
		t.Errorf("the pod's pid is %s, the container's %s", got, pid)
	}
	address := say("inspectp", podID, "{{.status.network.ip}}")
	if got := say("inspectp", podID, "{{(index .info.cniResult.Interfaces.eth0.IPConfigs 0).IP}} {{.info.sandboxMetadata.Metadata.IP}}"); got != address+" "+address {
		t.Errorf("addresses %q, the status has %q", got, address)
	}
	// The template's cgroup is that of the process.
	cgroup := say("inspect", id, "{{.info.runtimeSpec.linux.cgroupsPath}}")
	of, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil || len(cgroup) < 2 || !strings.Contains(string(of), strings.TrimPrefix(cgroup, "/")) {
		t.Errorf("cgroupsPath %s, the process is in %s (%v)", cgroup, of, err)
	}
	c.run("update", "--memory", "33554432", id)
	if got := say("inspect", id, "{{.info.runtimeSpec.linux.resources.memory.limit}}"); got != "33554432" {
		t.Errorf("memory limit after the update: %s", got)
	}
	if got := c.run("info", "-o", "go-template", "--template", "{{.config.containerd.defaultRuntimeName}} {{.lastCNILoadStatus}} {{.config.containerd.runtimes."+runtime+".runtimeType}}"); got != "native OK "+runtime {
		t.Errorf("info: %s", got)
	}
	c.run("stopp", podID)
	if got := say("inspectp", podID, "{{.info.pid}} {{.info.processStatus}} {{.info.netNamespaceClosed}}"); got != "0 deleted true" {
		t.Errorf("after stopp: %s", got)
	}
	if got := say("inspect", id, "{{.info.pid}} {{.info.runtimeSpec.hostname}}"); got != "0 web" {
		t.Errorf("a container that has ended: %s", got)
	}
	c.run("rmp", podID)
	n.Check()
}
