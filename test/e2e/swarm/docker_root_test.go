package swarm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// edgeIP is where the worker is, in a network namespace of its own.
const edgeIP = "10.99.0.10"

// door is a hub that answers docker's command line, with a worker of ours.
type door struct {
	t      *testing.T
	hub    *nodetest.Hub
	docker []string // how docker's program is started
	socket string
	ref    string // of busybox
}

func newDoor(t *testing.T) *door {
	t.Helper()
	packages := os.Getenv(dockerd.DirEnv)
	if packages == "" {
		t.Skipf("no docker: set %s to the directory of the unpacked packages (hack/dockerd.sh DIR)", dockerd.DirEnv)
	}
	if err := dockerd.Bridge(t.Context()); err != nil {
		t.Fatal(err)
	}
	ref, certs := nodetest.ServeBusybox(t, dockerd.ManagerIP)
	sockets, err := os.MkdirTemp("", "longshore-door-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	d := &door{t: t, docker: dockerd.CLI(packages), socket: filepath.Join(sockets, "docker.sock"), ref: ref}
	d.hub = nodetest.StartHub(t, dockerd.ManagerIP+":4000", "--heartbeat", "1s", "--docker-socket", d.socket)
	link := nodetest.Plug(t, "swarm0", "edge0", edgeIP+"/24")
	n := nodetest.Start(t, nodetest.Options{NetNS: link.NetNS(), Config: fmt.Sprintf("[images]\nregistry_config = [%q]\n[face.swarm]\nenabled = true\n", certs)})
	if _, err := n.CLI("swarm", "join", d.hub.Addr, "--token", d.must("", "swarm", "join-token", "--quiet", "worker")); err != nil {
		t.Fatal(err)
	}
	return d
}

// run runs a command of docker's command line against the hub.
func (d *door) run(input string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(d.t.Context(), roottest.Patience())
	defer cancel()
	argv := append(append(slices.Clone(d.docker), "--host", "unix://"+d.socket), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = []string{"HOME=" + filepath.Dir(d.socket), "PATH=/usr/bin:/bin"}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

func (d *door) must(input string, args ...string) string {
	d.t.Helper()
	out, err := d.run(input, args...)
	if err != nil {
		d.t.Fatal(err)
	}
	return out
}

// says waits until a command says so.
func (d *door) says(want string, args ...string) {
	d.t.Helper()
	var got string
	defer func() {
		if d.t.Failed() {
			d.t.Logf("docker %s says %q", strings.Join(args, " "), got)
		}
	}()
	roottest.Eventually(d.t, "docker "+strings.Join(args, " ")+" says "+want, func() bool {
		out, err := d.run("", args...)
		got = fmt.Sprint(out, err)
		return err == nil && strings.Contains(out, want)
	})
}

// TestDockersCommandLine: docker's own command line creates, scales, updates, rolls back, logs and
// removes services of a hub, and a stack. `longshore-hub apply` makes the same declaration of the
// stack's file.
func TestDockersCommandLine(t *testing.T) {
	beside(t, func(t *testing.T) {
		d := newDoor(t)
		d.says("Ready", "node", "ls", "--filter", "role=worker", "--format", "{{.Status}}")
		if got, want := d.must("", "swarm", "join-token", "--quiet", "worker"), d.hub.Must("", "token"); got != want {
			t.Errorf("the token is %s, the hub's %s", got, want)
		}
		d.service()
		d.stack()
		if _, err := d.run("", "service", "create", "--publish", "80:80", d.ref); err == nil || !strings.Contains(err.Error(), "ingress") {
			t.Errorf("a port of the mode ingress: %v", err)
		}
		worker := d.must("", "node", "ls", "--filter", "role=worker", "--quiet")
		d.must("", "node", "update", "--availability", "drain", worker)
		if got := d.must("", "node", "inspect", "--format", "{{.Spec.Availability}} {{.Status.State}}", worker); got != "drain ready" {
			t.Errorf("the node is %s", got)
		}
	})
}

// service goes through the life of a service with a secret and a config.
func (d *door) service() {
	t := d.t
	d.must("planted-secret", "secret", "create", "key", "-")
	d.must(" and a config", "config", "create", "conf", "-")
	// Not detached: the command waits until the tasks run.
	d.must("", "service", "create", "--name", "app", "--secret", "key", "--config", "source=conf,target=/etc/app.conf", "--publish", "mode=host,target=80,published=8080",
		"--env", "V=1", "--stop-grace-period", "10ms", "--update-monitor", "200ms", "--rollback-monitor", "200ms", d.ref,
		"sh", "-c", `mkdir /www; cat /run/secrets/key /etc/app.conf >/www/index.html; echo " $V" >>/www/index.html; cat /www/index.html; exec httpd -f -p 80 -h /www`)
	if got := d.must("", "service", "ls", "--format", "{{.Name}} {{.Mode}} {{.Replicas}}"); got != "app replicated 1/1" {
		t.Errorf("service ls: %s", got)
	}
	d.says("planted-secret and a config 1", "service", "logs", "--raw", "app")
	serves := func(what string) {
		t.Helper()
		roottest.Eventually(t, "it serves "+what, func() bool { return strings.Contains(get(t, "http://"+edgeIP+":8080/"), what) })
	}
	serves("planted-secret and a config 1")
	if got := d.must("", "secret", "inspect", "key"); strings.Contains(got, "planted") {
		t.Errorf("the secret is shown: %s", got)
	}
	if _, err := d.run("", "secret", "rm", "key"); err == nil || !strings.Contains(err.Error(), "app") {
		t.Errorf("a secret that is used is removed: %v", err)
	}

	if got := d.hub.Must("", "events"); !strings.Contains(got, "uid 0") || !strings.Contains(got, "POST /services/create") {
		t.Errorf("events: %s", got)
	}
	d.must("", "service", "update", "--env-add", "V=2", "app")
	serves("config 2")
	if got := d.must("", "service", "inspect", "--format", "{{.UpdateStatus.State}}", "app"); got != "completed" {
		t.Errorf("the update is %s", got)
	}
	d.must("", "service", "rollback", "app")
	serves("config 1")
	if got := d.must("", "service", "inspect", "--format", "{{.UpdateStatus.State}} {{.Spec.TaskTemplate.ContainerSpec.Env}}", "app"); got != "rollback_completed [V=1]" {
		t.Errorf("after the rollback it is %s", got)
	}

	d.must("", "service", "create", "--detach", "--name", "many", "--stop-grace-period", "10ms", d.ref, "sleep", "100000")
	d.must("", "service", "scale", "many=3")
	d.says("3/3", "service", "ls", "--filter", "name=many", "--format", "{{.Replicas}}")
	if got := d.must("", "service", "ps", "--filter", "desired-state=running", "--format", "{{.Name}} {{.CurrentState}}", "many"); strings.Count(got, "Running") != 3 || !strings.Contains(got, "many.1 ") {
		t.Errorf("service ps: %s", got)
	}
	d.must("", "service", "rm", "many", "app")
	roottest.Eventually(t, "they are gone", func() bool { return len(d.hub.Tasks("app"))+len(d.hub.Tasks("many")) == 0 })
	d.must("", "secret", "rm", "key")
	d.must("", "config", "rm", "conf")
}

// stack deploys one file by both command lines.
func (d *door) stack() {
	t := d.t
	dir := filepath.Dir(d.socket)
	for name, text := range map[string]string{"key": "planted-secret", "shop.yaml": fmt.Sprintf(`
version: "3.8"
services:
  web:
    image: %s
    command: [sh, -c, 'cat /run/secrets/key /etc/app.conf; exec sleep 100000']
    environment: {COLOR: blue}
    stop_grace_period: 10ms
    networks: [default]
    secrets: [key]
    configs: [{source: conf, target: /etc/app.conf}]
    volumes: ["data:/data"]
    healthcheck: {test: [CMD, "true"], interval: 1s}
    deploy:
      replicas: 2
      labels: {team: one}
      resources: {limits: {memory: 64M}, reservations: {memory: 16M}}
      restart_policy: {condition: any, delay: 1s}
      update_config: {parallelism: 1, monitor: 200ms, failure_action: rollback}
networks: {default: {external: true, name: bridge}}
volumes: {data: {}}
secrets: {key: {file: ./key}}
configs: {conf: {file: ./key}}
`, d.ref)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "shop.yaml")
	declared := func() (spec map[string]any) {
		t.Helper()
		if err := json.Unmarshal([]byte(d.must("", "service", "inspect", "--format", "{{json .Spec}}", "shop_web")), &spec); err != nil {
			t.Fatal(err)
		}
		return spec
	}
	// --resolve-image: the hub looks up no registry.
	d.must("", "stack", "deploy", "--resolve-image", "never", "--compose-file", file, "shop")
	d.says("2/2", "service", "ls", "--filter", "label=com.docker.stack.namespace=shop", "--format", "{{.Replicas}}")
	if got := d.must("", "stack", "ls", "--format", "{{.Name}} {{.Services}}"); got != "shop 1" {
		t.Errorf("stack ls: %s", got)
	}
	if got := d.must("", "stack", "services", "--format", "{{.Name}}", "shop"); got != "shop_web" {
		t.Errorf("stack services: %s", got)
	}
	if got := d.must("", "stack", "ps", "--format", "{{.CurrentState}}", "shop"); strings.Count(got, "Running") != 2 {
		t.Errorf("stack ps: %s", got)
	}
	before, tasks := declared(), d.hub.Running("shop_web", 2)
	if out := d.hub.Must("", "diff", "--name", "shop", "-f", file, "--json"); strings.Count(out, `"change"`) != 3 || strings.Count(out, `"change": "none"`) != 3 {
		t.Errorf("after docker stack deploy, apply would change: %s", out)
	}
	d.hub.Must("", "apply", "--name", "shop", "-f", file)
	if after := declared(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("apply declares\n%v\nand docker stack deploy\n%v", after, before)
	}
	if now := d.hub.Running("shop_web", 2); now[0].ID != tasks[0].ID || now[1].ID != tasks[1].ID {
		t.Error("the same declaration has started the tasks again")
	}
	d.must("", "stack", "rm", "shop")
	roottest.Eventually(t, "the stack is gone", func() bool { return len(d.hub.Tasks("shop_web")) == 0 })
	if left := d.must("", "secret", "ls", "--quiet") + d.must("", "config", "ls", "--quiet"); left != "" {
		t.Errorf("left: %s", left)
	}
}
