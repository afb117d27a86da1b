package mesosgo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	mesos "github.com/mesos/mesos-go/api/v1/lib"
	"github.com/mesos/mesos-go/api/v1/lib/agent"
	"github.com/mesos/mesos-go/api/v1/lib/agent/calls"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestSessions: sessions, and all that can be attached to, as mesos-go sees them.
func TestSessions(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: config})
		ref := n.Busybox(t)
		for form, codec := range forms() {
			for name, test := range map[string]func(x *trial){
				"bytes": sameBytes, "terminal": terminals, "dropped": dropped, "probed": probed, "end of input": endOfInput, "one input": oneInput,
				"no switchboard": noSwitchboard, "onlookers": onlookers, "environment": surroundings, "not started": notStarted,
			} {
				t.Run(name+"/"+form, func(t *testing.T) {
					x := &trial{client: newClient(t, n, codec, &heard{}), ref: ref, parent: id("parent")}
					x.ok(calls.LaunchContainer(x.parent, x.forever(), image(ref), nil))
					test(x)
					x.end(x.parent)
					n.Check()
				})
			}
		}
	})
}

// ends wants this end of a session from every wait, also after the session's stream.
func (x *trial) ends(s mesos.ContainerID, want int32) {
	x.t.Helper()
	for _, call := range []*agent.Call{calls.WaitNestedContainer(s), calls.WaitContainer(s)} {
		if got := status(x.ok(call)); got != want {
			x.t.Errorf("%s ended with %d, want %d", s.Value, got, want)
		}
	}
}

// sameBytes: both streams come whole, each as its own, after a sign of life.
func sameBytes(x *trial) {
	s := below(x.parent, "s")
	o := x.open(calls.LaunchNestedContainerSession(s, shell("seq 100000; seq 50000 >&2; exit 3"), nil))
	o.end()
	lines := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintln(&b, i+1)
		}
		return b.String()
	}
	if o.stdout() != lines(100000) || o.stderr() != lines(50000) {
		x.t.Errorf("%d and %d bytes came", len(o.stdout()), len(o.stderr()))
	}
	if len(o.beats) == 0 || o.beats[0].GetInterval().GetNanoseconds() != (30*time.Second).Nanoseconds() {
		x.t.Errorf("signs of life: %v", o.beats)
	}
	x.ends(s, 3<<8)
}

// terminals: one stream of output, a size that follows the client's, and input
// that ends by a character and not by a record.
func terminals(x *trial) {
	s := below(x.parent, "s")
	info := &mesos.ContainerInfo{Type: mesos.ContainerInfo_MESOS.Enum(), TTYInfo: &mesos.TTYInfo{WindowSize: &mesos.TTYInfo_WindowSize{Rows: 11, Columns: 22}}}
	o := x.open(calls.LaunchNestedContainerSession(s, shell("stty size; tty; echo oh >&2; read go; stty size; cat"), info))
	o.has("oh")
	if !strings.Contains(o.stdout(), "11 22\r\n/dev/pts/") || o.stderr() != "" {
		x.t.Errorf("%q", o.text)
	}
	if err := errors.Join(x.eof(s), x.input(s, size(0, 0), size(33, 77), stdin("go\n"))); err != nil {
		x.t.Errorf("input: %v", err)
	}
	o.has("33 77")
	if err := x.input(s, stdin("more\n\x04")); err != nil {
		x.t.Errorf("input: %v", err)
	}
	o.end()
	if !strings.HasSuffix(o.stdout(), "more\r\nmore\r\n") {
		x.t.Errorf("%q", o.stdout())
	}
	x.ends(s, 0)
}

// dropped: a session ends with its connection, and so do the processes that it started.
func dropped(x *trial) {
	s := below(x.parent, "s")
	o := x.open(calls.LaunchNestedContainerSession(s, shell("sleep 5432 & echo here; wait"), nil))
	o.has("here")
	o.cancel()
	x.ends(s, 9)
	nodetest.Eventually(x.t, "what it has started ends", func() bool { return len(nodetest.Processes("sleep", "5432")) == 0 })
}

