package nomad

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// rig is an agent, a Nomad beside it that has it for a driver, and a registry
// with an image.
type rig struct {
	*nodetest.Node
	t      *testing.T
	binary string
	dir    string
	image  string

	registry *imagetest.Registry
	log      *os.File
	cmd      *exec.Cmd
	docker   *exec.Cmd // its dockerd, when it has one
	servers  *exec.Cmd // Nomad's server, when it is a process of its own
	args     []string
}

// options says how Nomad's side is to be.
type options struct {
	config        string // of the agent
	plugin        string // of the block config of the plugin
	client, extra string // of the block client, and further blocks
	name          string // the driver's, when it is another
	second        string // the name of a second driver, from a plugin file and a block of its own
	server        bool   // a server with a disk, so that Nomad can be started again
	docker        bool   // a dockerd of the rig's own, where there is one, for Nomad's own driver
	bare          bool   // without our driver
	binary        string // another Nomad to begin with
	apart         bool   // server and client are processes of their own
	shared        bool   // mounts in Nomad's directory show on the node, as under systemd
	device        string // a device plugin's binary, which the agent's configuration calls device
	debian        bool   // agent and driver are those of the Debian packages
}

const address = "http://127.0.0.1:4646"

// start runs body on a rig, or skips without Nomad.
func start(t *testing.T, o options, body func(r *rig)) {
	t.Helper()
	binary := os.Getenv("NOMAD")
	if binary == "" {
		t.Skip("needs Nomad: set NOMAD to its binary")
	}
	roottest.Run(t, func(t *testing.T) {
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		alone(t)
		node := nodetest.Options{Config: o.config}
		if o.debian {
			node = debian(t)
		}
		n := nodetest.Start(t, node)
		r := &rig{Node: n, t: t, binary: cmp.Or(o.binary, binary), dir: filepath.Join(n.Dir, "nomad"), registry: imagetest.NewRegistry(t)}
		r.image = r.registry.Push("busybox", "1", built)
		t.Cleanup(r.removeCgroups)
		t.Cleanup(r.unmount)
		if o.docker {
			r.startDocker()
		}
		r.openLog()
		r.link("driver")
		if o.second != "" {
			r.link("second")
		}
		if o.device != "" {
			if err := os.Symlink(o.device, filepath.Join(r.dir, "plugins", "device")); err != nil {
				t.Fatal(err)
			}
		}
		if o.shared {
			r.share()
		}
		r.configure(o)
		go r.reap(t.Context())
		if o.apart {
			r.startServer()
		}
		r.startNomad()
		t.Cleanup(r.stopNomad)
		r.waitForDriver(cmp.Or(o.name, "longshore"))
		r.must("operator", "scheduler", "set-config", "-memory-oversubscription=true")
		body(r)
	})
}

// alone waits until no other Nomad of these tests runs on this machine: the names
// of its cgroups are fixed.
func alone(t *testing.T) {
	t.Helper()
	dir, err := os.Open("/sys/fs/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// link puts our driver in Nomad's directory of plugins, as the guide says, under any name: it knows itself
// by the cookie.
func (r *rig) link(name string) {
	r.t.Helper()
	if err := os.MkdirAll(filepath.Join(r.dir, "plugins"), 0o755); err != nil {
		r.t.Fatal(err)
	}
	to := filepath.Join(r.dir, "plugins", name)
	if err := os.Symlink(filepath.Join(nodetest.Bin(r.t), "longshore"), to); err != nil {
		r.t.Fatal(err)
	}
}

// share has Nomad's directory be a mount that is shared, which mounts of tasks reach
// the node by.
func (r *rig) share() {
	r.t.Helper()
	data := filepath.Join(r.dir, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		r.t.Fatal(err)
	}
	for _, flags := range []uintptr{syscall.MS_BIND, syscall.MS_SHARED} {
		if err := syscall.Mount(data, data, "", flags, ""); err != nil {
			r.t.Fatal(err)
		}
	}
	r.t.Cleanup(func() { _ = syscall.Unmount(data, syscall.MNT_DETACH) })
}

// startServer starts a server without a client, which hears of clients every second.
func (r *rig) startServer() {
	r.t.Helper()
	config := fmt.Sprintf(`
bind_addr = "127.0.0.1"
data_dir = %q
disable_update_check = true
log_level = "DEBUG"
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
server {
  enabled = true
  bootstrap_expect = 1
  heartbeat_grace = "1s"
  min_heartbeat_ttl = "1s"
}
`, filepath.Join(r.dir, "server"))
	file := filepath.Join(r.dir, "server.hcl")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		r.t.Fatal(err)
	}
	r.servers = exec.Command(r.binary, "agent", "-config", file) //nolint:forbidigo // it outlives the contexts of subtests
	r.servers.Stdout, r.servers.Stderr = r.log, r.log
	r.servers.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := r.servers.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		_ = r.servers.Process.Signal(syscall.SIGINT)
		_ = r.servers.Wait()
	})
	r.eventually("the server leads", func() bool {
		var leader string
		return r.get("/v1/status/leader", &leader) && leader != ""
	})
}

