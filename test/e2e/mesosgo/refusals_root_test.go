package mesosgo

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/agent"
	"github.com/mesos/mesos-go/api/v1/lib/agent/calls"
	"github.com/mesos/mesos-go/api/v1/lib/httpcli"
	"github.com/mesos/mesos-go/api/v1/lib/httpcli/httpagent"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// failures are the statuses of refusals that each call has in the contract; those of
// rules, 403, are TestWhoMayCall's.
func failures() map[agent.Call_Type][]int {
	return map[agent.Call_Type][]int{
		agent.Call_LIST_FILES:                      {400, 404},
		agent.Call_READ_FILE:                       {400, 404, 500},
		agent.Call_LAUNCH_CONTAINER:                {202, 400, 500, 501},
		agent.Call_LAUNCH_NESTED_CONTAINER:         {202, 400, 500, 501},
		agent.Call_WAIT_CONTAINER:                  {400, 404},
		agent.Call_WAIT_NESTED_CONTAINER:           {400, 404},
		agent.Call_KILL_CONTAINER:                  {400, 404, 500},
		agent.Call_KILL_NESTED_CONTAINER:           {400, 404, 500},
		agent.Call_REMOVE_CONTAINER:                {400, 500},
		agent.Call_REMOVE_NESTED_CONTAINER:         {400, 500},
		agent.Call_LAUNCH_NESTED_CONTAINER_SESSION: {202, 400},
		agent.Call_ATTACH_CONTAINER_INPUT:          {400, 404, 409, 500},
		agent.Call_ATTACH_CONTAINER_OUTPUT:         {400, 404, 500},
		agent.Call_ADD_RESOURCE_PROVIDER_CONFIG:    {400, 409, 500},
		agent.Call_UPDATE_RESOURCE_PROVIDER_CONFIG: {400, 404},
		agent.Call_PRUNE_IMAGES:                    {500},
		agent.Call_MARK_RESOURCE_PROVIDER_GONE:     {400}, // a call of later versions
	}
}

// TestRefusals has mesos-go hear each of them from the real agent.
func TestRefusals(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: config})
		ref := n.Busybox(t)
		for form, codec := range forms() {
			t.Run(form, func(t *testing.T) {
				x := &trial{client: newClient(t, n, codec, &heard{}), ref: ref, parent: id("parent")}
				x.ok(calls.LaunchContainer(x.parent, x.forever(), image(ref), nil))
				for _, test := range []func(x *trial){badNames, badFiles, badLaunches, badKills, badRemovals, badSessions, badProviders, pruneWhilePulling} {
					test(x)
				}
				x.no(calls.MarkResourceProviderGone(mesos.ResourceProviderID{Value: "x"}), 400, "Failed to validate agent::Call: Expecting 'type' to be present")
				x.end(x.parent)
				for kind, codes := range failures() {
					for _, code := range codes {
						if !x.heard.codes[kind][code] {
							t.Errorf("%s was never answered by %d", kind, code)
						}
					}
				}
				n.Check()
			})
		}
	})
}

