package bolt_test

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/bolt"
	"github.com/longshore/longshore/internal/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBolt(t *testing.T) {
	statetest.Run(t, func(t *testing.T) core.Store {
		t.Helper()
		return node{t.TempDir()}.open(t, "b1")
	})
}

// node holds a node's two directories.
type node struct{ dir string }

func (n node) options(boot string) bolt.Options {
	return bolt.Options{State: filepath.Join(n.dir, "state"), Root: filepath.Join(n.dir, "root"), EventLimit: 64, LogBytes: 4096, BootID: boot}
}

func (n node) open(t *testing.T, boot string) *state.Store {
	t.Helper()
	s, err := bolt.Open(n.options(boot))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func event(t *testing.T, s core.Store, ev core.Event) {
	t.Helper()
	must(t, s.Update(func(tx core.Tx) error { _, err := tx.Append(ev); return err }))
}

// fill creates a sandbox with a running container, an exited one and a running exec, and their
// events.
func fill(t *testing.T, s core.Store) {
	t.Helper()
	for _, ev := range []core.Event{
		{Kind: core.EventSandboxCreating, Sandbox: "s", Owner: core.OwnerCRI, Key: "sk"},
		{Kind: core.EventSandboxReady, Sandbox: "s", Owner: core.OwnerCRI, Key: "sk"},
		{Kind: core.EventContainerCreating, Sandbox: "s", Container: "run", Owner: core.OwnerCRI, Key: "rk"},
		{Kind: core.EventContainerStarted, Sandbox: "s", Container: "run"},
		{Kind: core.EventProcessStarted, Sandbox: "s", Container: "run", Process: "x"},
		{Kind: core.EventContainerCreating, Sandbox: "s", Container: "end", Owner: core.OwnerCRI, Key: "ek"},
		{Kind: core.EventContainerStarted, Sandbox: "s", Container: "end"},
		{Kind: core.EventContainerExited, Sandbox: "s", Container: "end"},
		{Kind: core.EventContainerCreating, Sandbox: "s", Container: "gone", Owner: core.OwnerCRI, Key: "gk"},
		{Kind: core.EventContainerRemoved, Sandbox: "s", Container: "gone"},
	} {
		event(t, s, ev)
	}
	must(t, s.Update(func(tx core.Tx) error {
		now := time.Now()
		return errors.Join(
			tx.Sandboxes().Put(core.Sandbox{Meta: core.Meta{ID: "s", Owner: core.OwnerCRI, Key: "sk", Created: now}, State: core.SandboxReady}),
			tx.Containers().Put(core.Container{
				Meta: core.Meta{ID: "run", Owner: core.OwnerCRI, Key: "rk", Created: now}, Sandbox: "s", State: core.ContainerRunning,
				Config: core.ContainerConfig{Key: "not stored", Spec: nil, Stop: core.Stop{Grace: time.Second}},
				Execs:  []core.Process{{ID: "x", Started: now}},
			}),
			tx.Containers().Put(core.Container{Meta: core.Meta{ID: "end", Owner: core.OwnerCRI, Key: "ek", Created: now.Add(1)}, Sandbox: "s", State: core.ContainerExited}))
	}))
}

func dump(t *testing.T, s core.Store) (all []any) {
	t.Helper()
	must(t, s.View(func(tx core.Tx) error {
		for v, err := range tx.Sandboxes().All("") {
			must(t, err)
			all = append(all, v)
		}
		for v, err := range tx.Containers().All("") {
			must(t, err)
			all = append(all, v)
		}
		since := uint64(0)
		if tx.LastSeq() > 60 {
			since = tx.LastSeq() - 60
		}
		for v, err := range tx.Events(since) {
			must(t, err)
			all = append(all, v)
		}
		return nil
	}))
	return all
}

func TestReopenedStoreIsTheSame(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	fill(t, s)
	must(t, s.Scope(core.OwnerSwarm, false).Put("live", []byte("1")))
	must(t, s.Scope(core.OwnerSwarm, true).Put("durable", []byte("2")))
	before := dump(t, s)
	must(t, s.Close())

	s = n.open(t, "b1")
	defer s.Close()
	if d := cmp.Diff(before, dump(t, s), statetest.Addresses()); d != "" {
		t.Fatal(d)
	}
	if r := s.LostObjects(); len(r) != 0 {
		t.Fatalf("remnants without a boot: %v", r)
	}
	for durable, key := range map[bool]string{false: "live", true: "durable"} {
		if _, err := s.Scope(core.OwnerSwarm, durable).Get(key); err != nil {
			t.Error(err)
		}
	}
}

// TestFollowersReadWhatARestartWouldTell: an event that is read soon after it was appended equals
// the one decoded from its JSON, with any content, and belongs to the reader; the same after an
// update that failed.
func TestFollowersReadWhatARestartWouldTell(t *testing.T) {
	n := node{t.TempDir()}
	o := n.options("b1")
	o.EventLimit = 1000
	s, err := bolt.Open(o)
	must(t, err)
	at := time.Now()
	undone := errors.New("undone")
	var followed []core.Event
	for i := range 200 {
		ev := core.Event{At: at.Add(time.Duration(i)).In(time.FixedZone("east", 3600)), Kind: core.EventForced, Owner: "o", Key: "k", Sandbox: "s", Container: "c", Process: "p", Note: fmt.Sprint(i)}
		switch i % 4 {
		case 1:
			ev.Autopsy = &core.Autopsy{Tail: []string{"last", "words"}}
		case 2:
			ev.Note = "no \xff UTF-8"
		case 3:
			ev.Key, ev.Sandbox, ev.Container, ev.Process, ev.Kind = "\xff", "\xfe", "\xfd", "\xfc", "\xfb"
		}
		if err := s.Update(func(tx core.Tx) error { _, _ = tx.Append(core.Event{Note: "never"}); return undone }); !errors.Is(err, undone) {
			t.Fatal(err)
		}
		event(t, s, ev)
		for _, ev := range since(t, s, uint64(i)) {
			if ev.Autopsy != nil {
				clone := *ev.Autopsy
				clone.Tail = append([]string{}, ev.Autopsy.Tail...)
				ev.Autopsy.Tail[0] = "a reader's own"
				ev.Autopsy = &clone
			}
			followed = append(followed, ev)
		}
	}
	if d := cmp.Diff(since(t, s, 0), followed); d != "" {
		t.Errorf("read late and read at once:\n%s", d)
	}
	must(t, s.Close())
	s, err = bolt.Open(o)
	must(t, err)
	defer func() { must(t, s.Close()) }()
	if d := cmp.Diff(since(t, s, 0), followed); d != "" {
		t.Errorf("after a restart and before:\n%s", d)
	}
}

func since(t *testing.T, s core.Store, seq uint64) (all []core.Event) {
	t.Helper()
	must(t, s.View(func(tx core.Tx) error {
		for ev, err := range tx.Events(seq) {
			if err != nil {
				return err
			}
			all = append(all, ev)
		}
		return nil
	}))
	return all
}

func TestABootTellsWhatHadBeenRunning(t *testing.T) {
	want := []core.LostObject{
		{Owner: core.OwnerCRI, Key: "ek", Sandbox: "s", Container: "end"},
		{Owner: core.OwnerCRI, Key: "rk", Sandbox: "s", Container: "run", Running: true, Execs: []core.ProcessID{"x"}},
		{Owner: core.OwnerCRI, Key: "sk", Sandbox: "s"},
	}
	for name, boot := range map[string]func(n node) string{
		"state directory gone":  func(n node) string { must(t, os.RemoveAll(filepath.Join(n.dir, "state"))); return "b1" },
		"state on a real disk":  func(node) string { return "b2" },
		"and a torn live store": func(n node) string { must(t, os.Truncate(filepath.Join(n.dir, "state/live.db"), 5000)); return "b2" },
	} {
		t.Run(name, func(t *testing.T) {
			n := node{t.TempDir()}
			s := n.open(t, "b1")
			// Enough other events to rotate the file twice after these.
			fill(t, s)
			for range 200 {
				event(t, s, core.Event{Kind: core.EventAgent, Note: "filler"})
			}
			must(t, s.Scope(core.OwnerSwarm, false).Put("live", []byte("1")))
			must(t, s.Scope(core.OwnerSwarm, true).Put("durable", []byte("2")))
			must(t, s.Close())
			id := boot(n)

			for range 2 { // a crash before their ends are appended does not lose them
				s = n.open(t, id)
				if d := cmp.Diff(want, s.LostObjects()); d != "" {
					t.Fatal(d)
				}
				must(t, s.View(func(tx core.Tx) error {
					if tx.LastSeq() != 210 {
						t.Errorf("LastSeq = %d", tx.LastSeq())
					}
					for range tx.Containers().All("") {
						t.Error("a record outlived the boot")
					}
					for ev, err := range tx.Events(180) {
						if err != nil || ev.Seq <= 180 {
							t.Error(ev, err)
						}
					}
					return nil
				}))
				must(t, s.Close())
			}
			s = n.open(t, id)
			if _, err := s.Scope(core.OwnerSwarm, false).Get("live"); !errdefs.IsNotFound(err) {
				t.Errorf("live entry after a boot: %v", err)
			}
			if _, err := s.Scope(core.OwnerSwarm, true).Get("durable"); err != nil {
				t.Errorf("durable entry after a boot: %v", err)
			}
			for _, r := range want {
				kind := core.EventContainerRemoved
				if r.Container == "" {
					kind = core.EventSandboxRemoved
				}
				event(t, s, core.Event{Kind: kind, Sandbox: r.Sandbox, Container: r.Container})
			}
			must(t, s.Close())
			s = n.open(t, id)
			defer s.Close()
			if r := s.LostObjects(); len(r) != 0 {
				t.Fatalf("remnants that were ended: %v", r)
			}
		})
	}
}

func TestALogBehindTheStoreCatchesUp(t *testing.T) {
	for name, spoil := range map[string]func(path string){
		"torn": func(p string) {
			b, err := os.ReadFile(p)
			must(t, err)
			must(t, os.WriteFile(p, b[:len(b)-100], 0o600))
		},
		"empty":   func(p string) { must(t, os.Truncate(p, 0)) },
		"removed": func(p string) { must(t, os.Remove(p)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := node{t.TempDir()}
			s := n.open(t, "b1")
			for range 5 {
				event(t, s, core.Event{Kind: core.EventAgent, Note: "filler"})
			}
			fill(t, s)
			must(t, s.Close())
			spoil(filepath.Join(n.dir, "root/events.log"))
			s = n.open(t, "b1")
			before := dump(t, s)
			must(t, s.Close())
			must(t, os.RemoveAll(filepath.Join(n.dir, "state")))
			s = n.open(t, "b1")
			defer s.Close()
			if len(s.LostObjects()) != 3 {
				t.Errorf("remnants: %v", s.LostObjects())
			}
			if d := cmp.Diff(before[3:], dump(t, s), statetest.Addresses()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestANewerSchemaIsRefusedUntouched(t *testing.T) {
	bump := func(path string) {
		db, err := bbolt.Open(path, 0o600, nil)
		must(t, err)
		must(t, db.Update(func(tx *bbolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("schema"), []byte("7")) }))
		must(t, db.Close())
	}
	for file, spoil := range map[string]func(path string){
		"state/live.db":   bump,
		"root/durable.db": bump,
		"root/events.log": func(p string) {
			b, err := os.ReadFile(p)
			must(t, err)
			must(t, os.WriteFile(p, bytes.Replace(b, []byte("longshore-events 1"), []byte("longshore-events 7"), 1), 0o600))
		},
	} {
		t.Run(file, func(t *testing.T) {
			n := node{t.TempDir()}
			s := n.open(t, "b1")
			fill(t, s)
			must(t, s.Close())
			path := filepath.Join(n.dir, file)
			spoil(path)
			before, err := os.ReadFile(path)
			must(t, err)
			_, err = bolt.Open(n.options("b1"))
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "schema 7") || !strings.Contains(err.Error(), "up to 1") {
				t.Fatalf("err = %v", err)
			}
			after, err := os.ReadFile(path)
			must(t, err)
			if !bytes.Equal(before, after) {
				t.Fatal("the file was changed")
			}
		})
	}
}

func TestASecondAgentIsRefused(t *testing.T) {
	n := node{t.TempDir()}
	s := n.open(t, "b1")
	defer s.Close()
	if _, err := bolt.Open(n.options("b1")); !errdefs.IsUnavailable(err) {
		t.Fatalf("err = %v", err)
	}
}

var update = flag.Bool("update", false, "write testdata/v<schema> anew; never for a schema that was released")

// TestGoldenV1 opens files that an agent of schema 1 wrote.
func TestGoldenV1(t *testing.T) {
	golden := node{"testdata/v1"}
	if *update {
		must(t, os.RemoveAll(golden.dir))
		s := golden.open(t, "b1")
		fill(t, s)
		must(t, s.Scope(core.OwnerSwarm, false).Put("live", []byte("1")))
		must(t, s.Scope(core.OwnerSwarm, true).Put("durable", []byte("2")))
		must(t, s.Close())
	}
	n := node{t.TempDir()}
	must(t, os.CopyFS(n.dir, os.DirFS(golden.dir)))
	s := n.open(t, "b1")
	var got []string
	must(t, s.View(func(tx core.Tx) error {
		for v, err := range tx.Containers().All(core.OwnerCRI) {
			must(t, err)
			got = append(got, fmt.Sprintf("%s %s %s %s %d", v.ID, v.Key, v.Sandbox, v.State, len(v.Execs)))
		}
		got = append(got, fmt.Sprint(tx.LastSeq()))
		return nil
	}))
	want := []string{"run rk s running 1", "end ek s exited 0", "10"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	v, err := s.Scope(core.OwnerSwarm, true).Get("durable")
	if err != nil || string(v) != "2" {
		t.Error(v, err)
	}
	must(t, s.Close())
	s = n.open(t, "b2")
	defer s.Close()
	if len(s.LostObjects()) != 3 {
		t.Errorf("remnants: %v", s.LostObjects())
	}
}

func FuzzEventLog(f *testing.F) {
	b, err := os.ReadFile("testdata/v1/root/events.log")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("longshore-events 1\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := node{t.TempDir()}
		must(t, os.Mkdir(filepath.Join(n.dir, "root"), 0o700))
		must(t, os.WriteFile(filepath.Join(n.dir, "root/events.log"), b, 0o600))
		s, err := bolt.Open(n.options("b1"))
		if err != nil {
			return
		}
		event(t, s, core.Event{Kind: core.EventAgent})
		must(t, s.Close())
	})
}

func BenchmarkUpdate(b *testing.B) {
	s, err := bolt.Open(bolt.Options{State: b.TempDir(), Root: b.TempDir(), BootID: "b"})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	c := core.Container{Meta: core.Meta{ID: "1", Owner: core.OwnerCRI, Key: "k", Labels: map[string]string{"a": "b"}}, Sandbox: "s"}
	b.ReportAllocs()
	for b.Loop() {
		err := s.Update(func(tx core.Tx) error {
			seq, err := tx.Append(core.Event{Kind: core.EventContainerUpdated, Container: "1", Owner: core.OwnerCRI, Key: "k"})
			c.Rev = seq
			return errors.Join(err, tx.Containers().Put(c))
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
