package dockerclients_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// project is the project of testdata/compose on a node.
type project struct {
	*rig
}

// startProject starts a node, and skips the test without docker-compose 1.
func startProject(t *testing.T) project {
	t.Helper()
	p := project{start(t)}
	code, version, errs := p.output("", "/usr/bin/docker-compose", "version", "--short")
	if code != 0 || !strings.HasPrefix(version, "1.") {
		t.Skipf("no docker-compose 1, Debian's package until release 12: %s%s", version, errs)
	}
	t.Logf("docker-compose %s", version)
	text, err := os.ReadFile("testdata/compose/docker-compose.yml")
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, "docker-compose.yml"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// args are those of docker-compose for this project.
func (p project) args(args ...string) []string {
	return append([]string{"--ansi", "never", "-p", "shop"}, args...)
}

// compose runs docker-compose, which must succeed, and returns its standard output.
func (p project) compose(args ...string) string {
	p.t.Helper()
	code, out, errs := p.output("", "/usr/bin/docker-compose", p.args(args...)...)
	if code != 0 {
		p.t.Fatalf("docker-compose %q: exit code %d\n%s%s", args, code, out, errs)
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
		return strings.Count(ps, " Up ") == 4 && strings.Contains(ps, "Up (healthy)") && strings.Contains(ps, "0.0.0.0:18081->80/tcp")
	})
	nodetest.Eventually(p.t, "web serves", func() bool {
		code, _, _ := p.output("", "/usr/bin/docker-compose", p.args("exec", "-T", "web", "wget", "-q", "-O-", "http://127.0.0.1/page")...)
		return code == 0
	})
	p.page("http://127.0.0.1:18081/page")
}

// TestCompose takes a project through its life.
func TestCompose(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := startProject(t)
		p.compose("up", "-d")
		p.complete()
		before := p.ids()
		if got := p.compose("exec", "-T", "web", "wget", "-q", "-O-", "http://db/i"); got != "data\n" {
			t.Errorf("exec: %q", got)
		}
		if code, _, _ := p.output("", "/usr/bin/docker-compose", p.args("exec", "-T", "web", "sh", "-c", "exit 7")...); code != 7 {
			t.Errorf("exec: exit code %d", code)
		}
		if logs := p.compose("logs", "web"); !regexp.MustCompile(`(?m)^web_1 +\| web one$`).MatchString(logs) {
			t.Errorf("logs: %q", logs)
		}

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
		if logs := p.compose("logs", "web"); !regexp.MustCompile(`(?m)^web_1 +\| web two$`).MatchString(logs) {
			t.Errorf("logs of the new web: %q", logs)
		}

		p.compose("up", "-d", "--scale", "worker=3")
		if n := len(strings.Fields(p.compose("ps", "-q", "worker"))); n != 3 {
			t.Errorf("%d workers, want 3", n)
		}
		p.compose("up", "-d", "--scale", "worker=1")
		p.compose("stop", "-t", "0", "web")
		if ps := p.compose("ps"); !regexp.MustCompile(`(?m)^shop_web_1 .* Exit 137 `).MatchString(ps) {
			t.Errorf("ps of a stopped service:\n%s", ps)
		}
		p.compose("start", "web")
		p.compose("restart", "-t", "0", "worker")
		p.compose("up", "-d")
		p.compose("down", "-v", "-t", "0")
		p.empty()
	})
}

// TestComposeWhileTheAgentDies kills the agent in the middle of up and of logs -f: the project is complete after the next up.
func TestComposeWhileTheAgentDies(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := startProject(t)
		for _, at := range []string{"Creating network", "Creating shop_worker_1", "Creating shop_web_1"} {
			up := p.begin("/usr/bin/docker-compose", p.args("up", "-d")...)
			up.reads(at)
			p.node.Kill()
			up.ends()
			p.node.Up()
			p.compose("up", "-d")
			p.complete()
			p.node.Check()
			if at != "Creating shop_web_1" {
				p.compose("down", "-v", "-t", "0")
				p.empty()
			}
		}
		before := p.ids()
		logs := p.begin("/usr/bin/docker-compose", p.args("logs", "-f", "worker")...)
		logs.reads("tick 3")
		p.node.Kill()
		logs.ends()
		p.node.Up()
		p.compose("up", "-d")
		p.complete()
		if after := p.ids(); !maps.Equal(before, after) {
			t.Errorf("containers after the agent's death: %v, %v before", after, before)
		}
		ticks := regexp.MustCompile(`tick (\d+)`).FindAllStringSubmatch(p.compose("logs", "--no-color", "worker"), -1)
		if n := len(ticks); n < 4 || strings.Join(ticks[n-1][1:], "") != strconv.Itoa(n-1) {
			t.Errorf("%d lines of the worker's log, %v: some are lost or doubled", n, ticks)
		}
		p.compose("down", "-v", "-t", "0")
		p.empty()
	})
}