// badNames: each call checks the names of containers first.
func badNames(x *trial) {
	const prefix = "Failed to validate agent::Call: "
	for _, c := range []struct {
		call *agent.Call
		name string
	}{
		{calls.LaunchContainer(id("a b"), shell("true"), nil, nil), "launch_container"},
		{calls.WaitContainer(id("a b")), "wait_container"},
		{calls.KillContainer(id("a b")), "kill_container"},
		{calls.RemoveContainer(id("a b")), "remove_container"},
		{calls.LaunchNestedContainer(id("a b"), shell("true"), nil), "launch_nested_container"},
		{calls.WaitNestedContainer(id("a b")), "wait_nested_container"},
		{calls.KillNestedContainer(id("a b")), "kill_nested_container"},
		{calls.RemoveNestedContainer(id("a b")), "remove_nested_container"},
		{calls.LaunchNestedContainerSession(id("a b"), shell("true"), nil), "launch_nested_container_session"},
		{calls.AttachContainerOutput(id("a b")), "attach_container_output"},
	} {
		x.no(c.call, 400, prefix+"'"+c.name+".container_id' is invalid: 'ContainerID.value' 'a b' contains invalid characters")
	}
	x.is("input", x.input(id("\x01")), 400, prefix+"'attach_container_input.container_id' is invalid: 'ContainerID.value' '\x01' contains invalid characters")
	x.is("input out of nowhere", func() error {
		_, _, err := x.send(x.t.Context(), agent.Call_ATTACH_CONTAINER_INPUT, calls.Empty().Push(stdin("x")))
		return err
	}(), 400, "Expecting 'attach_container_input.type' to be CONTAINER_ID")
	for name, call := range map[string]*agent.Call{
		"launch_nested_container": calls.LaunchNestedContainer(id("a"), shell("true"), nil), "wait_nested_container": calls.WaitNestedContainer(id("a")),
		"kill_nested_container": calls.KillNestedContainer(id("a")), "remove_nested_container": calls.RemoveNestedContainer(id("a")),
		"launch_nested_container_session": calls.LaunchNestedContainerSession(id("a"), shell("true"), nil),
	} {
		x.no(call, 400, prefix+"Expecting '"+name+".container_id.parent' to be present")
	}
	deep := id("a")
	for range 90 {
		deep = below(deep, "a")
	}
	x.no(calls.WaitContainer(deep), 400, prefix+"'wait_container.container_id' is invalid: 'ContainerID.parent' is invalid: more than 32 levels")
}

// badFiles: missing files, directories, and paths that lead out.
func badFiles(x *trial) {
	dir := filepath.Join(x.n.Root, "mesos", "containers", "parent")
	if err := os.Symlink("/etc", filepath.Join(dir, "out")); err != nil {
		x.t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), "/etc/passwd", dir + "/../../../../etc/passwd", ""} {
		x.no(calls.ListFiles(path), 404, "404 Not Found.")
		x.no(calls.ReadFile(path, 0), 404, "404 Not Found.")
	}
	for _, path := range []string{filepath.Join(dir, "out"), filepath.Join(dir, "out", "passwd")} {
		x.no(calls.ListFiles(path), 400, "'"+path+"' is inaccessible.")
		x.no(calls.ReadFile(path, 0), 400, "'"+path+"' is inaccessible.")
	}
	x.no(calls.ReadFile(dir, 0), 400, "Cannot read a directory.\n")
	// A file of the kernel that states a wrong size cannot be read.
	broken := filepath.Join(dir, "broken")
	if err := errors.Join(os.WriteFile(broken, nil, 0o600), syscall.Mount("/sys/class/net/lo/speed", broken, "", syscall.MS_BIND, "")); err != nil {
		x.t.Fatal(err)
	}
	x.no(calls.ReadFile(broken, 0), 500, "read "+broken+": ")
	if err := errors.Join(syscall.Unmount(broken, 0), os.Remove(broken)); err != nil {
		x.t.Error(err)
	}
}

