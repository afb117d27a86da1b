package mesosgo

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/agent"
	"github.com/mesos/mesos-go/api/v1/lib/agent/calls"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const config = "[face.mesos]\nenabled = true\n"

// all are the calls of the API that is spoken here: those of Mesos 1.7.
func all() []agent.Call_Type {
	var list []agent.Call_Type
	for n := range agent.Call_Type_name {
		if kind := agent.Call_Type(n); kind != agent.Call_UNKNOWN && kind != agent.Call_MARK_RESOURCE_PROVIDER_GONE {
			list = append(list, kind)
		}
	}
	slices.Sort(list)
	return list
}

// TestEveryCall has mesos-go make every call, in both forms, against real
// containers.
func TestEveryCall(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		files := t.TempDir()
		n := nodetest.Start(t, nodetest.Options{Config: config + fmt.Sprintf("fetch_dirs = [%q]\n", files)})
		ref := n.Busybox(t)
		if len(all()) != 31 {
			t.Errorf("there are %d calls", len(all()))
		}
		for form, codec := range forms() {
			t.Run(form, func(t *testing.T) {
				h := &heard{}
				c := newClient(t, n, codec, h)
				c.aboutTheAgent()
				c.standalone(ref, files)
				c.nested(ref)
				c.session(ref)
				c.providers()
				c.ok(calls.PruneImages([]mesos.Image{*image(ref).Mesos.Image}))
				for _, kind := range all() {
					if !h.codes[kind][200] {
						t.Errorf("%s has not succeeded", kind)
					}
				}
				n.Check()
			})
		}
	})
}

func (c *client) aboutTheAgent() {
	if !c.ok(calls.GetHealth()).GetGetHealth().GetHealthy() {
		c.t.Error("not healthy")
	}
	flags := map[string]string{}
	for _, f := range c.ok(calls.GetFlags()).GetGetFlags().GetFlags() {
		flags[f.GetName()] = f.GetValue()
	}
	if flags["work_dir"] != filepath.Join(c.n.Root, "mesos") {
		c.t.Errorf("flags %v", flags)
	}
	if v := c.ok(calls.GetVersion()).GetGetVersion().GetVersionInfo(); v.GetVersion() == "" {
		c.t.Errorf("version %v", v)
	}
	metrics := map[string]float64{}
	for _, m := range c.ok(calls.GetMetrics(new(time.Second))).GetGetMetrics().GetMetrics() {
		metrics[m.GetName()] = m.GetValue()
	}
	if metrics["system/mem_total_bytes"] < 1<<20 || metrics["slave/uptime_secs"] <= 0 {
		c.t.Errorf("metrics %v", metrics)
	}
	level := func() uint32 { return c.ok(calls.GetLoggingLevel()).GetGetLoggingLevel().GetLevel() }
	c.ok(calls.SetLoggingLevel(3, time.Hour))
	if level() != 3 {
		c.t.Errorf("log level %d", level())
	}
	c.ok(calls.SetLoggingLevel(0, 0))
	if level() != 0 {
		c.t.Errorf("log level %d", level())
	}
	host, err := os.Hostname()
	if err != nil {
		c.t.Fatal(err)
	}
	info := c.ok(calls.GetAgent()).GetGetAgent().GetAgentInfo()
	if info.GetHostname() != host || len(info.GetResources()) < 2 || info.GetResources()[0].GetScalar().GetValue() < 1 {
		c.t.Errorf("agent %v", info)
	}
	if r := c.ok(calls.GetOperations()); r.GetGetOperations() == nil || len(r.GetGetOperations().GetOperations()) > 0 {
		c.t.Errorf("operations %v", r)
	}
	if r := c.ok(calls.GetResourceProviders()); r.GetGetResourceProviders() == nil || len(r.GetGetResourceProviders().GetResourceProviders()) > 0 {
		c.t.Errorf("resource providers %v", r)
	}
}

// read reads a file of a sandbox.
func (c *client) read(path string) string {
	c.t.Helper()
	r := c.ok(calls.ReadFile(filepath.Join(c.n.Root, "mesos", "containers", path), 0)).GetReadFile()
	if int(r.GetSize_()) != len(r.GetData()) {
		c.t.Errorf("%s: %d bytes of %d", path, len(r.GetData()), r.GetSize_())
	}
	return string(r.GetData())
}

