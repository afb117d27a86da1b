package bolt_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/bolt"
	"github.com/longshore/longshore/internal/state/statetest"
)

// durable puts a durable sandbox with a container into a store, with their events.
func durable(t *testing.T, s core.Store, id core.ID, change func(*core.Container)) {
	t.Helper()
	must(t, s.Update(func(tx core.Tx) error {
		sb := statetest.Sandbox("s"+id, core.OwnerCLI, core.Key(id))
		sb.Config.Durable = true
		c := core.Container{Meta: core.Meta{ID: id, Owner: core.OwnerCLI, Key: core.Key(id)}, Sandbox: sb.ID, State: core.ContainerRunning}
		c.Config.Durable = true
		if change != nil {
			change(&c)
		}
		for _, ev := range []core.Event{{Kind: core.EventSandboxCreating}, {Kind: core.EventContainerCreating, Container: id}, {Kind: core.EventContainerStarted, Container: id}} {
			ev.Sandbox, ev.Owner, ev.Key = sb.ID, core.OwnerCLI, core.Key(id)
			seq, err := tx.Append(ev)
			if err != nil {
				return err
			}
			c.Rev = seq
		}
		if err := tx.Sandboxes().Put(sb); err != nil {
			return err
		}
		return tx.Containers().Put(c)
	}))
}

// container returns a container of a store, and whether it exists.
func container(t *testing.T, s core.Store, id core.ID) (c core.Container, ok bool) {
	t.Helper()
	err := s.View(func(tx core.Tx) (err error) { c, err = tx.Containers().Get(id); return err })
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	return c, err == nil
}

// copyOf returns a node with copies of n's files, as they are on the disk now: a power cut.
func (n node) copyOf(t *testing.T) node {
	t.Helper()
	to := node{t.TempDir()}
	must(t, os.CopyFS(filepath.Join(to.dir, "root"), os.DirFS(filepath.Join(n.dir, "root"))))
	return to
}

func TestDurableRecordsOutliveAPowerCut(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	defer s.Close()
	durable(t, s, "one", nil)
	durable(t, s, "two", func(c *core.Container) { c.Config.Durable = false })
	durable(t, s, "gone", nil)
	must(t, s.Sync())
	must(t, s.Update(func(tx core.Tx) error {
		c, err := tx.Containers().Get("one")
		if err != nil {
			return err
		}
		c.Restarts.Stopped = true
		if err := tx.Containers().Put(c); err != nil {
			return err
		}
		return tx.Containers().Delete("gone")
	}))
	must(t, s.Sync())

	after := n.copyOf(t)
	b := after.open(t, "b2")
	one, ok := container(t, b, "one")
	want, _ := container(t, s, "one")
	if !ok || !cmp.Equal(one, want, statetest.Addresses()) || !one.Restarts.Stopped {
		t.Errorf("the durable container is %v %+v, want %+v", ok, one, want)
	}
	for _, id := range []core.ID{"two", "gone"} {
		if c, ok := container(t, b, id); ok {
			t.Errorf("%s is still there: %+v", id, c)
		}
	}
	if n := len(b.LostObjects()); n != 6 {
		t.Errorf("%d lost objects, want 3 sandboxes and 3 containers", n)
	}
	must(t, b.Close())

	// The same boot again, as after a crash of the agent.
	b = after.open(t, "b2")
	if got, ok := container(t, b, "one"); !ok || !cmp.Equal(got, want, statetest.Addresses()) || len(b.LostObjects()) != 6 {
		t.Errorf("at the second start it is %v %+v, with %d lost objects", ok, got, len(b.LostObjects()))
	}
	must(t, b.Close())
}