// badLaunches: each leaves nothing.
func badLaunches(x *trial) {
	a, child := id("a"), below(x.parent, "child")
	launch := func(c *mesos.CommandInfo, i *mesos.ContainerInfo, r ...mesos.Resource) *agent.Call {
		return calls.LaunchContainer(a, c, i, r)
	}
	x.again(calls.LaunchContainer(x.parent, x.forever(), image(x.ref), nil))
	x.no(launch(&mesos.CommandInfo{Value: new("/no/such/program"), Shell: new(false)}, image(x.ref)), 400, "")
	x.no(launch(shell("true"), image("127.0.0.1:1/none")), 400, "image 127.0.0.1:1/none: ")
	x.no(launch(nil, nil), 400, "No executable specified to run and no default in the image")
	x.no(launch(shell("true"), nil, mesos.Resource{Name: "cpus", Type: mesos.SCALAR.Enum(), Scalar: &mesos.Value_Scalar{Value: -1}}), 400, "Failed to validate agent::Call: Invalid resources: ")
	x.no(launch(shell("true"), nil, mesos.Resource{Name: "mem", Type: mesos.SCALAR.Enum(), Scalar: &mesos.Value_Scalar{Value: 64}, Role: new("prod")}), 400, "Failed to validate agent::Call: 'launch_container.resources' must be unreserved")
	x.no(launch(shell("true"), nil, scalar("gpus", 1)), 400, "Requested 1 gpus but only 0 available")
	x.no(calls.LaunchContainer(child, shell("true"), nil, []mesos.Resource{scalar("mem", 64)}), 400, "Failed to validate agent::Call: Resources may not be specified")
	x.no(calls.LaunchNestedContainer(below(id("none"), "child"), shell("true"), nil), 400, "Root container none not found")
	x.no(calls.LaunchNestedContainer(below(child, "child"), shell("true"), nil), 400, "Parent container parent.child does not exist")
	appc := mesos.Image_APPC
	foreign := &mesos.ContainerInfo{Type: mesos.ContainerInfo_MESOS.Enum(), Mesos: &mesos.ContainerInfo_MesosInfo{Image: &mesos.Image{Type: &appc}}}
	x.no(launch(shell("true"), foreign), 501, "image type APPC")
	x.no(calls.LaunchNestedContainer(child, shell("true"), foreign), 501, "image type APPC")
	writable := image(x.ref)
	writable.Volumes = []mesos.Volume{{Mode: mesos.RW.Enum(), ContainerPath: "/more", Image: image(x.ref).Mesos.Image}}
	x.no(launch(shell("true"), writable), 501, "an image as volume in mode RW")
	// A parent that has ended is on its way out.
	x.ok(launch(shell("exit 0"), image(x.ref)))
	x.ok(calls.WaitContainer(a))
	x.no(calls.LaunchNestedContainer(below(a, "b"), shell("true"), nil), 400, "Parent container a is in 'DESTROYING' state")
	x.ok(calls.RemoveContainer(a))
	// A directory that cannot be made is the agent's fault.
	dir := filepath.Join(x.n.Root, "mesos", "containers", "parent", "containers")
	x.ok(calls.LaunchNestedContainer(child, x.forever(), nil))
	x.again(calls.LaunchNestedContainer(child, x.forever(), nil))
	place := filepath.Join(dir, "child", "containers")
	if err := errors.Join(os.Remove(place), os.WriteFile(place, nil, 0o600)); err != nil {
		x.t.Fatal(err)
	}
	x.no(calls.LaunchContainer(below(child, "x"), shell("true"), nil, nil), 500, "Failed to create sandbox: ")
	x.no(calls.LaunchNestedContainer(below(child, "x"), shell("true"), nil), 500, "Failed to create sandbox: ")
	x.ok(calls.KillNestedContainer(child))
	x.ok(calls.WaitNestedContainer(child))
	x.ok(calls.RemoveNestedContainer(child))
	for _, id := range []mesos.ContainerID{a, child} {
		_, _, err := x.answer(calls.WaitContainer(id))
		x.is("what was refused", err, 404, "Container ")
	}
}

func badKills(x *trial) {
	child := below(x.parent, "child")
	x.ok(calls.LaunchNestedContainer(child, shell("exit 0"), nil))
	x.ok(calls.WaitNestedContainer(child))
	x.no(calls.KillNestedContainer(child), 404, "Container 'parent.child' cannot be found (or is already killed)")
	x.no(calls.KillContainer(child), 404, "Container 'parent.child' cannot be found (or is already killed)")
	x.no(calls.WaitContainer(id("none")), 404, "Container none cannot be found")
	x.no(calls.WaitNestedContainer(below(x.parent, "none")), 404, "Container parent.none cannot be found")
	x.ok(calls.RemoveNestedContainer(child))
	x.ok(calls.LaunchNestedContainer(child, x.forever(), nil))
	for _, sig := range []int32{-1, 65, 1 << 30} {
		kill := calls.KillContainer(x.parent)
		kill.KillContainer.Signal = &sig
		x.no(kill, 500, "Unable to send signal to container: Invalid argument")
		kill = calls.KillNestedContainer(child)
		kill.KillNestedContainer.Signal = &sig
		x.no(kill, 500, "Unable to send signal to container: Invalid argument")
	}
	x.no(calls.RemoveNestedContainer(child), 500, "Nested container has not terminated yet")
	x.ok(calls.KillNestedContainer(child))
	x.ok(calls.WaitNestedContainer(child))
	x.ok(calls.RemoveNestedContainer(child))
}

