package dockerclients_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// project is the project of testdata/compose on a node.
type project struct {
	*rig
	tool     []string // the command line that takes the project through its life
	progress []string // the output of up has these texts, one after the other
}

// start1 starts a node, and skips the test without docker-compose 1.
func start1(t *testing.T) project {
	t.Helper()
	p := project{rig: start(t), tool: []string{"/usr/bin/docker-compose"}, progress: []string{"Creating network", "Creating shop_worker_1", "Creating shop_web_1"}}
	code, version, errs := p.output("", p.tool[0], "version", "--short")
	if code != 0 || !strings.HasPrefix(version, "1.") {
		t.Skipf("no docker-compose 1, Debian's package until release 12: %s%s", version, errs)
	}
	return p.prepare(version)
}

// start5 starts a node, and skips the test without a command line that has the plugin compose.
func start5(t *testing.T) project {
	t.Helper()
	plugin := filepath.Join(os.Getenv(dockerd.DirEnv), "usr/libexec/docker/cli-plugins/docker-compose")
	if _, err := os.Stat(plugin); err != nil {
		t.Skipf("no plugin compose of docker's command line: %v (make e2e-dockerclients builds both)", err)
	}
	p := project{rig: startDocker(t), progress: []string{"Network shop_default Creating", "Container shop-worker-1 Creat", "Container shop-web-1 Start"}}
	plugins := filepath.Join(p.dir, ".docker/cli-plugins")
	err := os.MkdirAll(plugins, 0o755)
	if err == nil {
		err = os.Symlink(plugin, filepath.Join(plugins, "docker-compose"))
	}
	if err != nil {
		t.Fatal(err)
	}
	p.tool = []string{p.program, "compose"}
	return p.prepare(p.docker("compose", "version", "--short"))
}

// prepare writes the project's file.
func (p project) prepare(version string) project {
	p.t.Helper()
	p.t.Logf("compose %s", version)
	text, err := os.ReadFile("testdata/compose/docker-compose.yml")
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, "docker-compose.yml"), text, 0o600)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return p
}

// args are those of the tool for this project.
func (p project) args(args ...string) []string {
	return append(append(slices.Clone(p.tool[1:]), "--ansi", "never", "-p", "shop"), args...)
}

// tries runs compose and returns its exit code.
func (p project) tries(args ...string) int {
	p.t.Helper()
	code, _, _ := p.output("", p.tool[0], p.args(args...)...)
	return code
}

// compose runs compose, which must succeed, and returns its standard output.
func (p project) compose(args ...string) string {
	p.t.Helper()
	code, out, errs := p.output("", p.tool[0], p.args(args...)...)
	if code != 0 {
		p.t.Fatalf("%q %q: exit code %d\n%s%s", p.tool, args, code, out, errs)
	}
	return out
}

// ids returns the IDs of the containers by service.
func (p project) ids() map[string]string {
	p.t.Helper()
	var list []struct {
		ID     string `json:"Id"`
		Labels map[string]string
	}
	if err := json.Unmarshal([]byte(p.get("/containers/json?all=1")), &list); err != nil {
		p.t.Fatal(err)
	}
	ids := map[string]string{}
	for _, c := range list {
		ids[c.Labels["com.docker.compose.service"]] += c.ID
	}
	return ids
}

// complete asserts that all services run and that the published port serves.
func (p project) complete() {
	p.t.Helper()
	nodetest.Eventually(p.t, "all services run", func() bool {
		ps := p.compose("ps")
		return strings.Count(ps, " Up ") == 4 && strings.Contains(ps, "(healthy)") && strings.Contains(ps, "0.0.0.0:18081->80/tcp")
	})
	nodetest.Eventually(p.t, "web serves", func() bool { return p.tries("exec", "-T", "web", "wget", "-q", "-O-", "http://127.0.0.1/page") == 0 })
	p.page("http://127.0.0.1:18081/page", "served")
}

// logged asserts that the service web has written this line.
func (p project) logged(line string) {
	p.t.Helper()
	if logs := p.compose("logs", "web"); !regexp.MustCompile(`(?m)^web[_-]1 +\| ` + line + `$`).MatchString(logs) {
		p.t.Errorf("logs have no line %q: %q", line, logs)
	}
}

// life takes the project through its life.
func (p project) life() {
	t := p.t
	t.Helper()
	p.compose("up", "-d")
	p.complete()
	before := p.ids()
	if got := p.compose("exec", "-T", "web", "wget", "-q", "-O-", "http://db/i"); got != "data\n" {
		t.Errorf("exec: %q", got)
	}
	if code := p.tries("exec", "-T", "web", "sh", "-c", "exit 7"); code != 7 {
		t.Errorf("exec: exit code %d", code)
	}
	p.logged("web one")

	p.compose("up", "-d")
	if after := p.ids(); !maps.Equal(before, after) {
		t.Errorf("up without a change: %v, %v before", after, before)
	}
	t.Setenv("A", "two")
	p.compose("up", "-d")
	p.complete() // the new web has the port
	after := p.ids()
	if after["web"] == before["web"] || after["web"] == "" {
		t.Errorf("up with a change: web is still %q", after["web"])
	}
	after["web"] = before["web"]
	if !maps.Equal(before, after) {
		t.Errorf("up with a change of web alone: %v, %v before", after, before)
	}
	p.logged("web two")
	t.Setenv("B", "two")
	p.compose("up", "-d") // side uses the network of db; the new db gets the port of the old one
	p.complete()
	if replaced := p.ids(); replaced["db"] == before["db"] || replaced["db"] == "" {
		t.Errorf("up with a change of db: it is still %q", replaced["db"])
	}
	p.page("http://127.0.0.1:18082/i", "data")

	p.compose("up", "-d", "--scale", "worker=3")
	if n := len(strings.Fields(p.compose("ps", "-q", "worker"))); n != 3 {
		t.Errorf("%d workers, want 3", n)
	}
	p.compose("up", "-d", "--scale", "worker=1")
	p.compose("stop", "-t", "0", "web")
	if list := p.get(`/containers/json?filters={"status":["exited"]}`); strings.Count(list, `"com.docker.compose.service":"web"`) != 1 || !strings.Contains(list, `"Status":"Exited (137) `) {
		t.Errorf("a stopped service: %s", list)
	}
	p.compose("start", "web")
	p.compose("restart", "-t", "0", "worker")
	p.compose("up", "-d")
	p.compose("down", "-v", "-t", "0")
	p.empty()
}

