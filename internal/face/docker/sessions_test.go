package docker

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestOneStartOfSeveral starts a container by several requests at once: one starts it, and the others find it running.
func TestOneStartOfSeveral(t *testing.T) {
	r := newRig(t)
	r.made(t, "c", `{"Image":"busybox","HostConfig":{"AutoRemove":true}}`)
	codes := make(chan int)
	for range 6 {
		go func() {
			code, _ := r.ask(t, "POST", "/containers/c/start", "")
			codes <- code
		}()
	}
	got := map[int]int{}
	for range 6 {
		got[<-codes]++
	}
	if got[204] != 1 || got[304] != 5 {
		t.Errorf("statuses %v", got)
	}
	r.must(t, 200, "GET", "/containers/c/json", "", nil)
}

// TestAttachedClientsLearnOfARemoval attaches to a container with AutoRemove that cannot be started.
func TestAttachedClientsLearnOfARemoval(t *testing.T) {
	r := newRig(t)
	r.made(t, "holder", `{"Image":"busybox"}`)
	r.made(t, "joiner", `{"Image":"busybox","HostConfig":{"AutoRemove":true,"NetworkMode":"container:holder"}}`)
	_, in, resp := r.hijack(t, "/containers/joiner/attach?stream=1&stdout=1", "", true)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp.Status)
	}
	if code, text := r.ask(t, "POST", "/containers/joiner/start", ""); code < 400 {
		t.Fatalf("start: %d %s", code, text)
	}
	if out := frames(t, in); len(out) != 0 { // it ends
		t.Errorf("output %q", out)
	}
	r.must(t, 404, "GET", "/containers/joiner/json", "", nil)
}