// standalone: a container of a user's, with a fetched file, resources and an
// environment.
func (c *client) standalone(ref, files string) {
	a := id("a")
	source := filepath.Join(files, "greeting")
	if err := os.WriteFile(source, []byte("#!/bin/sh\necho $GREETING\n"), 0o644); err != nil {
		c.t.Fatal(err)
	}
	command := &mesos.CommandInfo{
		Value: new("id -u; ./hello; echo oh >&2; exit 7"), User: new("1000:1000"),
		URIs:        []mesos.CommandInfo_URI{{Value: source, Executable: new(true), OutputFile: new("hello")}},
		Environment: &mesos.Environment{Variables: []mesos.Environment_Variable{{Name: "GREETING", Value: new("hello")}}},
	}
	c.ok(calls.LaunchContainer(a, command, image(ref), []mesos.Resource{scalar("cpus", 0.1), scalar("mem", 64)}))
	if got := status(c.ok(calls.WaitContainer(a))); got != 7<<8 {
		c.t.Errorf("ended with %d", got)
	}
	if got := c.read("a/stdout"); got != "1000\nhello\n" {
		c.t.Errorf("stdout %q", got)
	}
	if got := c.read("a/stderr"); got != "oh\n" {
		c.t.Errorf("stderr %q", got)
	}
	dir := filepath.Join(c.n.Root, "mesos", "containers", "a")
	part := c.ok(calls.ReadFileWithLength(filepath.Join(dir, "stdout"), 5, 3)).GetReadFile()
	if part.GetSize_() != 11 || string(part.GetData()) != "hel" {
		c.t.Errorf("a part: %d %q", part.GetSize_(), part.GetData())
	}
	var names []string
	for _, f := range c.ok(calls.ListFiles(dir)).GetListFiles().GetFileInfos() {
		names = append(names, strings.TrimPrefix(f.GetPath(), dir))
		if strings.HasSuffix(f.GetPath(), "/hello") && (f.GetMode()&0o777 != 0o700 || f.GetSize_() != 25) {
			c.t.Errorf("listed with mode %o and %d bytes", f.GetMode(), f.GetSize_())
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "hello")); err != nil || st.Sys().(*syscall.Stat_t).Uid != 1000 {
		c.t.Errorf("what was fetched is not its user's: %v, %v", st, err)
	}
	if got := strings.Join(names, " "); got != "/containers /hello /stderr /stdout" {
		c.t.Errorf("listed %s", got)
	}
	c.ok(calls.RemoveContainer(a))
}

// nested: a tree of three, by both families of calls.
func (c *client) nested(ref string) {
	a := id("a")
	b := below(a, "b")
	d := below(b, "d")
	c.ok(calls.LaunchContainer(a, shell("exec sleep 1000"), image(ref), nil))
	c.ok(calls.LaunchNestedContainer(b, shell("exec sleep 1000"), image(ref)))
	c.again(calls.LaunchNestedContainer(b, shell("exec sleep 1000"), image(ref)))
	c.ok(calls.LaunchNestedContainer(d, shell("echo deep; exit 3"), nil))
	if got := status(c.ok(calls.WaitNestedContainer(d))); got != 3<<8 {
		c.t.Errorf("ended with %d", got)
	}
	if got := c.read("a/containers/b/containers/d/stdout"); got != "deep\n" {
		c.t.Errorf("stdout %q", got)
	}
	for _, s := range c.containers() {
		if !slices.Contains([]string{"a", "a.b"}, s) {
			c.t.Errorf("there is %s", s)
		}
	}
	c.work("a", "a.b", "a.b.d")
	c.ok(calls.RemoveNestedContainer(d))
	kill := calls.KillNestedContainer(b)
	kill.KillNestedContainer.Signal = new(int32(9))
	c.ok(kill)
	if got := status(c.ok(calls.WaitNestedContainer(b))); got != 9 {
		c.t.Errorf("ended with %d", got)
	}
	c.end(a)
}