// probed: a stream of input may come and go, with nothing but a name too.
func probed(x *trial) {
	s := below(x.parent, "s")
	o := x.open(calls.LaunchNestedContainerSession(s, shell("cat"), nil))
	for _, records := range [][]*agent.Call{nil, nil, {stdin("one ")}, {}, {stdin("two "), calls.AttachContainerInputHeartbeat(nil)}, {stdin("three")}} {
		if err := x.input(s, records...); err != nil {
			x.t.Errorf("input of %d records: %v", len(records), err)
		}
	}
	if err := x.eof(s); err != nil {
		x.t.Errorf("the end of input: %v", err)
	}
	o.end()
	if o.stdout() != "one two three" {
		x.t.Errorf("%q", o.stdout())
	}
	x.ends(s, 0)
}

// endOfInput: a record marks the end of input. Later input is written nowhere.
func endOfInput(x *trial) {
	s := below(x.parent, "s")
	o := x.open(calls.LaunchNestedContainerSession(s, shell("cat; echo end; exec sleep 1000"), nil))
	if err := errors.Join(x.input(s, stdin("text\n")), x.eof(s)); err != nil {
		x.t.Errorf("input: %v", err)
	}
	o.has("end")
	x.is("input after its end", x.input(s, stdin("lost")), 500, "Failed writing to stdin: ")
	x.ok(calls.KillNestedContainer(s))
	o.end()
	x.ends(s, 9)
	x.is("input after the end", x.input(s, stdin("lost")), 500, "")
}

// oneInput: of two the second is refused, while the first lasts. That one ends
// with the process, though its client says no end.
func oneInput(x *trial) {
	s := below(x.parent, "s")
	o := x.open(calls.LaunchNestedContainerSession(s, shell("read a; echo $a; read b; echo $b; exit 4"), nil))
	records := make(chan *agent.Call)
	first := make(chan error)
	go func() {
		_, _, err := x.send(context.Background(), agent.Call_ATTACH_CONTAINER_INPUT, calls.FromChan(records))
		first <- err
	}()
	records <- calls.AttachContainerInput(s)
	records <- stdin("one\n")
	o.has("one")
	x.is("a second input", x.input(s, stdin("not mine\n")), 409, "Multiple input connections are not allowed")
	records <- stdin("two\n")
	o.end()
	if err := <-first; err != nil {
		x.t.Errorf("the first: %v", err)
	}
	close(records)
	if o.stdout() != "one\ntwo\n" {
		x.t.Errorf("%q", o.stdout())
	}
	x.ends(s, 4<<8)
}

// noSwitchboard: a container launched without a terminal has nothing to attach to.
func noSwitchboard(x *trial) {
	const text = "I/O switchboard server was disabled for this container"
	x.no(calls.AttachContainerOutput(x.parent), 500, text)
	x.is("input", x.input(x.parent), 500, text)
	child := below(x.parent, "child")
	x.ok(calls.LaunchNestedContainer(child, x.forever(), nil))
	x.no(calls.AttachContainerOutput(child), 500, text)
	x.no(calls.AttachContainerOutput(below(x.parent, "none")), 500, "Unknown container parent.none")
	x.no(calls.AttachContainerOutput(below(id("none"), "none")), 404, "Container none.none cannot be found")
	x.is("input for nobody", x.input(below(id("none"), "none")), 404, "Container none.none cannot be found")
}