func badRemovals(x *trial) {
	x.no(calls.RemoveContainer(x.parent), 500, "Container parent has not terminated yet")
	x.no(calls.RemoveContainer(id("none")), 500, "Unknown root container none")
	x.ok(calls.RemoveContainer(below(id("none"), "child"))) // it has gone with its root
	x.ok(calls.RemoveNestedContainer(below(x.parent, "none")))
}

func badSessions(x *trial) {
	s := below(x.parent, "s")
	x.no(calls.LaunchNestedContainerSession(s, shell("true"), image(x.ref)), 400, "A 'rootfs' cannot be set for DEBUG containers")
	o := x.open(calls.LaunchNestedContainerSession(s, shell("echo here; cat"), nil))
	o.has("here")
	x.again(calls.LaunchNestedContainerSession(s, shell("true"), nil))
	x.is("a size for what is no terminal", x.input(s, size(1, 1)), 400, "Unable to set the window size: ")
	records := make(chan *agent.Call)
	first := make(chan error)
	go func() {
		_, _, err := x.send(x.t.Context(), agent.Call_ATTACH_CONTAINER_INPUT, calls.FromChan(records))
		first <- err
	}()
	records <- calls.AttachContainerInput(s)
	records <- stdin("mine")
	o.has("mine")
	x.is("a second input", x.input(s), 409, "Multiple input connections are not allowed")
	close(records)
	if err := <-first; err != nil {
		x.t.Errorf("the first: %v", err)
	}
	x.ok(calls.KillNestedContainer(s))
	o.end()
	x.no(calls.AttachContainerOutput(id("none")), 404, "Container none cannot be found")
	x.no(calls.AttachContainerOutput(s), 500, "Unknown container parent.s")
	x.is("input for nobody", x.input(id("none")), 404, "Container none cannot be found")
	x.is("input after the end", x.input(s), 500, "Unknown container parent.s")
}

func badProviders(x *trial) {
	const what = "Resource provider with type 'org.apache.mesos.rp.local.storage' and name 'disks' "
	x.no(calls.UpdateResourceProviderConfig(provider("disks", "lvm")), 404, what+"does not exist")
	x.ok(calls.AddResourceProviderConfig(provider("disks", "lvm")))
	x.no(calls.AddResourceProviderConfig(provider("disks", "zfs")), 409, what+"already exists")
	unknown := provider("disks", "lvm")
	unknown.Type = "x"
	for _, call := range []*agent.Call{calls.AddResourceProviderConfig(unknown), calls.UpdateResourceProviderConfig(unknown)} {
		x.no(call, 400, "Failed to validate resource provider config with type 'x' and name 'disks': Unknown local resource provider type 'x'")
	}
	unknown.ID = &mesos.ResourceProviderID{Value: "i"}
	x.no(calls.AddResourceProviderConfig(unknown), 400, "Failed to validate agent::Call: Expecting 'add_resource_provider_config.info.id' to be unset")
	file := filepath.Join(x.n.Root, "mesos", "resource_providers", "org.apache.mesos.rp.local.storage.disks.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		x.t.Fatal(err)
	}
	x.no(calls.AddResourceProviderConfig(provider("disks", "lvm")), 500, "resource provider config "+file)
	x.ok(calls.RemoveResourceProviderConfig("org.apache.mesos.rp.local.storage", "disks"))
	x.ok(calls.RemoveResourceProviderConfig("org.apache.mesos.rp.local.storage", "disks"))
}