// TestAStopOutlivesItsClient closes the connection of a stop: the program is killed after its time all the same.
func TestAStopOutlivesItsClient(t *testing.T) {
	r := newRig(t)
	id := r.made(t, "c", `{"Image":"busybox"}`)
	r.must(t, 204, "POST", "/containers/c/start", "", nil)
	conn, err := net.Dial("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "POST /containers/c/stop?t=1 HTTP/1.1\r\nHost: d\r\n\r\n")
	_ = conn.Close()
	if _, err := r.As(core.OwnerDocker).Wait(t.Context(), core.Ref{Container: core.ID(id)}); err != nil {
		t.Error(err)
	}
}

// TestARemovalByTheCommandLine removes a container of the API as longshore rm --force does: its name is free afterwards, and a client
// that was attached before its start learns of it.
func TestARemovalByTheCommandLine(t *testing.T) {
	r := newRig(t)
	id := r.made(t, "c", `{"Image":"busybox"}`)
	_, in, _ := r.hijack(t, "/containers/c/attach?stream=1&stdout=1", "", true)
	if err := r.Engine.All().RemoveContainer(t.Context(), core.ID(id), engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	frames(t, in)
	for list := []core.Sandbox{{}}; len(list) > 0; <-time.After(time.Millisecond) {
		var err error
		if list, err = r.As(core.OwnerDocker).Sandboxes(t.Context(), core.Filter{}); err != nil {
			t.Fatal(err)
		}
	}
	r.made(t, "c", `{"Image":"busybox"}`)
}

// TestTheEndOfASessionsInput attaches to a program that keeps its input, and ends the client's half: the session ends and the program
// runs on.
func TestTheEndOfASessionsInput(t *testing.T) {
	r := newRig(t)
	r.made(t, "c", `{"Image":"busybox","Cmd":["cat"],"OpenStdin":true}`)
	r.must(t, 204, "POST", "/containers/c/start", "", nil)
	conn, in, _ := r.hijack(t, "/containers/c/attach?stream=1&stdin=1&stdout=1", "", true)
	_, _ = io.WriteString(conn, "x")
	_ = conn.CloseWrite()
	frames(t, in) // it ends
	var d document
	if r.must(t, 200, "GET", "/containers/c/json", "", &d); !d.State.Running {
		t.Errorf("%+v", d.State)
	}
}

// theirs creates a container of another owner.
func (r *rig) theirs(t *testing.T, owner core.Owner, name string) core.ID {
	t.Helper()
	_, c, err := r.As(owner).CreatePair(t.Context(), engine.Pair{Sandbox: core.SandboxConfig{Key: core.Key(name)}, Container: func(core.ID) (core.ContainerConfig, error) {
		return core.ContainerConfig{Key: core.Key(name), Root: core.Root{Image: r.image.ID}, Spec: enginetest.Args("sh"), Labels: map[string]string{"job": "web"}}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c.ID
}

// TestOtherOwnersAreShown lists and inspects a container of the command line, as the configuration says, and tries to change it. One of
// another owner is not there.
func TestOtherOwnersAreShown(t *testing.T) {
	r := newRig(t)
	id, hidden := string(r.theirs(t, core.OwnerCLI, "their/task")), r.theirs(t, core.OwnerMesos, "their/task")
	r.made(t, "mine", `{"Image":"busybox"}`)
	var list []struct {
		ID     string `json:"Id"`
		Names  []string
		Labels map[string]string
	}
	r.must(t, 200, "GET", "/containers/json?all=1", "", &list)
	if len(list) != 2 || list[0].Names[0] != "/mine" || list[1].Names[0] != "/their_task" || list[1].Labels[OwnerLabel] != "cli" || list[1].Labels["job"] != "web" {
		t.Errorf("%+v", list)
	}
	var d document
	r.must(t, 200, "GET", "/containers/their_task/json", "", &d)
	if d.ID != id || len(d.Config.Env) != 0 {
		t.Errorf("%+v", d)
	}
	for _, change := range []string{"start", "stop", "kill", "restart", "pause", "rename?name=x", "attach", "exec"} {
		if code, text := r.ask(t, "POST", "/containers/"+id+"/"+change, `{"Cmd":["x"]}`); code != 403 && change != "start" || code == 204 {
			t.Errorf("%s: %d %s", change, code, text)
		}
	}
	r.must(t, 403, "DELETE", "/containers/"+id[:20]+"?force=1", "", nil)
	r.must(t, 404, "GET", "/containers/"+string(hidden)+"/json", "", nil)
}

// TestOtherOwnersAreManaged stops, kills and restarts containers of an owner that the configuration names, and runs programs in them.
// Nothing else of them can be changed. Their lives have events, without those of their networks and volumes.
func TestOtherOwnersAreManaged(t *testing.T) {
	restarted := ""
	r := newRig(t, func(o *Options) {
		o.Restart = func(_ context.Context, c core.Container, _ engine.StopOptions) error {
			restarted = string(c.ID)
			return nil
		}
		o.Config.Manage = []string{"nomad", "cli"}
	})
	nomad := r.As(core.OwnerNomad)
	for _, verb := range []string{"stop?t=0", "kill", "restart?t=0"} {
		id := r.theirs(t, core.OwnerNomad, "task")
		if err := nomad.StartContainer(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		var made struct {
			ID string `json:"Id"`
		}
		r.must(t, 201, "POST", "/containers/task/exec", `{"Cmd":["both"],"AttachStdout":true,"AttachStderr":true}`, &made)
		_, in, _ := r.hijack(t, "/exec/"+made.ID+"/start", `{}`, true)
		if out := frames(t, in); len(out) != 2 {
			t.Errorf("exec: %q", out)
		}
		var doc struct{ ExitCode int }
		if r.must(t, 200, "GET", "/exec/"+made.ID+"/json", "", &doc); doc.ExitCode != 7 {
			t.Errorf("exec: %+v", doc)
		}
		for _, change := range []string{"start", "pause", "rename?name=x", "attach", "update", "resize?h=1&w=1"} {
			if code, text := r.ask(t, "POST", "/containers/task/"+change, ""); code != 403 || !strings.Contains(text, "changes nothing else") {
				t.Errorf("%s: %d %s", change, code, text)
			}
		}
		r.must(t, 403, "DELETE", "/containers/task?force=1", "", nil)
		r.must(t, 403, "GET", "/containers/task/archive?path=/", "", nil)
		r.must(t, 204, "POST", "/containers/task/"+verb, "", nil)
		if _, err := nomad.Wait(t.Context(), core.Ref{Container: id}); err != nil {
			t.Error(err)
		}
		c, err := nomad.Container(t.Context(), id)
		if err != nil || c.State != core.ContainerExited {
			t.Errorf("%s: %s, %v", verb, c.State, err)
		}
		if err := nomad.RemoveSandbox(t.Context(), c.Sandbox, engine.RemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
	}
	cli := r.theirs(t, core.OwnerCLI, "mine")
	if r.must(t, 204, "POST", "/containers/mine/restart", "", nil); restarted != string(cli) {
		t.Errorf("restarted %q", restarted)
	}
	var got []string
	owners := map[string]bool{}
	_, text := r.ask(t, "GET", "/events?since=1&until="+strconv.FormatInt(time.Now().Unix()+1, 10), "")
	if text == "" {
		t.Fatal("no events")
	}
	for line := range strings.Lines(text) {
		var e struct {
			Type, Action string
			Actor        struct{ Attributes map[string]string }
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		owners[e.Actor.Attributes[OwnerLabel]+" "+e.Actor.Attributes["name"]] = true
		got = append(got, e.Type+" "+e.Action)
	}
	for _, want := range []string{"container create", "container start", "container exec_start: both", "container kill", "container die", "container destroy"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s in %q", want, got)
		}
	}
	if len(owners) != 2 || !owners["nomad task"] || !owners["cli mine"] {
		t.Errorf("events of %v", owners)
	}
}

// TestListsFollowChanges lists a container before and after changes, at once with other lists: each list shows the present state,
// although records that were decoded for one list serve the next.
func TestListsFollowChanges(t *testing.T) {
	r := newRig(t)
	r.made(t, "web", `{"Image":"busybox"}`)
	r.must(t, 204, "POST", "/containers/web/start", "", nil)
	var list []struct {
		Names      []string
		Status     string
		HostConfig struct{ NetworkMode string }
	}
	lists := func() {
		t.Helper()
		done := make(chan bool)
		for range 3 {
			go func() {
				_, _ = r.ask(t, "GET", "/containers/json?all=1", "")
				done <- true
			}()
		}
		for range 3 {
			<-done
		}
		if r.must(t, 200, "GET", "/containers/json?all=1", "", &list); len(list) != 1 {
			t.Fatalf("%+v", list)
		}
	}
	lists()
	r.must(t, 204, "POST", "/containers/web/rename?name=other", "", nil)
	r.must(t, 200, "POST", "/containers/other/update", `{"RestartPolicy":{"Name":"always"}}`, nil)
	if lists(); list[0].Names[0] != "/other" || !strings.HasPrefix(list[0].Status, "Up ") {
		t.Errorf("%+v", list)
	}
	r.must(t, 204, "POST", "/containers/other/stop?t=0", "", nil)
	if lists(); !strings.HasPrefix(list[0].Status, "Exited") {
		t.Errorf("%+v", list)
	}
}

// TestAClientLeavesDuringAStart leaves while the session is opened: leave returns after that, so that the caller can close it.
func TestAClientLeavesDuringAStart(t *testing.T) {
	f := newRig(t).face
	p := &pendingJoin{begun: make(chan struct{}), gone: make(chan struct{})}
	opening, opened := make(chan struct{}), false
	p.begin = func(context.Context) {
		close(opening)
		opened = true
		close(p.begun)
	}
	f.waiting["c"] = []*pendingJoin{p}
	go f.join(t.Context(), "c")
	<-opening
	f.leave("c", p)
	if !opened {
		t.Error("leave returned before the session was open")
	}
	f.leave("c", nil)

	q := &pendingJoin{begun: make(chan struct{}), gone: make(chan struct{})}
	f.waiting["c"] = []*pendingJoin{q}
	f.leave("c", q)
	if len(f.waiting) != 0 {
		t.Errorf("clients still wait: %v", f.waiting)
	}
	f.join(t.Context(), "c") // q.begin is nil: nobody calls it
}
