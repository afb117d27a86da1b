package keeper_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/roottest"
)

// newWeakEnv is newEnv with a keeper and a nest without the capabilities to send descriptors beyond
// the limit.
func newWeakEnv(t *testing.T) *env {
	t.Helper()
	e := newEnv(t)
	_ = e.c.Shutdown(e.ctx())
	_ = e.c.Close()
	weak := filepath.Join(t.TempDir(), "weak")
	script := "#!/bin/sh\nexec setpriv --bounding-set=-sys_admin,-sys_resource " + e.binary + " \"$@\"\n"
	if err := os.WriteFile(weak, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	e.dir = t.TempDir()
	e.c = e.client(func(o *keeper.Options) { o.Binary = weak })
	return e
}

// waiting launches a process that ends with this status when it reads a line.
func (e *env) waiting(id, status string) core.Ref {
	e.t.Helper()
	l := e.shell(id, "read x; exit "+status)
	l.IO.Stdin = core.StdinOpen
	e.launch(l)
	return l.Ref
}

// ends has the processes end, and compares their statuses.
func (e *env) ends(want map[core.Ref]int) {
	e.t.Helper()
	var refs []core.Ref
	for ref := range want {
		in, err := e.c.Streams(e.ctx(), ref, core.StreamOptions{Stdin: true})
		if err != nil {
			e.t.Fatal(err)
		}
		if _, err := in.Stdin.Write([]byte("x\n")); err != nil {
			e.t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	got := e.exits(refs...)
	for ref, code := range want {
		if x := got[ref].Exit; x.Code != code || x.Lost {
			e.t.Errorf("%v ended as %+v, want status %d", ref, x, code)
		}
	}
}

// told waits until the nest has all that the keeper has.
func (e *env) told() {
	e.t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	if err := e.c.Held().Hold(e.ctx(), "barrier", []*os.File{null}); err != nil {
		e.t.Fatal(err)
	}
}

// TestAShortageLosesNoRedundancy: while the keeper cannot send descriptors, or the nest or the
// keeper can receive none, both stay. Afterwards the nest holds the new process too: it outlives
// the keeper.
func TestAShortageLosesNoRedundancy(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newWeakEnv(t)
		before := e.status()
		same := func(when string) {
			t.Helper()
			if st := e.status(); st.KeeperPid != before.KeeperPid || st.NestPid != before.NestPid {
				t.Fatalf("%s keeper and nest are %d and %d, and were %d and %d", when, st.KeeperPid, st.NestPid, before.KeeperPid, before.NestPid)
			}
		}
		want := map[core.Ref]int{e.waiting("first", "3"): 3}
		same("at first")

		roottest.InFlight(t, 200)
		restore := roottest.LimitFiles(t, before.KeeperPid, 64)
		want[e.waiting("unsent", "4")] = 4
		same("while the keeper cannot send descriptors,")
		restore()
		e.told()
		same("after that")

		restore = roottest.LimitFiles(t, before.NestPid, 3)
		want[e.waiting("unreceived", "5")] = 5
		same("while the nest can receive no descriptors,")
		restore()
		roottest.Eventually(t, "the nest has it", func() bool { return strings.Contains(read(t, e.file("keeper.log")), "holds everything again\n") })
		e.told()

		restore = roottest.LimitFiles(t, before.KeeperPid, 3)
		null, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = null.Close() }()
		if err := e.c.Held().Hold(e.ctx(), "refused", []*os.File{null}); !errdefs.IsResourceExhausted(err) {
			t.Errorf("a keeper that can receive no descriptors: %v", err)
		}
		same("while the keeper can receive no descriptors,")
		restore()
		e.told()

		killAndWait(t, before.KeeperPid)
		if st := e.status(); st.NestPid != before.NestPid || st.Processes != len(want) {
			t.Errorf("the next keeper has %+v", st)
		}
		e.ends(want)
	})
}

// TestAnAgentWithoutDescriptorsKeepsItsConnection: the one answer with descriptors that cannot be
// received fails, and its request is undone. Another request, which is under way, is answered.
func TestAnAgentWithoutDescriptorsKeepsItsConnection(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		ref := e.waiting("first", "3")
		type result struct {
			core.CommandResult
			error
		}
		fifo := e.file("fifo")
		e.mustRun(core.Command{Args: []string{"/bin/busybox", "mkfifo", fifo}})
		slow := make(chan result, 1)
		go func() {
			r, err := e.c.Run(e.ctx(), core.Command{Args: []string{"/bin/busybox", "sh", "-c", "echo begun >" + fifo + "; read x <" + fifo + "; exit 7"}})
			slow <- result{r, err}
		}()
		if text := read(t, fifo); text != "begun\n" {
			t.Fatalf("the command wrote %q", text)
		}
		restore := roottest.LimitFiles(t, os.Getpid(), 3)
		_, err := e.c.Streams(e.ctx(), ref, core.StreamOptions{Stdin: true, Stdout: true})
		restore()
		if !errdefs.IsResourceExhausted(err) {
			t.Errorf("streams of an agent without descriptors: %v", err)
		}
		if err := os.WriteFile(fifo, []byte("end\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := <-slow; r.error != nil || r.Status != 7 {
			t.Errorf("the other request: %+v", r)
		}
		e.ends(map[core.Ref]int{ref: 3})
	})
}