// pruneWhilePulling: a registry that does not answer holds up the launch that needs its image, and
// pruning is refused meanwhile.
func pruneWhilePulling(x *trial) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		x.t.Fatal(err)
	}
	asked := make(chan net.Conn)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			close(asked)
			return
		}
		asked <- conn
	}()
	p := x.begin(calls.LaunchContainer(id("a"), shell("true"), image(l.Addr().String()+"/slow"), nil))
	conn, ok := <-asked
	if !ok {
		x.t.Fatal("nobody asked the registry")
	}
	x.no(calls.PruneImages(nil), 500, "Cannot prune and pull at the same time")
	p.waits(x.t)
	_ = errors.Join(l.Close(), conn.Close())
	<-p.done
	x.is("the pull", p.err, 400, "image ")
	x.ok(calls.PruneImages(nil))
}

// acls returns rules that deny a guest every action that needs a permission.
func acls() string {
	b := &strings.Builder{}
	b.WriteString(`{"permissive": true`)
	for action, object := range map[string]string{
		"view_flags": "flags", "set_log_level": "level", "access_sandboxes": "users", "view_frameworks": "users", "view_standalone_containers": "users", "view_containers": "users",
		"launch_standalone_containers": "users", "kill_standalone_containers": "users", "wait_standalone_containers": "users", "remove_standalone_containers": "users",
		"launch_nested_containers_as_user": "users", "kill_nested_containers": "users", "wait_nested_containers": "users", "remove_nested_containers": "users",
		"launch_nested_container_sessions_under_parent_with_user": "users", "attach_containers_input": "users", "attach_containers_output": "users",
		"modify_resource_provider_configs": "resource_providers", "prune_images": "images",
	} {
		fmt.Fprintf(b, `, %q: [{"principals": {"values": ["guest"]}, %q: {"type": "NONE"}}]`, action, object)
	}
	b.WriteString("}")
	return b.String()
}

// TestWhoMayCall: by TCP, the agent refuses unknown principals, calls by a name that is not its
// own, and calls without permission.
func TestWhoMayCall(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		for name, text := range map[string]string{"credentials": "ops s3cret\nguest hello\n", "acls.json": acls()} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{Config: config + fmt.Sprintf("listen = \"127.0.0.1:5051\"\ncredentials = %q\nacls = %q\n", dir+"/credentials", dir+"/acls.json")})
		for form, codec := range forms() {
			t.Run(form, func(t *testing.T) {
				c := newClient(t, n, codec, &heard{})
				for who, code := range map[[3]string]int{
					{"127.0.0.1", "ops", "s3cret"}: 200, {"127.0.0.1", "guest", "hello"}: 200, {"127.0.0.1", "ops", "wrong"}: 401, {"127.0.0.1", "", ""}: 401,
					{"localhost", "ops", "s3cret"}: 403,
				} {
					if got, err := c.byTCP(who[0], who[1], who[2], calls.NonStreaming(calls.GetHealth())); got != code {
						t.Errorf("%q: %d, %v, want %d", who, got, err, code)
					}
				}
				c.guest()
			})
		}
	})
}

// asPrincipal makes a call by TCP; without a name as nobody.
func (c *client) asPrincipal(host, name, secret string, r calls.Request) (mesos.Response, error) {
	var auth httpcli.ConfigOpt
	if name != "" {
		auth = httpcli.BasicAuth(name, secret)
	}
	cli := httpcli.New(httpcli.Endpoint("http://"+host+":5051/api/v1"), httpcli.Codec(c.codec), httpcli.Do(httpcli.With(auth)), httpcli.ErrorMapper(refused),
		httpcli.RequestOptions(httpcli.Close(true)))
	return httpagent.NewSender(cli.Send).Send(c.t.Context(), r)
}

// heardByTCP returns the answer to a principal's call.
func (c *client) heardByTCP(who [2]string, call *agent.Call) *agent.Response {
	c.t.Helper()
	resp, err := c.asPrincipal("127.0.0.1", who[0], who[1], calls.NonStreaming(call))
	if err != nil {
		c.t.Fatalf("%s of %s: %v", call.GetType(), who[0], err)
	}
	defer func() { _ = resp.Close() }()
	var r agent.Response
	if err := resp.Decode(&r); err != nil {
		c.t.Fatal(err)
	}
	return &r
}

