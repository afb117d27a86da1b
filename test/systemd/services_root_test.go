package systemd

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

// quadlets are the Quadlet files of the test. The container has values that look like further lines and commands.
var quadlets = map[string]string{
	"back.network": "[Network]\nSubnet=10.89.77.0/24\n",
	"data.volume":  "[Volume]\n",
	"db.container": `[Container]
Image=IMAGE
Pull=never
Network=back.network
Volume=data.volume:/data
Environment="LINES=a\nExecStartPre=/bin/touch /evil" 'QUOTE="' DOLLAR=$$HOME PERCENT=100%% UNIT=%n
HealthCmd=test -e /data/ready
HealthInterval=500ms
Notify=healthy
Exec=sh -c 'env >/data/env; trap "exit 0" TERM; echo started; while :; do sleep 0.2; done'
[Service]
Restart=always
TimeoutStartSec=300
`,
	"job@.container": "[Container]\nImage=IMAGE\nPull=never\nExec=sh -c 'echo job %i; exit 3'\nVolume=data.volume:/data\n[Service]\nType=oneshot\n",
	"web.kube":       "[Kube]\nYaml=x\n",
}

// TestServices runs containers as services: by units of longshore unit and by Quadlet files. A restart of the agent stops none.
func TestServices(t *testing.T) {
	g := bareGuest(t)
	g.uninstall()
	g.install()
	g.run("systemctl", "start", "longshore.socket", "longshore-cri.socket", agent)
	g.serves()
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Fatal(err)
	}
	image := imagetest.NewRegistry(t).Push("busybox", "latest", built)
	g.run("longshore", "pull", image)

	g.run("longshore", "create", "--name", "web", image, "sh", "-c", `trap "exit 0" TERM; while :; do sleep 0.2; done`)
	g.write("/etc/systemd/system/web.service", g.run("longshore", "unit", "--restart", "always", "web")+"\n")
	g.run("longshore", "create", "--name", "again", "-e", `ODD=50% $HOME "x"`, "--health-cmd", "true", "--health-interval", "500ms", image, "sh", "-c", `env >/env; trap "exit 0" TERM; while :; do sleep 0.2; done`)
	g.write("/etc/systemd/system/again.service", g.run("longshore", "unit", "--new", "again")+"\n")
	g.run("longshore", "rm", "again")
	for name, text := range quadlets {
		g.write("/etc/containers/systemd/"+name, strings.ReplaceAll(text, "IMAGE", image))
	}
	t.Cleanup(func() {
		_ = os.RemoveAll("/etc/containers")
		_ = os.Remove("/etc/systemd/system/web.service")
		_ = os.Remove("/etc/systemd/system/again.service")
	})
	g.run("systemctl", "daemon-reload")
	g.run("systemctl", "start", "--no-block", "db")
	g.run("systemctl", "start", "web", "again") // returns when they are ready

	// The database is ready only when it is healthy.
	nodetest.Eventually(t, "the database runs", func() bool {
		out, _ := g.try("longshore", "exec", "systemd-db", "cat", "/data/env")
		return strings.Contains(out, "UNIT=db.service")
	})
	if state := g.property("db", "ActiveState"); state != "activating" {
		t.Errorf("before its health check succeeds it is %s", state)
	}
	env := g.run("longshore", "exec", "systemd-db", "cat", "/data/env") + "\n"
	for _, want := range []string{"LINES=a\nExecStartPre=/bin/touch /evil\n", "QUOTE=\"\n", "DOLLAR=$HOME\n", "PERCENT=100%\n"} {
		if !strings.Contains(env, want) {
			t.Errorf("its environment has not %q: %s", want, env)
		}
	}
	if env := g.run("longshore", "exec", "again", "cat", "/env"); !strings.Contains(env, `ODD=50% $HOME "x"`) {
		t.Errorf("the environment of the unit with --new: %s", env)
	}
	g.run("longshore", "exec", "systemd-db", "touch", "/data/ready")
	nodetest.Eventually(t, "it is ready", func() bool { return g.property("db", "ActiveState") == "active" })

	services := []string{"web", "again", "db"}
	was := g.pids(services)
	for _, how := range [][]string{{"restart", agent}, {"kill", "-s", "KILL", "--kill-who=main", agent}} {
		g.run("systemctl", how...)
		g.serves()
		nodetest.Eventually(t, "a program goes on", func() bool { return g.run("longshore", "ps", "-q") != "" })
		if now := g.pids(services); now != was {
			t.Errorf("after %v of the agent the services' processes and containers are\n%s\nthey were\n%s", how, now, was)
		}
	}

	// Systemd restarts a service after the end of its program. A job ends with its program's status.
	g.run("longshore", "kill", "systemd-db")
	nodetest.Eventually(t, "systemd starts it again", func() bool {
		return g.property("db", "NRestarts") == "1" && g.property("db", "ActiveState") == "active"
	})
	if out, err := g.try("systemctl", "start", "job@seven"); err == nil {
		t.Errorf("a job that fails: %s", out)
	}
	if code := g.property("job@seven", "ExecMainStatus"); code != "3" {
		t.Errorf("its status is %s", code)
	}
	journal := g.run("journalctl", "-b", "--no-pager", "-t", "longshore-generator", "-t", "db", "-t", "job@seven")
	for _, want := range []string{"job seven", "started", "web.kube:1: .kube files are refused"} {
		if !strings.Contains(journal, want) {
			t.Errorf("the journal has not %q", want)
		}
	}

	for _, s := range services {
		g.run("systemctl", "stop", s)
		if state := g.property(s, "ActiveState") + " " + g.property(s, "Result"); state != "inactive success" {
			t.Errorf("after its stop %s is %s", s, state)
		}
	}
	if left := g.run("longshore", "ps", "-a", "--format", "{{.Names}} {{.State}}"); left != "web exited" {
		t.Errorf("left are %q", left)
	}
	if evil, err := os.Stat("/evil"); err == nil {
		t.Errorf("a value was executed: %v", evil)
	}
	g.run("systemctl", "start", "web") // the same container again
	g.run("systemctl", "stop", "web", "back-network", "data-volume")
	g.run("longshore", "rm", "-f", "web")
	g.run("longshore", "network", "rm", "systemd-back")
	g.run("longshore", "volume", "rm", "systemd-data")
	g.Check()
}

// pids returns the main processes of services, and the IDs and processes of all containers.
func (g guest) pids(services []string) string {
	g.t.Helper()
	var b strings.Builder
	for _, s := range services {
		b.WriteString(s + " " + g.property(s, "MainPID") + " " + g.property(s, "ActiveState") + "\n")
	}
	for _, id := range strings.Fields(g.run("longshore", "ps", "-q", "--no-trunc")) {
		b.WriteString(id + " " + g.run("longshore", "inspect", "-f", "{{.State.Pid}}", id) + "\n")
	}
	return b.String()
}

// try runs a command that may fail.
func (g guest) try(name string, args ...string) (string, error) {
	out, err := exec.CommandContext(g.t.Context(), name, args...).CombinedOutput()
	return string(out), err
}