// configure writes Nomad's configuration.
func (r *rig) configure(o options) {
	r.t.Helper()
	r.args = []string{"agent", "-config", filepath.Join(r.dir, "nomad.hcl")}
	server := "server {\n  enabled = true\n  bootstrap_expect = 1\n}"
	http, client := 4646, ""
	switch {
	case o.apart:
		server, http, client = "", 5646, `servers = ["127.0.0.1:4647"]`
	case !o.server:
		r.args, server = append(r.args, "-dev"), ""
	}
	config := fmt.Sprintf(`
bind_addr = "127.0.0.1"
data_dir = %q
plugin_dir = %q
disable_update_check = true
log_level = "DEBUG"
ports {
  http = %d
  rpc  = %d
  serf = %d
}
advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}
%s
client {
  enabled = true
  network_interface = "lo"
  gc_interval = "1s"
  gc_parallel_destroys = 50
  options = { "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean,consul,vault" }
  cni_path = "/usr/lib/cni"
  %s
}
telemetry {
  publish_allocation_metrics = true
  collection_interval = "1s"
}
`, filepath.Join(r.dir, "data"), filepath.Join(r.dir, "plugins"), http, http+1, http+2, server+"\n"+o.extra, o.client+"\n"+client)
	if o.debian {
		r.args = append(r.args, "-config", "/etc/nomad.d")
	}
	if !o.bare { // a file without a block is left alone
		config += fmt.Sprintf(`
plugin "driver" {
  args = [%q]
  config {
    %s
    %s
  }
}
`, "-name="+cmp.Or(o.name, "longshore"), r.socketKey(o.plugin), o.plugin)
	}
	if o.second != "" {
		config += fmt.Sprintf(`
plugin "second" {
  args = [%q]
  config {
    socket = %q
  }
}
`, "-name="+o.second, filepath.Join(r.State, "nomad.sock"))
	}
	if o.docker {
		config += fmt.Sprintf(`
plugin "docker" {
  config {
    endpoint   = "unix://%s"
    allow_caps = ["all"]
    volumes {
      enabled = true
    }
  }
}
`, r.dockerSocket())
	}
	if err := os.WriteFile(filepath.Join(r.dir, "nomad.hcl"), []byte(config), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// openLog makes Nomad's log, which a test that has failed shows the end of.
func (r *rig) openLog() {
	r.t.Helper()
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		r.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(r.dir, "nomad.log"))
	if err != nil {
		r.t.Fatal(err)
	}
	r.log = log
	r.t.Cleanup(func() {
		if r.t.Failed() {
			out, _ := os.ReadFile(log.Name())
			if keep := os.Getenv("NOMAD_LOG"); keep != "" {
				_ = os.WriteFile(keep, out, 0o600)
			}
			r.t.Logf("Nomad's log, its end:\n%s", out[max(0, len(out)-6000):])
		}
		_ = log.Close()
	})
}

// removeCgroups removes the cgroups that Nomad and dockerd leave in every hierarchy, under fixed
// names.
func (r *rig) removeCgroups() {
	var found []string
	patterns := []string{"/sys/fs/cgroup/*/nomad", "/sys/fs/cgroup/nomad.slice"}
	if r.docker != nil {
		patterns = append(patterns, "/sys/fs/cgroup/*/docker", "/sys/fs/cgroup/docker")
	}
	for _, pattern := range patterns {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			r.t.Fatal(err)
		}
		found = append(found, dirs...)
	}
	for _, dir := range found {
		var below []string
		_ = filepath.WalkDir(dir, func(p string, e os.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				below = append(below, p)
			}
			return nil
		})
		for _, p := range slices.Backward(below) {
			if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
				r.t.Errorf("a cgroup stays: %v", err)
			}
		}
	}
}

// unmount unmounts Nomad's remaining mounts in its directory (the secrets of tasks), so that the
// directory can be removed.
func (r *rig) unmount() {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for _, line := range slices.Backward(strings.Split(string(b), "\n")) {
		if f := strings.Fields(line); len(f) > 4 && strings.HasPrefix(f[4], r.dir+"/") {
			_ = syscall.Unmount(f[4], syscall.MNT_DETACH)
		}
	}
}