// TestAnAgentThatWasKilledCatchesUp opens the files of an agent that has written live.db and not yet durable.db.
func TestAnAgentThatWasKilledCatchesUp(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	durable(t, s, "kept", nil)
	durable(t, s, "changed", nil)
	durable(t, s, "removed", nil)
	must(t, s.Sync())
	old := n.copyOf(t)
	must(t, s.Update(func(tx core.Tx) error {
		c, err := tx.Containers().Get("changed")
		if err != nil {
			return err
		}
		c.State = core.ContainerExited
		if err := tx.Containers().Put(c); err != nil {
			return err
		}
		if _, err := tx.Append(core.Event{Kind: core.EventContainerRemoved, Sandbox: "sremoved", Container: "removed", Owner: core.OwnerCLI, Key: "removed"}); err != nil {
			return err
		}
		return tx.Containers().Delete("removed")
	}))
	durable(t, s, "new", nil)
	must(t, s.Close())
	must(t, os.CopyFS(filepath.Join(old.dir, "state"), os.DirFS(filepath.Join(n.dir, "state"))))

	s = old.open(t, "b1")
	must(t, s.Sync())
	after := old.copyOf(t)
	must(t, s.Close())
	b := after.open(t, "b2")
	defer b.Close()
	for id, want := range map[core.ID]core.ContainerState{"kept": core.ContainerRunning, "changed": core.ContainerExited, "removed": "", "new": core.ContainerRunning} {
		if c, _ := container(t, b, id); c.State != want {
			t.Errorf("%s is %q, want %q", id, c.State, want)
		}
	}
}

// TestAnAgentThatDiedInItsFirstStart opens a live.db that was made after a boot and has no content yet.
func TestAnAgentThatDiedInItsFirstStart(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	durable(t, s, "one", nil)
	must(t, s.Close())
	live := filepath.Join(n.dir, "state", "live.db")
	must(t, os.Remove(live))
	must(t, os.RemoveAll(live+".copy"))
	db, err := bbolt.Open(live, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("meta"))
		if err != nil {
			return err
		}
		return b.Put([]byte("schema"), []byte("1"))
	}))
	must(t, db.Close())
	for range 2 {
		s = n.open(t, "b1")
		if _, ok := container(t, s, "one"); !ok || len(s.LostObjects()) != 2 {
			t.Errorf("the container is there: %v, %d lost objects", ok, len(s.LostObjects()))
		}
		must(t, s.Close())
	}
}

// TestARecordThatLiveHasLostIsTakenBack deletes a record from live.db without the event of a removal.
func TestARecordThatLiveHasLostIsTakenBack(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	durable(t, s, "one", nil)
	must(t, s.Close())
	db, err := bbolt.Open(filepath.Join(n.dir, "state", "live.db"), 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte(state.KindContainer)).Delete([]byte("one")) }))
	must(t, db.Close())
	must(t, os.RemoveAll(filepath.Join(n.dir, "state", "live.db.copy")))
	for range 2 {
		s = n.open(t, "b1")
		if _, ok := container(t, s, "one"); !ok || len(s.LostObjects()) != 1 {
			t.Errorf("the container is there: %v, %d lost objects", ok, len(s.LostObjects()))
		}
		must(t, s.Close())
	}
}

func TestAContainerWithoutItsSandboxIsDropped(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	durable(t, s, "c", nil)
	must(t, s.Update(func(tx core.Tx) error { return tx.Sandboxes().Delete("sc") }))
	must(t, s.Close())
	for range 2 {
		s = n.open(t, "b2")
		if c, ok := container(t, s, "c"); ok {
			t.Errorf("it is there: %+v", c)
		}
		must(t, s.Close())
	}
}

// TestARecordDoesNotOutliveItsEvents syncs a record: its events must be in the log as well.
func TestARecordDoesNotOutliveItsEvents(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	defer s.Close()
	for i := range 20 {
		durable(t, s, core.ID(rune('a'+i)), nil)
		must(t, s.Sync())
		b := n.copyOf(t).open(t, "b2")
		c, ok := container(t, b, core.ID(rune('a'+i)))
		if last := lastSeq(t, b); !ok || c.Rev > last {
			t.Errorf("record %v with revision %d, the last event is %d", ok, c.Rev, last)
		}
		must(t, b.Close())
	}
}

func lastSeq(t *testing.T, s core.Store) (last uint64) {
	t.Helper()
	must(t, s.View(func(tx core.Tx) error { last = tx.LastSeq(); return nil }))
	return last
}

func BenchmarkSync(b *testing.B) {
	s, err := bolt.Open(bolt.Options{State: b.TempDir(), Root: b.TempDir(), BootID: "b"})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c := core.Container{Meta: core.Meta{ID: "1", Owner: core.OwnerCLI, Key: "k"}, Sandbox: "s"}
	c.Config.Durable = true
	for b.Loop() {
		if err := s.Update(func(tx core.Tx) error { return tx.Containers().Put(c) }); err != nil {
			b.Fatal(err)
		}
		if err := s.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}