// work wants these containers as the tasks of this face's own framework, and the
// first for their executor, in each call that shows work.
func (c *client) work(names ...string) {
	c.t.Helper()
	state := c.ok(calls.GetState()).GetGetState()
	for name, f := range map[string]*agent.Response_GetFrameworks{"frameworks": c.ok(calls.GetFrameworks()).GetGetFrameworks(), "the state's": state.GetGetFrameworks()} {
		if all := f.GetFrameworks(); len(all) != 1 || all[0].FrameworkInfo.GetName() != "mesos" {
			c.t.Errorf("%s: %v", name, all)
		}
	}
	for name, e := range map[string]*agent.Response_GetExecutors{"executors": c.ok(calls.GetExecutors()).GetGetExecutors(), "the state's": state.GetGetExecutors()} {
		if all := e.GetExecutors(); len(all) != 1 || all[0].ExecutorInfo.ExecutorID.Value != names[0] {
			c.t.Errorf("%s: %v", name, all)
		}
	}
	for name, k := range map[string]*agent.Response_GetTasks{"tasks": c.ok(calls.GetTasks()).GetGetTasks(), "the state's": state.GetGetTasks()} {
		var got []string
		for _, t := range append(k.GetLaunchedTasks(), k.GetCompletedTasks()...) {
			got = append(got, t.TaskID.Value)
		}
		if slices.Sort(got); !slices.Equal(got, names) || len(k.GetCompletedTasks()) != 1 {
			c.t.Errorf("%s: %q", name, got)
		}
	}
}

// end kills a standalone container and removes it.
func (c *client) end(a mesos.ContainerID) {
	c.t.Helper()
	c.ok(calls.KillContainer(a))
	if got := status(c.ok(calls.WaitContainer(a))); got != 9 {
		c.t.Errorf("ended with %d", got)
	}
	c.ok(calls.RemoveContainer(a))
}

// containers returns the names of the running containers.
func (c *client) containers() []string {
	c.t.Helper()
	call := calls.GetContainers()
	call.GetContainers = &agent.Call_GetContainers{ShowNested: new(true), ShowStandalone: new(true)}
	var names []string
	for _, r := range c.ok(call).GetGetContainers().GetContainers() {
		name := r.ContainerID.Value
		for p := r.ContainerID.Parent; p != nil; p = p.Parent {
			name = p.Value + "." + name
		}
		if r.GetContainerStatus().GetExecutorPID() == 0 {
			c.t.Errorf("%s has no pid", name)
		}
		names = append(names, name)
	}
	return names
}

// session: one of a shell, with input, and an onlooker.
func (c *client) session(ref string) {
	a := id("a")
	s := below(a, "s")
	c.ok(calls.LaunchContainer(a, shell("exec sleep 1000"), image(ref), nil))
	o := c.open(calls.LaunchNestedContainerSession(s, shell("echo ready; read x; echo got $x; exit 5"), nil))
	o.has("ready")
	onlooker := c.open(calls.AttachContainerOutput(s))
	if err := c.input(s, stdin("word\n"), calls.AttachContainerInputHeartbeat(&agent.ProcessIO_Control_Heartbeat{})); err != nil {
		c.t.Errorf("input: %v", err)
	}
	o.end()
	onlooker.end()
	if o.stdout() != "ready\ngot word\n" || onlooker.stdout() != "got word\n" {
		c.t.Errorf("%q, and the onlooker %q", o.text, onlooker.text)
	}
	if got := status(c.ok(calls.WaitNestedContainer(s))); got != 5<<8 {
		c.t.Errorf("ended with %d", got)
	}
	c.end(a)
}

func provider(name, plugin string) mesos.ResourceProviderInfo {
	return mesos.ResourceProviderInfo{
		Type: "org.apache.mesos.rp.local.storage", Name: name,
		Storage: &mesos.ResourceProviderInfo_Storage{Plugin: mesos.CSIPluginInfo{
			Type: "org.example.csi", Name: plugin, Containers: []mesos.CSIPluginContainerInfo{{
				Services: []mesos.CSIPluginContainerInfo_Service{mesos.CSIPluginContainerInfo_NODE_SERVICE}, Command: shell("serve"),
			}},
		}},
	}
}

func (c *client) providers() {
	c.ok(calls.AddResourceProviderConfig(provider("disks", "lvm")))
	c.ok(calls.AddResourceProviderConfig(provider("disks", "lvm")))
	c.ok(calls.UpdateResourceProviderConfig(provider("disks", "zfs")))
	if files, _ := filepath.Glob(filepath.Join(c.n.Root, "mesos", "resource_providers", "*")); len(files) != 1 {
		c.t.Errorf("kept %q", files)
	}
	c.ok(calls.RemoveResourceProviderConfig("org.apache.mesos.rp.local.storage", "disks"))
	if files, _ := filepath.Glob(filepath.Join(c.n.Root, "mesos", "resource_providers", "*")); len(files) != 0 {
		c.t.Errorf("kept %q", files)
	}
}