func (r *rig) copyPlugin(to string) {
	r.t.Helper()
	from, err := os.Open(filepath.Join(nodetest.Bin(r.t), "longshore"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = from.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := io.Copy(out, from); err != nil {
		r.t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) startNomad() {
	r.t.Helper()
	cmd := exec.Command(r.binary, r.args...) //nolint:forbidigo // it outlives the contexts of subtests
	cmd.Stdout, cmd.Stderr = r.log, r.log
	cmd.Env = append(os.Environ(), "TMPDIR="+r.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.cmd = cmd
}

// stopNomad ends it as ^C would.
func (r *rig) stopNomad() { r.endNomad(syscall.SIGINT) }

// reap waits for plugins that outlived their Nomad, as a machine's init does: the
// next Nomad looks whether they are gone.
func (r *rig) reap(ctx context.Context) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, file := range stats {
			b, _ := os.ReadFile(file)
			var pid, parent int
			var name, state string
			if n, _ := fmt.Sscan(string(b), &pid, &name, &state, &parent); n == 4 && name == "(driver)" && state == "Z" && parent == os.Getpid() {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			}
		}
	}
}

func (r *rig) endNomad(sig syscall.Signal) {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(sig)
	_ = r.cmd.Wait()
	r.cmd = nil
}

// get reads the API into v and reports whether it answered.
func (r *rig) get(path string, v any) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address+path, nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(v) == nil
}

// node is the API's description of a node.
type node struct {
	ID         string
	Attributes map[string]string
	Drivers    map[string]struct {
		Detected, Healthy bool
		HealthDescription string
	}
}

func (r *rig) node() node {
	var list []struct{ ID string }
	var n node
	if r.get("/v1/nodes", &list) && len(list) > 0 {
		r.get("/v1/node/"+list[0].ID, &n)
	}
	return n
}

func (r *rig) waitForDriver(name string) {
	r.t.Helper()
	r.eventually("the driver is healthy", func() bool {
		n := r.node()
		return n.Drivers[name].Healthy && n.Attributes["driver."+name+".runtime"] != ""
	})
}

// eventually is nodetest's, at a pace that Nomad can answer, and ends when Nomad
// has.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(roottest.Patience())
	defer deadline.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			r.t.Fatalf("never: %s", what)
		}
	}
}

// nomad runs Nomad's command line and returns its output.
func (r *rig) nomad(args ...string) (string, error) { return r.nomadIn("", args...) }

func (r *rig) nomadIn(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*roottest.Patience())
	defer cancel()
	cmd := exec.CommandContext(ctx, r.binary, args...)
	cmd.Env = append(os.Environ(), "NOMAD_ADDR="+address)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil {
		err = fmt.Errorf("nomad %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), err
}

func (r *rig) must(args ...string) string {
	r.t.Helper()
	out, err := r.nomad(args...)
	if err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// run submits a job, with the rig's image for IMAGE, without waiting for it.
func (r *rig) run(job string) {
	r.t.Helper()
	job = strings.ReplaceAll(job, "IMAGE", r.image)
	if out, err := r.nomadIn(job, "job", "run", "-detach", "-"); err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
}

// alloc is an allocation as far as tests look.
type alloc struct {
	ID, JobID, ClientStatus, DesiredStatus, TaskGroup string

	JobVersion         int
	PreviousAllocation string // which this one is in place of
	TaskStates         map[string]struct {
		State    string
		Failed   bool
		Restarts int
		Events   []taskEvent
	}
}

type taskEvent struct {
	Type, DisplayMessage string
	Time                 int64 // nanoseconds since 1970
	ExitCode             int
	Details              map[string]string
}

// said returns a task's events as text.
func (a alloc) said(task string) string {
	var b strings.Builder
	for _, e := range a.TaskStates[task].Events {
		fmt.Fprintf(&b, "%s: %s %v\n", e.Type, e.DisplayMessage, e.Details)
	}
	return b.String()
}

// event is the first event of a kind that a task has had.
func (a alloc) event(task, kind string) taskEvent {
	for _, e := range a.TaskStates[task].Events {
		if e.Type == kind {
			return e
		}
	}
	return taskEvent{}
}

// look returns an allocation's present state.
func (r *rig) look(a alloc) (now alloc) {
	r.t.Helper()
	if !r.get("/v1/allocation/"+a.ID, &now) {
		r.t.Fatalf("there is no allocation %s of %s", a.ID, a.JobID)
	}
	return now
}

func (r *rig) allocs(job string) []alloc {
	var list []alloc
	r.get("/v1/job/"+job+"/allocations", &list)
	return list
}

// allocation waits until a job has one in that state, and returns it.
func (r *rig) allocation(job, status string) alloc {
	r.t.Helper()
	var found alloc
	failed := map[string]bool{}
	r.eventually(job+" has an allocation that is "+status, func() bool {
		for _, a := range r.allocs(job) {
			if found = a; a.ClientStatus == status {
				return true
			}
			if a.ClientStatus == "failed" && !failed[a.ID] {
				failed[a.ID] = true
				for task := range a.TaskStates {
					r.t.Logf("%s failed:\n%s", task, a.said(task))
				}
				if status == "running" {
					r.t.Fatalf("%s has failed", job)
				}
			}
		}
		return false
	})
	return found
}

// nothingLeft asserts that the agent has no container or sandbox any more.
func (r *rig) nothingLeft() {
	r.t.Helper()
	r.eventually("no container and no sandbox is left", func() bool {
		for _, list := range [][]string{{"ps", "-a", "--json"}, {"sandboxes", "--json"}} {
			if out, err := r.CLI(list...); err != nil || strings.TrimSpace(out) != "[]" {
				return false
			}
		}
		return true
	})
	r.Check()
}
