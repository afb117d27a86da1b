package docker_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// event is an event of the stream.
type event struct {
	Type, Action string
	Actor        struct{ Attributes map[string]string }
	TimeNano     int64 `json:"timeNano"`
}

// ourSide starts a node with the Docker Engine API and the image box, without a dockerd beside it. must sends a request and fails
// the test unless it is answered with that status. The directory shared can be bound.
func ourSide(t *testing.T) (n *nodetest.Node, s *side, must func(status int, st step) reply) {
	t.Helper()
	dir, err := os.MkdirTemp("", "longshore-docker-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, shared := filepath.Join(dir, "docker.sock"), filepath.Join(dir, "shared")
	if err := os.Mkdir(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	n = nodetest.Start(t, nodetest.Options{Config: "[face.docker]\nenabled = true\nsocket = \"" + socket + "\"\n"})
	t.Cleanup(n.Check)
	s = newSide("ours", socket, map[string]string{"shared": shared}, prepared(t))
	must = func(status int, st step) reply {
		t.Helper()
		r := s.do(st)
		if r.err != nil || r.status != status {
			t.Fatalf("%s: %d %s, %v", st.do, r.status, r.body, r.err)
		}
		return r
	}
	must(200, step{do: "POST /images/load", body: "@box.tar", headers: tarBody})
	return n, s, must
}

// TestEventsOutliveTheAgent shows that a client that connects again after the agent's death reads the events of the containers
// from before it, and the end of a program that ended without an agent, with its exit code and the time that it ran.
func TestEventsOutliveTheAgent(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n, s, must := ourSide(t)
		list := func(query string) (events []event) {
			t.Helper()
			r := must(200, step{do: "GET /events?since=1&until={now}" + query})
			for d := json.NewDecoder(strings.NewReader(string(r.body))); d.More(); {
				var e event
				if err := d.Decode(&e); err != nil {
					t.Fatal(err)
				}
				events = append(events, e)
			}
			return events
		}
		must(201, step{do: "POST /containers/create?name=short", body: `{"Image":"box","Cmd":["sh","-c","while ! test -e /shared/end; do sleep 0.1; done; exit 7"],"HostConfig":{"Binds":["{shared}:/shared"]}}`})
		must(204, step{do: "POST /containers/short/start"})
		before := list(`&filters={"type":["container"]}`)
		n.Kill()
		if err := os.WriteFile(filepath.Join(s.vars["shared"], "end"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		n.Up()
		var after []event
		roottest.Eventually(t, "the end of the container", func() bool {
			after = list(`&filters={"type":["container"]}`)
			return after[len(after)-1].Action == "die"
		})
		var actions []string
		for _, e := range after {
			actions = append(actions, e.Action)
		}
		if want := []string{"create", "start", "die"}; !slices.Equal(actions, want) {
			t.Errorf("events %v, want %v", actions, want)
		}
		for i, e := range before {
			if e.TimeNano != after[i].TimeNano {
				t.Errorf("event %s of %v has the time %v after the agent's death", e.Action, time.Unix(0, e.TimeNano), time.Unix(0, after[i].TimeNano))
			}
		}
		if a := after[2].Actor.Attributes; a["exitCode"] != "7" || a["name"] != "short" || a["image"] != "box" {
			t.Errorf("die %v", a)
		}
		must(204, step{do: "DELETE /containers/short"})
	})
}

// TestUsageOfARunningContainer compares stats and top with the kernel's numbers of a program that uses its CPU.
func TestUsageOfARunningContainer(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		_, _, must := ourSide(t)
		var inspect struct{ State struct{ Pid int } }
		var usage dockertypes.Stats
		var top dockertypes.Top
		read := func(what string, v any) {
			t.Helper()
			if err := json.Unmarshal(must(200, step{do: "GET /containers/busy/" + what}).body, v); err != nil {
				t.Fatal(err)
			}
		}
		must(201, step{do: "POST /containers/create?name=busy", body: `{"Image":"box","Cmd":["sh","-c","while true; do :; done"],"HostConfig":{"Memory":67108864,"PidsLimit":50}}`})
		must(204, step{do: "POST /containers/busy/start"})
		read("json", &inspect)
		read("stats?stream=0", &usage)
		read("top?ps_args=-o pid,args", &top)
		used := usage.CPUStats.CPUUsage.TotalUsage - usage.PreCPUStats.CPUUsage.TotalUsage
		all := usage.CPUStats.SystemUsage - usage.PreCPUStats.SystemUsage
		if used == 0 || used > all || usage.PreCPUStats.CPUUsage.TotalUsage == 0 || usage.CPUStats.OnlineCPUs == 0 {
			t.Errorf("cpu %+v after %+v", usage.CPUStats, usage.PreCPUStats)
		}
		if m := usage.MemoryStats; m.Limit != 64<<20 || m.Usage == 0 || m.Usage > m.Limit || len(m.Stats) == 0 {
			t.Errorf("memory %+v", m)
		}
		if usage.PidsStats.Current != 1 || usage.PidsStats.Limit != 50 || len(usage.Networks) != 1 || usage.ID == "" {
			t.Errorf("usage %+v", usage)
		}
		want := [][]string{{strconv.Itoa(inspect.State.Pid), "sh -c while true; do :; done"}}
		if len(top.Processes) != 1 || !slices.Equal(top.Processes[0], want[0]) {
			t.Errorf("processes %q, want %q", top.Processes, want)
		}
		must(204, step{do: "DELETE /containers/busy?force=1"})
	})
}