// outlives kills a part of the node in the middle of up and of logs -f: the project is complete after the next up.
func (p project) outlives(v victim) {
	t := p.t
	t.Helper()
	for i, at := range p.progress {
		up := p.begin(p.tool[0], p.args("up", "-d")...)
		up.reads(at)
		v.kill(p.node)
		up.ends()
		v.back(p.node)
		p.compose("up", "-d")
		p.complete()
		p.node.Check()
		if i < len(p.progress)-1 {
			p.compose("down", "-v", "-t", "0")
			p.empty()
		}
	}
	before := p.ids()
	logs := p.begin(p.tool[0], p.args("logs", "-f", "worker")...)
	logs.reads("tick 3")
	v.kill(p.node)
	if v.ends {
		logs.ends()
	}
	v.back(p.node)
	p.compose("up", "-d")
	p.complete()
	if after := p.ids(); !maps.Equal(before, after) {
		t.Errorf("containers after the death: %v, %v before", after, before)
	}
	ticks := regexp.MustCompile(`tick (\d+)`).FindAllStringSubmatch(p.compose("logs", "--no-color", "worker"), -1)
	if n := len(ticks); n < 4 || strings.Join(ticks[n-1][1:], "") != strconv.Itoa(n-1) {
		t.Errorf("%d lines of the worker's log, %v: some are lost or doubled", n, ticks)
	}
	p.compose("down", "-v", "-t", "0")
	p.empty()
}

// TestCompose takes the project through its life by docker-compose 1.
func TestCompose(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { start1(t).life() })
}

// TestComposeWhileTheAgentDies kills the agent in the middle of docker-compose 1.
func TestComposeWhileTheAgentDies(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { start1(t).outlives(agentDies()) })
}

// TestDockerCompose takes the project through its life by docker compose, and uses commands that docker-compose 1 does not have.
func TestDockerCompose(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := start5(t)
		p.life()

		p.compose("up", "-d", "--wait")
		if got := p.compose("ps", "--format", "{{.Service}} {{.State}} {{.Health}}", "db"); got != "db running healthy\n" {
			t.Errorf("ps: %q", got)
		}
		p.compose("scale", "worker=2")
		if n := len(strings.Fields(p.compose("ps", "-q", "worker"))); n != 2 {
			t.Errorf("%d workers, want 2", n)
		}
		if got := p.compose("port", "web", "80"); got != "0.0.0.0:18081\n" {
			t.Errorf("port: %q", got)
		}
		if got := p.compose("run", "--rm", "-T", "--no-deps", "worker", "echo", "by itself"); got != "by itself\n" {
			t.Errorf("run: %q", got)
		}
		p.compose("cp", "docker-compose.yml", "db:/copied")
		if got := p.compose("exec", "-T", "db", "head", "-n", "1", "/copied"); got != "version: \"2.4\"\n" {
			t.Errorf("cp: %q", got)
		}
		p.compose("pause", "worker")
		if got := p.compose("ps", "-q", "--status", "paused"); len(strings.Fields(got)) != 2 {
			t.Errorf("paused: %q", got)
		}
		p.compose("unpause", "worker")
		if got := p.compose("top", "worker"); !strings.Contains(got, "sleep 0.1") {
			t.Errorf("top: %q", got)
		}
		if got := p.compose("images", "web"); !strings.Contains(got, "busybox") {
			t.Errorf("images: %q", got)
		}
		if got := p.compose("ls", "--format", "json"); !strings.Contains(got, `"Status":"running(5)"`) {
			t.Errorf("ls: %q", got)
		}
		p.compose("up", "-d", "--force-recreate", "-t", "0")
		p.compose("down", "-v", "-t", "0")
		p.empty()

		up := p.begin(p.tool[0], p.args("up", "-t", "0")...)
		up.reads("web-1     | web two")
		up.reads("worker-1  | tick ")
		if err := up.cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if code, rest := up.ends(); code != 130 {
			t.Errorf("up after Ctrl-C: exit code %d, %q", code, rest)
		}
		p.compose("down", "-v", "-t", "0")
		p.empty()
	})
}

// TestDockerComposeWhileTheAgentDies kills the agent in the middle of docker compose.
func TestDockerComposeWhileTheAgentDies(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { start5(t).outlives(agentDies()) })
}
