package mesos

import (
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

const (
	launchA = `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"a"},"command":{"value":"serve --now","user":"web","environment":{"variables":[{"name":"A","value":"call"}]}},
		"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":"busybox"}}},
		"volumes":[{"mode":"RO","container_path":"/data","host_path":"/srv"},{"mode":"RW","container_path":"cache","source":{"type":"SANDBOX_PATH","sandbox_path":{"type":"SELF","path":"cache"}}}],
		"linux_info":{"effective_capabilities":{"capabilities":["NET_RAW"]}},"rlimit_info":{"rlimits":[{"type":"RLMT_NOFILE","soft":10,"hard":20},{"type":"RLMT_CORE"}]}},
		"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":0.5}},{"name":"mem","type":"SCALAR","scalar":{"value":64}}]}}`
	waitA   = `{"type":"WAIT_CONTAINER","wait_container":{"container_id":{"value":"a"}}}`
	killA   = `{"type":"KILL_CONTAINER","kill_container":{"container_id":{"value":"a"}}}`
	removeA = `{"type":"REMOVE_CONTAINER","remove_container":{"container_id":{"value":"a"}}}`
)

func (n *testNode) container(key core.Key) core.Container {
	n.t.Helper()
	c, err := n.As(core.OwnerMesos).ContainerByKey(n.t.Context(), key)
	if err != nil {
		n.t.Fatal(err)
	}
	return c
}

// TestAStandaloneContainer goes from launch to removal.
func TestAStandaloneContainer(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	n.is(launchA, 202, "")
	c := n.container("a")
	dir := filepath.Join(n.work, "containers", "a")
	spec := n.Runtime.Spec(c.ID)
	if got := strings.Join(spec.Process.Args, " "); got != "/bin/sh -c serve --now" || spec.Process.Cwd != "/srv" || spec.Process.User.UID != 33 {
		t.Errorf("runs %q in %s as %v", got, spec.Process.Cwd, spec.Process.User)
	}
	if p := spec.Process.ApparmorProfile; p != "longshore-default" {
		t.Errorf("AppArmor profile %q", p)
	}
	for _, want := range []string{"A=call", "MESOS_SANDBOX=/mnt/mesos/sandbox", "PATH=/bin", "HOME=/var/www"} {
		if !strings.Contains(strings.Join(spec.Process.Env, "\n"), want) {
			t.Errorf("environment %v lacks %s", spec.Process.Env, want)
		}
	}
	mounts := map[string]string{}
	for _, m := range spec.Mounts {
		mounts[m.Destination] = m.Source + " " + strings.Join(m.Options, ",")
	}
	below := ",x-longshore.below=" + filepath.Dir(filepath.Dir(dir))
	for target, want := range map[string]string{
		"/mnt/mesos/sandbox":            dir + " rbind,rprivate,rw" + below,
		"/mnt/mesos/sandbox/containers": dir + "/containers rbind,rprivate,ro" + below,
		"/mnt/mesos/sandbox/cache":      dir + "/cache rbind,rprivate,rw" + below,
		"/data":                         "/srv rbind,rprivate,ro",
	} {
		if mounts[target] != want {
			t.Errorf("at %s is %q, want %q", target, mounts[target], want)
		}
	}
	if caps := spec.Process.Capabilities; len(caps.Effective) != 1 || caps.Effective[0] != "CAP_NET_RAW" {
		t.Errorf("capabilities %v", caps)
	}
	if r := spec.Process.Rlimits; len(r) != 2 || r[0].Soft != 10 || r[1].Hard != 1<<64-1 {
		t.Errorf("limits %v", r)
	}
	sb, err := n.As(core.OwnerMesos).SandboxByKey(t.Context(), "a")
	if err != nil || *sb.Config.Resources.Memory.Limit != 64<<20 || *sb.Config.Resources.CPU.Shares != 512 || sb.Config.Namespaces.Net.Mode != core.Host {
		t.Errorf("sandbox %+v, %v", sb.Config, err)
	}
	p := n.Supervisor.Process(core.Ref{Container: c.ID})
	if err := p.Write(1, []byte("out")); err != nil {
		t.Fatal(err)
	}
	if err := p.Write(2, []byte("err")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"stdout": "out", "stderr": "err"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	n.is(removeA, 500, "Container a has not terminated yet")
	n.Supervisor.Exit(core.Ref{Container: c.ID}, 7)
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":1792}}`)
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":1792}}`)
	n.is(killA, 404, "Container 'a' cannot be found (or is already killed)")
	n.is(removeA, 200, "")
	n.is(removeA, 500, "Unknown root container a")
	n.is(waitA, 404, "Container a cannot be found")
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the sandbox is still there: %v", err)
	}
	n.shutdown()
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestKill: the signal is SIGKILL unless one is named, and shows in the status as
// wait(2) has it.
func TestKill(t *testing.T) {
	n := newTestNode(t)
	n.is(killA, 404, "Container 'a' cannot be found (or is already killed)")
	n.is(launchA, 200, "")
	n.is(`{"type":"KILL_CONTAINER","kill_container":{"container_id":{"value":"a"},"signal":99}}`, 500, "Unable to send signal to container: Invalid argument")
	ref := core.Ref{Container: n.container("a").ID}
	n.is(`{"type":"KILL_CONTAINER","kill_container":{"container_id":{"value":"a"},"signal":12}}`, 200, "")
	if got := n.Supervisor.Signals(ref); len(got) != 1 || got[0] != 12 {
		t.Errorf("signals %v", got)
	}
}

// TestNested: a tree of three, which ends from its root down.
func TestNested(t *testing.T) {
	n := newTestNode(t)
	child := `{"value":"b","parent":{"value":"a"}}`
	grand := `{"value":"c","parent":` + child + `}`
	launch := func(id string) string {
		return `{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":` + id + `,"command":{"value":"serve"}}}`
	}
	wait := func(id string) string {
		return `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"container_id":` + id + `}}`
	}
	remove := func(id string) string {
		return `{"type":"REMOVE_NESTED_CONTAINER","remove_nested_container":{"container_id":` + id + `}}`
	}
	n.is(launch(child), 400, "Root container a not found")
	n.is(remove(child), 200, "")
	n.is(launchA, 200, "")
	n.is(launch(grand), 400, "Parent container a.b does not exist")
	n.is(launch(child), 200, "")
	n.is(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":`+grand+`,"command":{"value":"/bin/x","arguments":["x","y"],"shell":false}}}`, 200, "")
	n.is(launch(child), 202, "")
	c := n.container("a.b.c")
	spec := n.Runtime.Spec(c.ID)
	dir := filepath.Join(n.work, "containers", "a", "containers", "b", "containers", "c")
	if got := strings.Join(spec.Process.Args, " "); got != "/bin/x y" || spec.Process.User.UID != n.Runtime.Spec(n.container("a").ID).Process.User.UID || spec.Process.Cwd != dir {
		t.Errorf("runs %q as %v in %s", got, spec.Process.User, spec.Process.Cwd)
	}
	n.is(remove(child), 500, "Nested container has not terminated yet")
	n.is(killA, 200, "")
	for _, id := range []string{child, grand} {
		n.is(wait(id), 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
	}
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.is(launch(child), 400, "Container a.b has ended and was not removed")
	n.is(remove(grand), 200, "")
	n.is(removeA, 200, "")
	n.is(wait(child), 404, "Container a.b cannot be found")
	n.shutdown()
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestTheEndOfARootEndsAll: nested containers end with it, though no call waits for the root, and
// though it ended without a face.
func TestTheEndOfARootEndsAll(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	n.is(nestedB, 200, "")
	const waitB = `{"type":"WAIT_CONTAINER","wait_container":{"container_id":{"value":"b","parent":{"value":"a"}}}}`
	root := core.Ref{Container: n.container("a").ID}
	n.Supervisor.Exit(root, 0)
	n.is(waitB, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.is(removeA, 200, "")
	n.is(launchA, 200, "")
	n.is(nestedB, 200, "")
	n.shutdown()
	n.Supervisor.Exit(core.Ref{Container: n.container("a").ID}, 0)
	n.Settle()
	n.serve()
	n.is(waitB, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.is(removeA, 200, "")
}

// TestAnEndedRootMakesRoom: its name can be launched again at once, as with
// Mesos, which forgets it when it ends.
func TestAnEndedRootMakesRoom(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	first := n.container("a")
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	n.is(launchA, 200, "")
	if second := n.container("a"); second.ID == first.ID || second.State != core.ContainerRunning {
		t.Errorf("%s is %s", second.ID, second.State)
	}
}

// TestRefusedLaunchesLeaveNothing: each has its text, and nothing of it stays.
func TestRefusedLaunchesLeaveNothing(t *testing.T) {
	n := newTestNode(t)
	launch := func(more string) string {
		return `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"x"},` + more + `}}`
	}
	for _, c := range []struct {
		body string
		code int
		text string
	}{
		{launch(`"command":{"value":"ls"},"container":{"type":"DOCKER","docker":{"image":"i"}}`), 400, "The provided ContainerInfo is not supported"},
		{launch(`"command":{"shell":true}`), 400, "Shell specified but no command value provided"},
		{launch(`"command":{"shell":false}`), 400, "No executable specified to run and no default in the image"},
		{launch(`"command":{"value":"ls","uris":[{"value":"/no/such/file"}]}`), 400, "Failed to fetch all URIs for container 'x': '/no/such/file': "},
		{launch(`"command":{"value":"ls","user":"nobody-here-has-this-name"}`), 400, "unknown user nobody-here-has-this-name"},
		{launch(`"command":{"value":"ls"},"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":"none"}}}}`), 400, "image none: "},
		{launch(`"command":{"value":"ls"},"container":{"type":"MESOS","volumes":[{"mode":"RW","container_path":"p","host_path":"../../etc"}]}`), 400, "is not a path in a sandbox"},
		{launch(`"command":{"value":"ls"},"container":{"type":"MESOS","volumes":[{"mode":"RW","container_path":"p","host_path":"./x/.."}]}`), 400, "has the sandboxes of nested containers"},
		{launch(`"command":{"value":"ls"},"container":{"type":"MESOS","volumes":[{"mode":"RW","container_path":"p","source":{"type":"SANDBOX_PATH","sandbox_path":{"type":"SELF","path":"containers/b"}}}]}`), 400, "has the sandboxes of nested containers"},
		{launch(`"command":{"value":"ls"},"container":{"type":"MESOS","volumes":[{"mode":"RW","container_path":"containers/x","host_path":"/srv"}]}`), 400, "hides the sandbox"},
		{launch(`"command":{"value":"ls"},"resources":[{"name":"gpus","type":"SCALAR","scalar":{"value":1}}]`), 400, "Requested 1 gpus but only 0 available"},
	} {
		if code, text := n.post(c.body); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s:\n%d %q, want %d %q", c.body, code, text, c.code, c.text)
		}
		if _, err := os.Stat(filepath.Join(n.work, "containers", "x")); !os.IsNotExist(err) {
			t.Errorf("%s left a sandbox: %v", c.body, err)
		}
	}
	n.shutdown()
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestARefusedProgramIsABadRequest, with the reason.
func TestARefusedProgramIsABadRequest(t *testing.T) {
	for name, refusal := range enginetest.Refusals() {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			n.Runtime.Refuse(refusal.Err, "Create", "Start")
			if code, text := n.post(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"x"},"command":{"value":"app"}}}`); code != 400 || !strings.Contains(text, refusal.Err.Error()) {
				t.Errorf("%d %q", code, text)
			}
			n.Runtime.Fail(nil)
			n.shutdown()
			if left := n.Left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestFetched: the URIs' files are in the sandbox before the command runs, and are its user's.
func TestFetched(t *testing.T) {
	n := newTestNode(t)
	src := filepath.Join(t.TempDir(), "tool")
	if err := os.WriteFile(src, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	fetching := func(id, uri string) string {
		return strings.Replace(strings.Replace(launchA, `"user":"web"`, `"user":"web","uris":[`+uri+`]`, 1), `"value":"a"`, `"value":"`+id+`"`, 1)
	}
	if os.Getuid() == 0 { // it gets no file that its user may not read
		n.is(fetching("x", `{"value":"`+src+`"}`), 400, "Failed to fetch all URIs for container 'x': '"+src+"': open "+src[1:]+": permission denied")
		for dir := filepath.Dir(src); dir != os.TempDir(); dir = filepath.Dir(dir) {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(src, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n.is(fetching("a", `{"value":"`+src+`","executable":true,"output_file":"bin/tool"},{"value":"`+src+`"}`), 200, "")
	for name, mode := range map[string]fs.FileMode{"": 0o755, "bin": 0o755, "bin/tool": 0o700, "tool": 0o600} {
		st, err := os.Stat(filepath.Join(n.work, "containers", "a", name))
		if err != nil || st.Mode().Perm() != mode || os.Getuid() == 0 && st.Sys().(*syscall.Stat_t).Uid != 33 {
			t.Errorf("%q: %v, %v", name, st, err)
		}
	}
	n.is(fetching("x", `{"value":"tool"}`), 400, "Failed to fetch all URIs for container 'x': 'tool': A relative path was passed for the resource")
	if _, err := os.Stat(filepath.Join(n.work, "containers", "x")); !os.IsNotExist(err) {
		t.Errorf("a sandbox is left: %v", err)
	}
	// A cached file serves another when its source has gone.
	web := httptest.NewServer(http.FileServerFS(os.DirFS(filepath.Dir(src))))
	defer web.Close()
	for _, id := range []string{"b", "c"} {
		n.is(fetching(id, `{"value":"`+web.URL+`/tool","cache":true}`), 200, "")
		if got, err := os.ReadFile(filepath.Join(n.work, "containers", id, "tool")); err != nil || string(got) != "text" {
			t.Errorf("%q, %v", got, err)
		}
		_ = os.Remove(src)
	}
	failed := 1.0
	if os.Getuid() == 0 {
		failed++
	}
	metrics := map[string]float64{}
	for _, m := range n.answer(`{"type":"GET_METRICS","get_metrics":{}}`).GetGetMetrics().GetMetrics() {
		metrics[m.GetName()] = m.GetValue()
	}
	if metrics["containerizer/fetcher/task_fetches_succeeded"] != 3 || metrics["containerizer/fetcher/task_fetches_failed"] != failed || metrics["containerizer/fetcher/cache_size_used_bytes"] != 4 || metrics["containerizer/fetcher/cache_size_total_bytes"] != 2<<30 {
		t.Errorf("metrics %v", metrics)
	}
	n.is(strings.Replace(sessionS, `"shell":false`, `"shell":false,"uris":[{"value":"`+src+`"}]`, 1), 400, "command.uris: a session has no sandbox of its own")
}

// TestRestart: a restarted face knows running and ended containers.
func TestRestart(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	n.shutdown()
	n.Restart()
	n.serve()
	n.is(launchA, 202, "")
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
}

// TestAnUnfinishedLaunch: the rest of a launch that the agent's death cut is gone when the next one
// serves.
func TestAnUnfinishedLaunch(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	n.shutdown()
	img := n.AddImage("other", imagespec.ImageConfig{Cmd: []string{"serve"}}, nil)
	n.Container(n.Pod(core.OwnerMesos, "made"), "made", img, "serve")
	n.Pod(core.OwnerMesos, "bare")
	n.Pod(core.OwnerCRI, "another")
	if err := os.Mkdir(filepath.Join(n.work, "containers", "made"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.serve()
	n.is(`{"type":"WAIT_CONTAINER","wait_container":{"container_id":{"value":"made"}}}`, 404, "Container made cannot be found")
	all, err := n.Engine.All().Sandboxes(t.Context(), core.Filter{})
	if err != nil || len(all) != 2 {
		t.Errorf("sandboxes: %v, %v", all, err)
	}
	if left, _ := filepath.Glob(filepath.Join(n.work, "containers", "*")); len(left) != 1 {
		t.Errorf("directories: %q", left)
	}
	n.is(launchA, 202, "")
}

// TestCommandLines: the program, by the command and the image's own (Cmd serve).
func TestCommandLines(t *testing.T) {
	n := newTestNode(t)
	n.Images.Offer("entry", imagespec.ImageConfig{Entrypoint: []string{"/entry", "-e"}, Cmd: []string{"cmd"}}, map[string]string{"etc/passwd": ""})
	for i, c := range []struct{ image, command, want string }{
		{"busybox", `{}`, "serve"},
		{"busybox", `{"shell":false}`, "serve"},
		{"busybox", `{"value":"echo a"}`, "/bin/sh -c echo a"},
		{"busybox", `{"value":"x","shell":false}`, "x"},
		{"busybox", `{"value":"x","shell":false,"arguments":["argv0","y"]}`, "x y"},
		{"busybox", `{"shell":false,"arguments":["y"]}`, "serve y"},
		{"entry", `{"shell":false}`, "/entry -e cmd"},
		{"entry", `{"shell":false,"arguments":["y"]}`, "/entry -e y"},
	} {
		id := fmt.Sprintf("c%d", i)
		n.is(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"`+id+`"},"command":`+c.command+
			`,"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":"`+c.image+`"}}}}}}`, 200, "")
		if got := strings.Join(n.Runtime.Spec(n.container(core.Key(id)).ID).Process.Args, " "); got != c.want {
			t.Errorf("%s of %s runs %q, want %q", c.command, c.image, got, c.want)
		}
	}
}