// onlookers: any number of clients see the terminal's output from their attaching on, and those
// that leave disturb no other.
func onlookers(x *trial) {
	child := below(x.parent, "child")
	x.ok(calls.LaunchNestedContainer(child, shell("echo before; read a; echo after $a; read b"), terminal(x.ref)))
	nodetest.Eventually(x.t, "it has begun", func() bool { return strings.Contains(x.read("parent/containers/child/stdout"), "before") })
	one, two, three := x.open(calls.AttachContainerOutput(child)), x.open(calls.AttachContainerOutput(child)), x.open(calls.AttachContainerOutput(child))
	three.cancel()
	if err := x.input(child, stdin("you\n")); err != nil {
		x.t.Errorf("input: %v", err)
	}
	for _, o := range []*output{one, two} {
		if o.has("after you"); strings.Contains(o.stdout(), "before") || o.stderr() != "" {
			x.t.Errorf("%q", o.text)
		}
	}
	if err := x.input(child, stdin("\n")); err != nil {
		x.t.Errorf("input: %v", err)
	}
	one.end()
	two.end()
	x.ends(child, 0)
	x.no(calls.AttachContainerOutput(child), 500, "Unknown container parent.child")
	x.is("input after the end", x.input(child), 500, "Unknown container parent.child")
}

// surroundings: a session has the directory, user and environment of its container.
func surroundings(x *trial) {
	child := below(x.parent, "child")
	own := shell("echo mine > file; exec sleep 1000")
	own.User = new("1000:1000")
	own.Environment = &mesos.Environment{Variables: []mesos.Environment_Variable{{Name: "HAS", Value: new("this")}}}
	x.ok(calls.LaunchNestedContainer(child, own, image(x.ref)))
	nodetest.Eventually(x.t, "it has begun", func() bool {
		r := x.ok(calls.ListFiles(x.n.Root + "/mesos/containers/parent/containers/child")).GetListFiles().GetFileInfos()
		for _, f := range r {
			if strings.HasSuffix(f.GetPath(), "/file") && f.GetSize_() == 5 {
				return true
			}
		}
		return false
	})
	s := below(child, "s")
	command := shell("id -u; echo $HAS $MORE; cat file")
	command.Environment = &mesos.Environment{Variables: []mesos.Environment_Variable{{Name: "MORE", Value: new("that")}}}
	o := x.open(calls.LaunchNestedContainerSession(s, command, nil))
	o.end()
	if o.stdout() != "1000\nthis that\nmine\n" {
		x.t.Errorf("%q", o.text)
	}
	x.ends(s, 0)
}

// notStarted: an invalid session is refused, and leaves nothing.
func notStarted(x *trial) {
	s := below(x.parent, "s")
	session := func(c *mesos.CommandInfo, i *mesos.ContainerInfo) *agent.Call {
		return calls.LaunchNestedContainerSession(s, c, i)
	}
	x.no(session(shell("true"), image(x.ref)), 400, "A 'rootfs' cannot be set for DEBUG containers")
	x.no(session(&mesos.CommandInfo{Value: new("/no/such/program"), Shell: new(false)}, nil), 400, "")
	x.no(session(nil, nil), 400, "No executable specified")
	mode := mesos.RW
	x.no(session(shell("true"), &mesos.ContainerInfo{Type: mesos.ContainerInfo_MESOS.Enum(), Volumes: []mesos.Volume{{Mode: &mode, ContainerPath: "p", HostPath: new("/srv")}}}), 400, "Volumes are not supported for DEBUG containers")
	x.no(calls.LaunchNestedContainerSession(below(below(x.parent, "none"), "s"), shell("true"), nil), 400, "Parent container parent.none does not exist")
	x.no(calls.LaunchNestedContainerSession(below(id("none"), "s"), shell("true"), nil), 400, "Root container none not found")
	x.no(calls.WaitNestedContainer(s), 404, "Container parent.s cannot be found")
	o := x.open(session(shell("read x"), nil))
	x.again(session(shell("read x"), nil))
	if err := x.input(s, stdin("\n")); err != nil {
		x.t.Errorf("input: %v", err)
	}
	o.end()
	x.ends(s, 0)
}
