package mesosgo

import (
	"slices"
	"testing"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/agent"
	"github.com/mesos/mesos-go/api/v1/lib/agent/calls"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// family is one of the two families of calls for nested containers.
type family struct {
	launch           func(mesos.ContainerID, *mesos.CommandInfo, *mesos.ContainerInfo) *agent.Call
	wait, kill, drop func(mesos.ContainerID) *agent.Call
	waited           agent.Response_Type
}

func families() map[string]family {
	general := func(id mesos.ContainerID, cmd *mesos.CommandInfo, ci *mesos.ContainerInfo) *agent.Call {
		return calls.LaunchContainer(id, cmd, ci, nil)
	}
	return map[string]family{
		"nested":  {calls.LaunchNestedContainer, calls.WaitNestedContainer, calls.KillNestedContainer, calls.RemoveNestedContainer, agent.Response_WAIT_NESTED_CONTAINER},
		"general": {general, calls.WaitContainer, calls.KillContainer, calls.RemoveContainer, agent.Response_WAIT_CONTAINER},
	}
}

// trial is a case's surroundings: a standalone container that runs, and one way to
// deal with those in it.
type trial struct {
	*client
	family
	ref    string
	parent mesos.ContainerID
}

func (x *trial) forever() *mesos.CommandInfo { return shell("exec sleep 1000") }

// killed kills a container that is being waited for.
func (x *trial) killed(id mesos.ContainerID, p *pending) {
	x.t.Helper()
	x.ok(x.kill(id))
	<-p.done
	if p.err != nil || p.resp.GetType() != x.waited || status(p.resp) != 9 {
		x.t.Errorf("%s ended with %v, %v", id.Value, p.resp, p.err)
	}
}

// TestContainerCases are the cases that Mesos tests its own container calls by,
// with standalone parents.
func TestContainerCases(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: config})
		ref := n.Busybox(t)
		for form, codec := range forms() {
			for kind, f := range families() {
				for name, test := range map[string]func(x *trial){
					"launch": launched, "restart": restarted, "not found": notFound, "nothing to fetch": nothingToFetch, "unsupported": unsupported,
					"two levels": twoLevels, "launched again": launchedAgain, "listed": listed,
				} {
					t.Run(name+"/"+kind+"/"+form, func(t *testing.T) {
						x := &trial{newClient(t, n, codec, &heard{}), f, ref, id("parent")}
						x.ok(calls.LaunchContainer(x.parent, x.forever(), image(ref), nil))
						test(x)
						x.end(x.parent)
						n.Check()
					})
				}
			}
		}
	})
}

// launched: a wait lasts until the container's end.
func launched(x *trial) {
	child := below(x.parent, "child")
	x.ok(x.launch(child, x.forever(), image(x.ref)))
	p := x.begin(x.wait(child))
	x.containers()
	p.waits(x.t)
	x.killed(child, p)
	x.ok(x.drop(child))
	x.no(x.wait(child), 404, "Container parent.child cannot be found")
}

// restarted: a container runs on when the agent is killed, and can be waited for and killed like
// any other.
func restarted(x *trial) {
	child := below(x.parent, "child")
	x.ok(x.launch(child, x.forever(), image(x.ref)))
	before := x.begin(x.wait(child))
	x.containers()
	x.n.Kill()
	<-before.done
	if before.err == nil {
		x.t.Errorf("a killed agent answered %v", before.resp)
	}
	x.n.Up()
	p := x.begin(x.wait(child))
	if got := x.containers(); !slices.Contains(got, "parent.child") || !slices.Contains(got, "parent") {
		x.t.Errorf("there are %q", got)
	}
	p.waits(x.t)
	x.killed(child, p)
}

func notFound(x *trial) {
	for name, id := range map[string]mesos.ContainerID{"parent.none": below(x.parent, "none"), "none.none": below(id("none"), "none")} {
		x.no(x.wait(id), 404, "Container "+name+" cannot be found")
		x.no(x.kill(id), 404, "Container '"+name+"' cannot be found (or is already killed)")
	}
}

// nothingToFetch: a URI that cannot be fetched fails the launch, and leaves nothing.
func nothingToFetch(x *trial) {
	child := below(x.parent, "child")
	for _, value := range []string{"it is not there", "/it/is/not/there", "http://127.0.0.1:1/it-is-not-there"} {
		command := x.forever()
		command.URIs = []mesos.CommandInfo_URI{{Value: value}}
		x.no(x.launch(child, command, image(x.ref)), 400, "Failed to fetch all URIs for container 'parent.child': '"+value+"': ")
	}
	x.no(x.wait(child), 404, "Container parent.child cannot be found")
	x.ok(x.launch(child, x.forever(), image(x.ref)))
}

// unsupported: the Docker daemon is not here.
func unsupported(x *trial) {
	child := below(x.parent, "child")
	info := &mesos.ContainerInfo{Type: mesos.ContainerInfo_DOCKER.Enum()}
	x.no(x.launch(child, x.forever(), info), 400, "Failed to validate agent::Call: ")
	info.Docker = &mesos.ContainerInfo_DockerInfo{Image: x.ref}
	x.no(x.launch(child, x.forever(), info), 400, "The provided ContainerInfo is not supported")
	x.no(x.wait(child), 404, "Container parent.child cannot be found")
}

// twoLevels: a nested container's end does not end its parent.
func twoLevels(x *trial) {
	child := below(x.parent, "child")
	grandchild := below(child, "grandchild")
	x.no(x.launch(grandchild, x.forever(), nil), 400, "Parent container parent.child does not exist")
	x.ok(x.launch(child, x.forever(), image(x.ref)))
	x.ok(x.launch(grandchild, x.forever(), image(x.ref)))
	upper, lower := x.begin(x.wait(child)), x.begin(x.wait(grandchild))
	x.containers()
	upper.waits(x.t)
	lower.waits(x.t)
	x.killed(grandchild, lower)
	upper.waits(x.t)
	x.no(x.drop(child), 500, "Nested container has not terminated yet")
	x.killed(child, upper)
}

// launchedAgain: another launch of a running container disturbs nothing, however often.
func launchedAgain(x *trial) {
	child := below(x.parent, "child")
	x.ok(x.launch(child, x.forever(), image(x.ref)))
	p := x.begin(x.wait(child))
	for range 3 {
		x.again(x.launch(child, x.forever(), image(x.ref)))
	}
	p.waits(x.t)
	x.killed(child, p)
}

func listed(x *trial) {
	x.ok(x.launch(below(x.parent, "child"), x.forever(), image(x.ref)))
	got := x.containers()
	if slices.Sort(got); !slices.Equal(got, []string{"parent", "parent.child"}) {
		x.t.Errorf("there are %q", got)
	}
}
