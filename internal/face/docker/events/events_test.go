package events

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/state"
)

// rig is a Server over an engine with fakes, and its API.
type rig struct {
	*enginetest.Node
	s   *Server
	url string
}

func newRig(t *testing.T, n *enginetest.Node) *rig {
	t.Helper()
	r := &rig{Node: n}
	eng := n.As(core.OwnerDocker)
	r.s = &Server{
		Engine: eng, Logger: slog.New(slog.DiscardHandler),
		Describe: func(id core.ID) (string, string, map[string]string) {
			c, err := eng.Container(context.Background(), id)
			if err != nil {
				return "", "", nil
			}
			return c.Name(), "busybox", c.Labels
		},
		Endpoints: func(core.ID) []Endpoint { return []Endpoint{{ID: "n1", Name: "bridge", Driver: "bridge"}} },
	}
	m := &dockerhttp.Mux{Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")}}
	r.s.Routes(m)
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	r.url = srv.URL
	return r
}

// follow runs the server's Run until the test ends.
func (r *rig) follow(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// get returns a stream of events and the function that reads the next one.
func (r *rig) get(t *testing.T, path string, query url.Values) (next func() (dockertypes.Event, bool)) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+path+"?"+query.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "application/json" {
		t.Fatalf("status %s, type %q", resp.Status, resp.Header.Get("Content-Type"))
	}
	d := json.NewDecoder(bufio.NewReader(resp.Body))
	return func() (e dockertypes.Event, ok bool) {
		err := d.Decode(&e)
		return e, err == nil
	}
}

// past returns the short forms of the events until now.
func (r *rig) past(t *testing.T, filters string) (list []string) {
	t.Helper()
	next := r.get(t, "/events", url.Values{"since": {"1"}, "until": {fmt.Sprintf("%.6f", float64(time.Now().UnixNano())/1e9)}, "filters": {filters}})
	for {
		e, ok := next()
		if !ok {
			return list
		}
		list = append(list, short(e))
	}
}

func short(e dockertypes.Event) string { return e.Type + " " + e.Action }

func same(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// create creates a container with a new volume, as a pair.
func (r *rig) create(t *testing.T, name string) core.Container {
	t.Helper()
	img := r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	_, c, err := r.As(core.OwnerDocker).CreatePair(t.Context(), engine.Pair{
		Sandbox: core.SandboxConfig{Key: core.Key(name), Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Shared}}},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{
				Key: core.Key(name), Root: core.Root{Image: img.ID}, Spec: enginetest.Args("run"), Labels: map[string]string{"k": "v"},
				Volumes: []core.VolumeMount{{Name: "vol", Target: "/data", ReadOnly: true}},
			}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (r *rig) start(t *testing.T, id core.ID) {
	t.Helper()
	if err := r.As(core.OwnerDocker).StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
}

func TestLifeOfAContainer(t *testing.T) {
	r := newRig(t, enginetest.New(t))
	eng := r.As(core.OwnerDocker)
	next := r.get(t, "/events", nil) // the headers come before the first event
	c := r.create(t, "web")
	r.start(t, c.ID)
	if err := eng.PauseContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := eng.ResumeContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	cur, err := eng.Container(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	health := core.Health{Since: cur.Main.Started, Status: "healthy"}
	if err := eng.SetContainerHealth(t.Context(), c.ID, health); err != nil {
		t.Fatal(err)
	}
	r.s.Publish(Container, "kill", string(c.ID), map[string]string{"signal": "15"})
	r.Supervisor.OOM(core.Ref{Container: c.ID}, 1, 1)
	r.Settle()
	if err := eng.StopSandbox(t.Context(), c.Sandbox, engine.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	r.s.Publish(Container, "stop", string(c.ID), nil)
	if err := eng.RemoveSandbox(t.Context(), c.Sandbox, engine.RemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	r.s.Publish(Container, "late", string(c.ID), nil)
	want := []string{
		"volume create", "container create", "volume mount", "network connect", "container start", "container pause", "container unpause",
		"container health_status: healthy", "container kill", "container oom", "network disconnect", "volume unmount", "container die", "container stop",
		"container destroy", "container late",
	}
	same(t, r.past(t, ""), want...)
	byAction := map[string]dockertypes.Event{}
	var last int64
	for range want {
		e, ok := next()
		if !ok {
			t.Fatal("the stream has ended")
		}
		if e.TimeNano <= last || e.Time != e.TimeNano/1e9 || e.Scope != "local" {
			t.Errorf("event %+v after %d", e, last)
		}
		last = e.TimeNano
		byAction[short(e)] = e
		if e.Type == Container {
			if a := e.Actor.Attributes; a["name"] != "web" || a["image"] != "busybox" || a["k"] != "v" || e.Actor.ID != string(c.ID) {
				t.Errorf("attributes of %s: %v", e.Action, a)
			}
			if e.Status != e.Action || e.ID != e.Actor.ID || e.From != "busybox" {
				t.Errorf("members of older clients: %+v", e)
			}
		}
	}
	if a := byAction["container die"].Actor.Attributes; a["exitCode"] != "137" || a["execDuration"] != "0" {
		t.Errorf("die: %v", a)
	}
	if e := byAction["volume mount"]; e.Actor.ID != "vol" || e.Actor.Attributes["destination"] != "/data" || e.Actor.Attributes["read/write"] != "false" ||
		e.Actor.Attributes["container"] != string(c.ID) || e.Status != "" {
		t.Errorf("mount: %+v", e)
	}
	if e := byAction["network disconnect"]; e.Actor.ID != "n1" || e.Actor.Attributes["name"] != "bridge" || e.Actor.Attributes["type"] != "bridge" {
		t.Errorf("disconnect: %+v", e)
	}
	if byAction["container kill"].Actor.Attributes["signal"] != "15" {
		t.Error("kill without its signal")
	}
}

func TestFilters(t *testing.T) {
	r := newRig(t, enginetest.New(t))
	c := r.create(t, "web-1")
	d := r.create(t, "db-1")
	r.s.Publish(Container, "exec_create: ls", string(c.ID), nil)
	r.s.Publish(Image, "pull", "reg.example.com:5000/a/b:1", map[string]string{"name": "reg.example.com:5000/a/b"})
	r.s.Publish(Image, "untag", "sha256:1", map[string]string{"name": "busybox:latest"})
	r.s.Publish(Network, "create", "n1", map[string]string{"name": "web-net"})
	const create, exec = "container create", "container exec_create: ls"
	for filters, want := range map[string][]string{
		`{"type":["image","network"]}`:                   {"image pull", "image untag", "network create"},
		`{"container":["web"]}`:                          {create, exec},
		`{"container":["` + string(d.ID[:12]) + `"]}`:    {create},
		`{"container":["web-1","db-1"]}`:                 {create, create, exec},
		`{"network":["web"]}`:                            {"network create"},
		`{"event":["exec_create"]}`:                      {exec},
		`{"event":["create"],"type":["container"]}`:      {create, create},
		`{"event":["exec_create: ls"]}`:                  {exec},
		`{"image":["busybox"]}`:                          {create, create, exec, "image untag"},
		`{"image":["reg.example.com:5000/a/b"]}`:         {"image pull"},
		`{"label":["k=v"],"container":["db"]}`:           {create},
		`{"label":["k=w"]}`:                              nil,
		`{"scope":["swarm"]}`:                            nil,
		`{"type":{"image":true},"event":{"pull":false}}`: {"image pull"},
		`{"nothing":["x"],"type":["network"]}`:           {"network create"},
		`{"service":["x"]}`:                              nil,
	} {
		t.Run(filters, func(t *testing.T) { same(t, r.past(t, filters), want...) })
	}
}

func TestRefusals(t *testing.T) {
	r := newRig(t, enginetest.New(t))
	for query, want := range map[string]string{
		"since=abc":                 `invalid value for since: "abc"`,
		"until=1.x":                 `invalid value for until: "1.x"`,
		"since=100&until=50":        "`since` time (100) cannot be after `until` time (50)",
		"filters=%7B%22x%22%3A%5B1": "invalid filter",
	} {
		resp, err := http.Get(r.url + "/events?" + query)
		if err != nil {
			t.Fatal(err)
		}
		var body struct{ Message string }
		err = json.NewDecoder(resp.Body).Decode(&body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusBadRequest || !strings.Contains(body.Message, want) {
			t.Errorf("%s: %s %q, %v", query, resp.Status, body.Message, err)
		}
	}
}

func TestImageCreateIsForNewerClients(t *testing.T) {
	r := newRig(t, enginetest.New(t))
	r.s.Publish(Image, "create", "sha256:1", nil)
	r.s.Publish(Image, "load", "sha256:1", nil)
	for version, want := range map[string]string{"/v1.45": "load", "/v1.46": "create"} {
		if e, ok := r.get(t, version+"/events", url.Values{"since": {"1"}})(); !ok || e.Action != want {
			t.Errorf("%s: %+v, %v", version, e, ok)
		}
	}
}

func TestUntilInTheFutureEndsTheStream(t *testing.T) {
	r := newRig(t, enginetest.New(t))
	next := r.get(t, "/events", url.Values{"until": {fmt.Sprintf("%.3f", float64(time.Now().UnixMilli()+300)/1e3)}})
	if e, ok := next(); ok {
		t.Errorf("event %+v", e)
	}
}

// TestSlowReader shows that a client that reads nothing delays nobody, and that its connection is cut when its queue is full.
func TestSlowReader(t *testing.T) {
	for name, size := range map[string]int{"many": 1, "large": queuedBytes / 8} {
		t.Run(name, func(t *testing.T) {
			var l log
			cuts := 0
			slow := l.read(time.Time{}, time.Time{}, func() { cuts++ })
			text := strings.Repeat("x", size)
			add := func(i int) {
				l.add(time.Unix(int64(i), 0), Volume, "create", fmt.Sprint(i), map[string]string{"x": text})
			}
			n := 0
			for ; !l.lost(slow); n++ {
				if n > queued || slow.bytes > queuedBytes || cuts > 0 {
					t.Fatalf("%d events, %d bytes, %d cuts", n, slow.bytes, cuts)
				}
				add(n)
			}
			add(n)
			if cuts != 1 || len(slow.queue) != 0 || l.next(slow, nil, nil, false) != nil {
				t.Errorf("%d cuts, %d events are queued", cuts, len(slow.queue))
			}
			past := l.read(time.Unix(1, 0), time.Time{}, nil)
			if first := past.queue[0]; first.Actor.ID != fmt.Sprint(n+1-past.past) || past.past != min(kept, keptBytes/len(first.doc)) {
				t.Errorf("%d events are kept, first %s", past.past, first.Actor.ID)
			}
			if l.count() != 2 {
				t.Errorf("%d readers", l.count())
			}
			l.leave(past)
			if past := l.read(time.Time{}, time.Time{}, nil); past.past != 0 || l.count() != 2 {
				t.Errorf("%d events without a time, %d readers", past.past, l.count())
			}
		})
	}
}

// TestClientThatDoesNotRead shows that readers share the documents of events, and that the connection of one that does not read is
// closed, while another reads all.
func TestClientThatDoesNotRead(t *testing.T) {
	r := newRig(t, enginetest.New(t))
	next := r.get(t, "/events", nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.url+"/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	slow, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = slow.Body.Close() }()
	text := strings.Repeat("x", 1<<20)
	for i := 0; r.s.Readers() == 2; i++ { // the kernel's buffers are full at some time
		r.s.Publish(Volume, "create", fmt.Sprint(i), map[string]string{"x": text})
		if e, ok := next(); !ok || e.Actor.ID != fmt.Sprint(i) {
			t.Fatalf("event %d: %v %s", i, ok, e.Actor.ID)
		}
	}
	if _, err := io.Copy(io.Discard, slow.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the slow client's stream ends with %v", err)
	}
}

// TestDieWaitsForTheRelease shows that die follows the release of the sandbox, and that it comes without one after dieDelay.
func TestDieWaitsForTheRelease(t *testing.T) {
	n := enginetest.Fakes(t)
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	r := newRig(t, n)
	eng := r.As(core.OwnerDocker)
	r.follow(t)
	next := r.get(t, "/events", url.Values{"filters": {`{"event":["die","stop"]}`}})
	c := r.create(t, "web")
	r.start(t, c.ID)
	r.Supervisor.Exit(core.Ref{Container: c.ID}, 3)
	r.Settle()
	r.s.Publish(Container, "stop", string(c.ID), nil)
	if e, _ := next(); e.Action != "stop" {
		t.Errorf("%s came before the release", e.Action)
	}
	if err := eng.StopSandbox(t.Context(), c.Sandbox, engine.StopOptions{IfEnded: true}); err != nil {
		t.Fatal(err)
	}
	if e, _ := next(); e.Action != "die" || e.Actor.Attributes["exitCode"] != "3" {
		t.Errorf("after the release: %+v", e)
	}
	if err := eng.RenewContainer(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	r.start(t, c.ID)
	r.Supervisor.Exit(core.Ref{Container: c.ID}, 4)
	r.Settle()
	if e, _ := next(); e.Action != "die" || e.Actor.Attributes["exitCode"] != "4" {
		t.Errorf("without a release: %+v", e)
	}
}

// TestRestartPolicy shows that a restart by a policy has no event of its own, and that a client that inspects the container at
// die sees that it will be started again.
func TestRestartPolicy(t *testing.T) {
	n := enginetest.Fakes(t)
	n.Options.Runtimes, n.Options.Restarts = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}, restart.Rules{}
	n.Start()
	r := newRig(t, n)
	eng := r.As(core.OwnerDocker)
	c := r.create(t, "web")
	if err := eng.Restarts.SetPolicy(c.ID, core.RestartPolicy{Name: core.RestartOnFailure, Max: 1}); err != nil {
		t.Fatal(err)
	}
	r.start(t, c.ID)
	for _, restarting := range []bool{true, false} {
		r.Supervisor.Exit(core.Ref{Container: c.ID}, 1)
		r.Settle()
		list := r.past(t, `{"type":["container"]}`)
		cur, err := eng.Container(t.Context(), c.ID)
		if err != nil || list[len(list)-1] != "container die" || cur.Restarting() != restarting {
			t.Fatalf("%v, restarting %v, %v", list, cur.Restarting(), err)
		}
		if err := engine.StartDue(t.Context(), eng, c.ID); err != nil {
			t.Fatal(err)
		}
	}
	same(t, r.past(t, `{"type":["container"]}`), "container create", "container start", "container die", "container start", "container die")
}

func TestDieDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{}
		c := &container{name: "web", started: time.Now()}
		end := time.Now().Add(90 * time.Second)
		e := &core.Event{Container: "c1", At: end.Add(time.Hour), Autopsy: &core.Autopsy{Exit: core.Exit{Signal: 9, At: end}}}
		var said map[string]string // mu guards it
		read := func() map[string]string {
			s.mu.Lock()
			defer s.mu.Unlock()
			return said
		}
		s.mu.Lock()
		s.ended(c, e, func(_ string, more map[string]string) { said = more })
		s.mu.Unlock()
		synctest.Wait()
		if read() != nil {
			t.Error("die came at once")
		}
		<-time.After(dieDelay)
		synctest.Wait()
		if die := read(); die["exitCode"] != "137" || die["execDuration"] != "90" {
			t.Errorf("die %v", die)
		}
	})
}

// TestStops shows the events of a container that a client stops after its grace period, for a restart, and by SIGKILL.
func TestStops(t *testing.T) {
	n := enginetest.Fakes(t)
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	r := newRig(t, n)
	eng := r.As(core.OwnerDocker)
	c := r.create(t, "web")
	for _, test := range []struct {
		call, kill string
		want       []string
	}{
		{"docker stop", "15", []string{"kill 15", "kill 9", "die"}},
		{RestartCall, "15", []string{"kill 15", "kill 9", "die", "stop"}},
		{"docker rm", "9", []string{"kill 9", "die"}},
	} {
		r.start(t, c.ID)
		since := time.Now()
		r.s.Publish(Container, "kill", string(c.ID), map[string]string{"signal": test.kill})
		var none time.Duration
		if err := eng.StopContainer(t.Context(), c.ID, engine.StopOptions{Grace: &none, Request: core.StopRequest{Call: test.call, At: time.Now()}}); err != nil {
			t.Fatal(err)
		}
		if err := eng.StopSandbox(t.Context(), c.Sandbox, engine.StopOptions{IfEnded: true}); err != nil {
			t.Fatal(err)
		}
		var got []string
		r.past(t, "")
		past := r.s.log.read(since, time.Time{}, nil)
		r.s.log.leave(past)
		for _, e := range past.queue {
			if e.Type == Container {
				got = append(got, strings.TrimSpace(e.Action+" "+e.Actor.Attributes["signal"]))
			}
		}
		same(t, got, test.want...)
		if err := eng.RenewContainer(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProgramThatNeverRan shows that a container that was not started has neither die nor oom.
func TestProgramThatNeverRan(t *testing.T) {
	r := newRig(t, enginetest.New(t))
	c := r.create(t, "web")
	same(t, r.past(t, ""), "volume create", "container create")
	if err := r.As(core.OwnerDocker).RemoveSandbox(t.Context(), c.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	same(t, r.past(t, ""), "volume create", "container create", "container destroy")
}

// TestNewAgentReplays shows that a new agent has the events of the engine's log, and those of the time without an agent.
func TestNewAgentReplays(t *testing.T) {
	n := enginetest.New(t)
	r := newRig(t, n)
	c := r.create(t, "web")
	r.start(t, c.ID)
	n.Stop()
	r.Supervisor.Exit(core.Ref{Container: c.ID}, 5)
	n.Start()
	n.Settle()
	r = newRig(t, n)
	same(t, r.past(t, `{"type":["container"]}`), "container create", "container start", "container die")
}

// TestTrimmedEvents shows that events that the engine's log has dropped are lost, and that later ones are not.
func TestTrimmedEvents(t *testing.T) {
	n := enginetest.Fakes(t)
	n.Options.Store = state.NewMemory(8)
	n.Start()
	r := newRig(t, n)
	r.s.Publish(Volume, "create", "v", nil)
	for i := range 5 {
		r.create(t, fmt.Sprint("lost-", i))
	}
	same(t, r.past(t, ""), "volume create")
	c := r.create(t, "web")
	r.start(t, c.ID)
	same(t, r.past(t, `{"container":["web"]}`), "container create", "container start")
}

func TestOtherOwnersHaveNoEvents(t *testing.T) {
	n := enginetest.New(t)
	r := newRig(t, n)
	sb := n.Pod(core.OwnerCRI, "pod")
	c := n.Running(sb, "c", n.AddImage("busybox", ocispec.ImageConfig{}, nil), "run")
	n.Supervisor.Exit(core.Ref{Container: c.ID}, 0)
	n.Settle()
	same(t, r.past(t, ""))
}
