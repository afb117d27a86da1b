package dockerclients_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// victim is a part of the node that a test kills.
type victim struct {
	name string
	kill func(*nodetest.Node)
	back func(*nodetest.Node)
	ends bool // the clients lose their connections
}

func agentDies() victim { return victim{"agent", (*nodetest.Node).Kill, (*nodetest.Node).Up, true} }

func keeperDies() victim {
	return victim{"keeper", (*nodetest.Node).KillKeeper, (*nodetest.Node).KeeperBack, false}
}

func bothDie() victim {
	return victim{"both", func(n *nodetest.Node) {
		n.KillKeeper()
		n.Kill()
	}, (*nodetest.Node).Up, true}
}

// TestComposeWhileTheKeeperDies kills the keeper in the middle of docker-compose 1.
func TestComposeWhileTheKeeperDies(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { start1(t).outlives(keeperDies()) })
}

// TestComposeWhileBothDie kills agent and keeper in the middle of docker-compose 1.
func TestComposeWhileBothDie(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { start1(t).outlives(bothDie()) })
}

// TestClientsWhileTheNodeDies kills the agent, the keeper and both beside five services with traffic between them, and beside docker logs,
// exec, wait and events. The services run on and lose no request. The clients lose their connection at most once, and find the exec's
// exit code, all events and each line of the log afterwards.
func TestClientsWhileTheNodeDies(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := startDocker(t)
		p := project{rig: r, tool: []string{"/usr/bin/docker-compose"}}
		if code, version, errs := p.output("", p.tool[0], "version", "--short"); code != 0 || !strings.HasPrefix(version, "1.") {
			t.Skipf("no docker-compose 1, Debian's package until release 12: %s%s", version, errs)
		}
		text, err := os.ReadFile("testdata/compose/traffic.yml")
		if err == nil {
			err = os.WriteFile(filepath.Join(p.dir, "docker-compose.yml"), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []victim{agentDies(), keeperDies(), bothDie()} {
			p.survives(v)
		}
		r.docker("volume", "prune", "-f")
		r.empty()
	})
}

// running returns the process ids of the containers by their ids.
func (p project) running() string {
	p.t.Helper()
	return p.docker(append([]string{"inspect", "-f", "{{.Id}} {{.State.Pid}} {{.State.StartedAt}} {{.RestartCount}}"}, strings.Fields(p.docker("ps", "-q", "--no-trunc"))...)...)
}

// survives kills a part of the node once.
func (p project) survives(v victim) {
	t := p.t
	t.Helper()
	t.Logf("the victim: %s", v.name)
	since := strconv.FormatFloat(float64(time.Now().UnixNano())/1e9, 'f', 9, 64)
	p.compose("up", "-d")
	nodetest.Eventually(t, "the client is served", func() bool { return strings.Contains(p.docker("logs", "shop_client_1"), "served\ndata\n") })
	before := p.running()

	logs := p.begin(p.program, "logs", "-f", "shop_worker_1")
	events := p.begin(p.program, "events", "--since", since, "--format", "{{.Type}} {{.Action}} {{.Actor.Attributes.name}}")
	wait := p.begin(p.program, "wait", "shop_worker_1")
	held := p.terminal("exec", "-it", "shop_worker_1", "sh", "-c", "echo in$((1+1)); until test -e /go; do sleep 0.05; done; exit 9")
	logs.reads("tick 3")
	held.reads("in2")
	events.reads("container exec_start: sh -c echo in")
	var document struct{ ExecIDs []string }
	p.document("/containers/shop_worker_1/json", &document)
	if len(document.ExecIDs) != 1 {
		t.Fatalf("execs %q", document.ExecIDs)
	}

	v.kill(p.node)
	if v.ends {
		for _, s := range []*session{logs, events, wait, held} {
			if code, rest := s.ends(); code == 0 {
				t.Errorf("%q does not report the lost connection: %q", s.cmd.Args, rest)
			}
		}
	}
	v.back(p.node)
	p.page("http://127.0.0.1:18081/page", "served")
	if after := p.running(); after != before {
		t.Errorf("containers after the death:\n%s\nbefore:\n%s", after, before)
	}
	if v.ends { // they connect again
		wait = p.begin(p.program, "wait", "shop_worker_1")
	}
	p.docker("exec", "shop_worker_1", "touch", "/go")
	var exec struct {
		Running  bool
		ExitCode *int
	}
	nodetest.Eventually(t, "the exec has its exit code", func() bool {
		p.document("/exec/"+document.ExecIDs[0]+"/json", &exec)
		return exec.ExitCode != nil
	})
	if *exec.ExitCode != 9 {
		t.Errorf("the exec's exit code is %d, want 9", *exec.ExitCode)
	}
	if !v.ends {
		held.ends()
	}
	p.docker("kill", "shop_worker_1")
	if code, rest := wait.ends(); code != 0 || strings.TrimSpace(rest) != "137" {
		t.Errorf("wait: exit code %d, %q", code, rest)
	}
	if !v.ends {
		if code, _ := logs.ends(); code != 0 {
			t.Errorf("logs -f: exit code %d", code)
		}
		_ = events.cmd.Process.Signal(os.Interrupt)
		events.ends()
	}

	ticks := regexp.MustCompile(`tick (\d+)\n`).FindAllStringSubmatch(p.docker("logs", "shop_worker_1")+"\n", -1)
	if n := len(ticks); n < 10 || ticks[n-1][1] != strconv.Itoa(n-1) {
		t.Errorf("%d lines of the worker's log, the last %q: some are lost or doubled", n, ticks[n-1])
	}
	for _, name := range []string{"shop_client_1", "shop_side_1"} {
		if log := p.docker("logs", name); strings.Contains(log, "lost") || strings.Count(log, "data") < 3 {
			t.Errorf("%s: %q", name, log)
		}
	}
	all := p.docker("events", "--since", since, "--until", strconv.FormatInt(time.Now().Unix()+1, 10), "--format", "{{.Type}} {{.Action}} {{.Actor.Attributes.name}}")
	for _, name := range []string{"db", "web", "worker", "client", "side"} {
		for _, action := range []string{"create", "start"} {
			if want := fmt.Sprintf("container %s shop_%s_1", action, name); strings.Count(all+"\n", want+"\n") != 1 {
				t.Errorf("not one %q in the events:\n%s", want, all)
			}
		}
	}
	for _, want := range []string{"container exec_die shop_worker_1", "container kill shop_worker_1", "container die shop_worker_1"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %q in the events:\n%s", want, all)
		}
	}
	p.node.Check()
	p.compose("down", "-v", "-t", "0")
}

// document reads a document of the API.
func (r *rig) document(path string, into any) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.get(path)), into); err != nil {
		r.t.Fatal(err)
	}
}