// byTCP returns the status of the answer to a principal's call.
func (c *client) byTCP(host, name, secret string, r calls.Request) (int, error) {
	resp, err := c.asPrincipal(host, name, secret, r)
	if resp != nil {
		_ = resp.Close()
	}
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r.code, err
	}
	if err != nil {
		return 0, err
	}
	return http.StatusOK, nil
}

// guest asserts that a guest's calls that need a permission are refused before their arguments are
// checked, and that calls open to all succeed.
func (c *client) guest() {
	a, b := id("a"), below(id("a"), "b")
	for _, call := range []*agent.Call{
		calls.GetFlags(), calls.SetLoggingLevel(1, time.Second), calls.ListFiles("/"), calls.ReadFile("/", 0),
		calls.LaunchContainer(a, shell("true"), nil, nil), calls.WaitContainer(a), calls.KillContainer(a), calls.RemoveContainer(a),
		calls.LaunchContainer(b, shell("true"), nil, nil), calls.WaitContainer(b), calls.KillContainer(b), calls.RemoveContainer(b),
		calls.LaunchNestedContainer(b, shell("true"), nil), calls.WaitNestedContainer(b), calls.KillNestedContainer(b), calls.RemoveNestedContainer(b),
		calls.LaunchNestedContainerSession(b, shell("true"), nil), calls.AttachContainerOutput(b),
		calls.AddResourceProviderConfig(provider("x", "y")), calls.UpdateResourceProviderConfig(provider("x", "y")), calls.RemoveResourceProviderConfig("x", "y"),
		calls.PruneImages(nil),
	} {
		if code, err := c.byTCP("127.0.0.1", "guest", "hello", calls.NonStreaming(call)); code != http.StatusForbidden || err.Error() != `403 "403 Forbidden."` {
			c.t.Errorf("%s of a guest: %d, %v", call.GetType(), code, err)
		}
		if code, err := c.byTCP("127.0.0.1", "ops", "s3cret", calls.NonStreaming(call)); code == http.StatusForbidden || code == 0 {
			c.t.Errorf("%s: %d, %v", call.GetType(), code, err)
		}
	}
	input := calls.Empty().Push(calls.AttachContainerInput(b))
	if code, err := c.byTCP("127.0.0.1", "guest", "hello", input); code != http.StatusForbidden {
		c.t.Errorf("input of a guest: %d, %v", code, err)
	}
	for _, call := range []*agent.Call{calls.GetVersion(), calls.GetState(), calls.GetContainers(), calls.GetLoggingLevel(), calls.GetAgent()} {
		if code, err := c.byTCP("127.0.0.1", "guest", "hello", calls.NonStreaming(call)); code != http.StatusOK {
			c.t.Errorf("%s of a guest: %d, %v", call.GetType(), code, err)
		}
	}
	for path, want := range map[string]int{"/health": 200, "/flags": 403, "/files/browse?path=/": 403, "/files/read?path=/&offset=0": 403, "/files/download?path=/": 403} {
		r, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://127.0.0.1:5051"+path, http.NoBody)
		if err != nil {
			c.t.Fatal(err)
		}
		r.SetBasicAuth("guest", "hello")
		r.Close = true
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			c.t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			c.t.Errorf("%s by GET: %d, want %d", path, resp.StatusCode, want)
		}
	}
	c.ok(calls.GetFlags()) // by the socket's file
	// Lists are for all, and have less in them for some.
	c.ok(calls.LaunchContainer(a, shell("exec sleep 1000"), nil, nil))
	show := calls.GetContainers()
	show.GetContainers = &agent.Call_GetContainers{ShowNested: new(true), ShowStandalone: new(true)}
	for who, want := range map[[2]string]int{{"guest", "hello"}: 0, {"ops", "s3cret"}: 1} {
		if n := len(c.heardByTCP(who, show).GetGetContainers().GetContainers()); n != want {
			c.t.Errorf("%s sees %d containers", who[0], n)
		}
		if s := c.heardByTCP(who, calls.GetState()).GetGetState(); len(s.GetGetTasks().GetLaunchedTasks()) != want || len(s.GetGetFrameworks().GetFrameworks()) != want {
			c.t.Errorf("%s sees %v", who[0], s)
		}
	}
	c.end(a)
}
