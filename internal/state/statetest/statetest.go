// Package statetest is the contract of core.Store as tests, which every implementation runs. It
// knows no implementation. Start at Run.
package statetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore/longshore/internal/core"
)

// Run tests a store that keeps at least 64 and at most 128 events. open returns an empty one.
func Run(t *testing.T, open func(t *testing.T) core.Store) {
	t.Helper()
	for _, c := range []struct {
		name string
		test func(t *testing.T, s core.Store)
	}{
		{"RecordsAreFoundByIDAndKey", recordsAreFound},
		{"KeysAreUniquePerOwnerAndKind", keysAreUnique},
		{"ContainersAreFoundByTheirSandbox", members},
		{"WhatIsReturnedIsTheCallersOwn", ownCopies},
		{"AFailedUpdateChangesNothing", failedUpdate},
		{"APanicInUpdateChangesNothing", panicInUpdate},
		{"AViewCannotChange", viewCannotChange},
		{"SeqHasNoGap", seqHasNoGap},
		{"TrimmedEventsAreOutOfRange", trimmed},
		{"WaitReturnsWithTheEvent", waits},
		{"ScopesKeepBytes", scopes},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			c.test(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Sandbox makes a record for tests.
func Sandbox(id core.ID, owner core.Owner, key core.Key) core.Sandbox {
	return core.Sandbox{
		Meta:  core.Meta{ID: id, Owner: owner, Key: key, Created: time.Unix(1_700_000_000, 5).UTC(), Labels: map[string]string{"app": "a"}, Data: []byte{0, 1}},
		State: core.SandboxReady,
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, s core.Store, v ...core.Sandbox) {
	t.Helper()
	must(t, s.Update(func(tx core.Tx) error {
		for _, sb := range v {
			if err := tx.Sandboxes().Put(sb); err != nil {
				return err
			}
		}
		return nil
	}))
}

// Addresses is an option for comparing records.
func Addresses() cmp.Option { return cmpopts.EquateComparable(netip.Addr{}) }

func recordsAreFound(t *testing.T, s core.Store) {
	want := Sandbox("1", core.OwnerCRI, "k1")
	other := Sandbox("2", core.OwnerNomad, "k2")
	put(t, s, want, other)
	must(t, s.View(func(tx core.Tx) error {
		for name, get := range map[string]func() (core.Sandbox, error){
			"Get":   func() (core.Sandbox, error) { return tx.Sandboxes().Get("1") },
			"ByKey": func() (core.Sandbox, error) { return tx.Sandboxes().ByKey(core.OwnerCRI, "k1") },
		} {
			got, err := get()
			must(t, err)
			if d := cmp.Diff(want, got, Addresses()); d != "" {
				t.Errorf("%s: %s", name, d)
			}
		}
		if _, err := tx.Sandboxes().Get("3"); !errdefs.IsNotFound(err) {
			t.Errorf("Get of nothing: %v", err)
		}
		if _, err := tx.Sandboxes().ByKey(core.OwnerNomad, "k1"); !errdefs.IsNotFound(err) {
			t.Errorf("ByKey of another owner: %v", err)
		}
		for owner, n := range map[core.Owner]int{"": 2, core.OwnerCRI: 1, core.OwnerKata: 0} {
			got := 0
			for _, err := range tx.Sandboxes().All(owner) {
				must(t, err)
				got++
			}
			if got != n {
				t.Errorf("All(%q) yields %d, want %d", owner, got, n)
			}
			var stored []*core.Sandbox
			for v := range tx.Sandboxes().Stored(owner) {
				stored = append(stored, v)
			}
			if again := slices.Collect(tx.Sandboxes().Stored(owner)); len(stored) != n || !slices.Equal(stored, again) {
				t.Errorf("Stored(%q) yields %d, then %v after %v; want the same %d", owner, len(stored), again, stored, n)
			}
		}
		return nil
	}))
	must(t, s.Update(func(tx core.Tx) error { return tx.Sandboxes().Delete("1") }))
	must(t, s.View(func(tx core.Tx) error {
		if _, err := tx.Sandboxes().ByKey(core.OwnerCRI, "k1"); !errdefs.IsNotFound(err) {
			t.Errorf("ByKey after Delete: %v", err)
		}
		return nil
	}))
	if err := s.Update(func(tx core.Tx) error { return tx.Sandboxes().Delete("1") }); !errdefs.IsNotFound(err) {
		t.Errorf("second Delete: %v", err)
	}
}

// members checks that a sandbox's containers are those that were put and not deleted, in the
// order of their creation, also after an update that failed.
func members(t *testing.T, s core.Store) {
	container := func(id, sandbox core.ID) core.Container {
		return core.Container{Meta: core.Meta{ID: id, Owner: core.OwnerCRI, Key: core.Key(id)}, Sandbox: sandbox}
	}
	want := func(sandbox core.ID, ids ...core.ID) {
		t.Helper()
		var got []core.ID
		must(t, s.View(func(tx core.Tx) error {
			for c := range tx.ContainersOf(sandbox) {
				got = append(got, c.ID)
			}
			return nil
		}))
		if d := cmp.Diff(ids, got); d != "" {
			t.Errorf("containers of %s: %s", sandbox, d)
		}
	}
	change := func(fail error, fn func(tx core.Tx) error) {
		t.Helper()
		err := s.Update(func(tx core.Tx) error { return errors.Join(fn(tx), fail) })
		if !errors.Is(err, fail) {
			t.Fatal(err)
		}
	}
	change(nil, func(tx core.Tx) error {
		for _, id := range []core.ID{"1", "2", "3"} {
			if err := errors.Join(tx.Containers().Put(container("a"+id, "a")), tx.Containers().Put(container("b"+id, "b"))); err != nil {
				return err
			}
		}
		return nil
	})
	want("a", "a1", "a2", "a3")
	want("c")
	change(nil, func(tx core.Tx) error { return tx.Containers().Put(container("a1", "a")) }) // again: it keeps its place
	change(errors.New("no"), func(tx core.Tx) error {
		return errors.Join(tx.Containers().Delete("a2"), tx.Containers().Put(container("a4", "a")), tx.Containers().Delete("b1"))
	})
	want("a", "a1", "a2", "a3")
	want("b", "b1", "b2", "b3")
	change(nil, func(tx core.Tx) error {
		return errors.Join(tx.Containers().Delete("a2"), tx.Containers().Put(container("a4", "a")))
	})
	want("a", "a1", "a3", "a4")
	want("b", "b1", "b2", "b3")
}

func keysAreUnique(t *testing.T, s core.Store) {
	put(t, s, Sandbox("1", core.OwnerCRI, "k"), Sandbox("2", core.OwnerNomad, "k"))
	err := s.Update(func(tx core.Tx) error { return tx.Sandboxes().Put(Sandbox("3", core.OwnerCRI, "k")) })
	if !errdefs.IsAlreadyExists(err) {
		t.Fatalf("err = %v", err)
	}
	put(t, s, Sandbox("1", core.OwnerCRI, "k")) // itself again
	must(t, s.Update(func(tx core.Tx) error {
		return tx.Containers().Put(core.Container{Meta: core.Meta{ID: "9", Owner: core.OwnerCRI, Key: "k"}})
	}))
	// A key that is released is free in the same transaction.
	must(t, s.Update(func(tx core.Tx) error {
		if err := tx.Sandboxes().Delete("1"); err != nil {
			return err
		}
		return tx.Sandboxes().Put(Sandbox("3", core.OwnerCRI, "k"))
	}))
	// So is one that was changed.
	put(t, s, Sandbox("3", core.OwnerCRI, "k'"))
	put(t, s, Sandbox("4", core.OwnerCRI, "k"))
}

func ownCopies(t *testing.T, s core.Store) {
	in := Sandbox("1", core.OwnerCRI, "k")
	put(t, s, in)
	in.Labels["app"], in.Data[0] = "changed", 9
	var got core.Sandbox
	must(t, s.View(func(tx core.Tx) (err error) { got, err = tx.Sandboxes().Get("1"); return err }))
	if d := cmp.Diff(Sandbox("1", core.OwnerCRI, "k"), got, Addresses()); d != "" {
		t.Fatalf("changed through what was put: %s", d)
	}
	got.Labels["app"] = "changed"
	must(t, s.View(func(tx core.Tx) (err error) { got, err = tx.Sandboxes().Get("1"); return err }))
	if got.Labels["app"] != "a" {
		t.Fatal("changed through what was got")
	}
}

var errStop = errors.New("stop")

func failedUpdate(t *testing.T, s core.Store) {
	put(t, s, Sandbox("1", core.OwnerCRI, "k"), Sandbox("2", core.OwnerCRI, "l"))
	err := s.Update(func(tx core.Tx) error {
		changed := Sandbox("1", core.OwnerCRI, "other")
		if err := errors.Join(tx.Sandboxes().Put(changed), tx.Sandboxes().Delete("2"), tx.Sandboxes().Put(Sandbox("3", core.OwnerCRI, "m"))); err != nil {
			return err
		}
		if _, err := tx.Append(core.Event{Kind: core.EventAgent}); err != nil {
			return err
		}
		if tx.LastSeq() != 1 {
			t.Errorf("LastSeq inside = %d", tx.LastSeq())
		}
		return errStop
	})
	if !errors.Is(err, errStop) {
		t.Fatalf("err = %v", err)
	}
	must(t, s.View(func(tx core.Tx) error {
		var ids []string
		for sb, err := range tx.Sandboxes().All("") {
			must(t, err)
			ids = append(ids, string(sb.ID)+string(sb.Key))
		}
		if got := strings.Join(ids, " "); got != "1k 2l" {
			t.Errorf("records: %s", got)
		}
		if tx.LastSeq() != 0 {
			t.Errorf("LastSeq = %d", tx.LastSeq())
		}
		if _, err := tx.Sandboxes().ByKey(core.OwnerCRI, "other"); !errdefs.IsNotFound(err) {
			t.Errorf("key of the failed update: %v", err)
		}
		return nil
	}))
}

func panicInUpdate(t *testing.T, s core.Store) {
	func() {
		defer func() {
			if r := recover(); r != "boom" {
				t.Errorf("recovered %v", r)
			}
		}()
		_ = s.Update(func(tx core.Tx) error {
			must(t, tx.Sandboxes().Put(Sandbox("1", core.OwnerCRI, "k")))
			panic("boom")
		})
	}()
	must(t, s.View(func(tx core.Tx) error {
		if _, err := tx.Sandboxes().Get("1"); !errdefs.IsNotFound(err) {
			t.Errorf("record of the panicked update: %v", err)
		}
		return nil
	}))
}

func viewCannotChange(t *testing.T, s core.Store) {
	must(t, s.View(func(tx core.Tx) error {
		for _, err := range []error{
			tx.Sandboxes().Put(Sandbox("1", core.OwnerCRI, "k")),
			tx.Sandboxes().Delete("1"),
			func() error { _, err := tx.Append(core.Event{}); return err }(),
		} {
			if !errdefs.IsFailedPrecondition(err) {
				t.Errorf("err = %v", err)
			}
		}
		return nil
	}))
}

func appendEvents(t *testing.T, s core.Store, n int) {
	t.Helper()
	for i := range n {
		must(t, s.Update(func(tx core.Tx) error {
			_, err := tx.Append(core.Event{Kind: core.EventAgent, Note: fmt.Sprint(i)})
			return err
		}))
	}
}

func seqHasNoGap(t *testing.T, s core.Store) {
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { appendEvents(t, s, 5) })
	}
	wg.Wait()
	must(t, s.View(func(tx core.Tx) error {
		want := uint64(1)
		for ev, err := range tx.Events(0) {
			must(t, err)
			if ev.Seq != want {
				t.Errorf("Seq %d, want %d", ev.Seq, want)
			}
			want++
		}
		if want != 41 || tx.LastSeq() != 40 {
			t.Errorf("%d events, LastSeq %d", want-1, tx.LastSeq())
		}
		n := 0
		for ev, err := range tx.Events(38) {
			must(t, err)
			if ev.Seq <= 38 {
				t.Errorf("Seq %d", ev.Seq)
			}
			n++
		}
		if n != 2 {
			t.Errorf("%d events since 38", n)
		}
		return nil
	}))
}

func trimmed(t *testing.T, s core.Store) {
	appendEvents(t, s, 200)
	must(t, s.View(func(tx core.Tx) error {
		for _, since := range []uint64{0, 10, 201} {
			for _, err := range tx.Events(since) {
				if !errdefs.IsOutOfRange(err) {
					t.Errorf("since %d: %v", since, err)
				}
			}
		}
		next := uint64(150)
		for ev, err := range tx.Events(149) {
			must(t, err)
			if ev.Seq != next {
				t.Errorf("Seq %d, want %d", ev.Seq, next)
			}
			next++
		}
		if next != 201 {
			t.Errorf("ended before %d", next)
		}
		return nil
	}))
}

func waits(t *testing.T, s core.Store) {
	appendEvents(t, s, 1)
	must(t, s.Wait(t.Context(), 0))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Wait(ctx, 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	got := make(chan error)
	go func() { got <- s.Wait(t.Context(), 1) }()
	appendEvents(t, s, 1)
	must(t, <-got)
}

func scopes(t *testing.T, s core.Store) {
	for _, durable := range []bool{false, true} {
		kv, other := s.Scope(core.OwnerCRI, durable), s.Scope(core.OwnerNomad, durable)
		if _, err := kv.Get("a"); !errdefs.IsNotFound(err) {
			t.Errorf("Get of nothing: %v", err)
		}
		in := []byte("1")
		for _, k := range []string{"b/2", "b/1", "a"} {
			must(t, kv.Put(k, in))
		}
		must(t, kv.Put("empty", nil))
		in[0] = 'x'
		must(t, other.Put("b/3", nil))
		var keys []string
		for k, v := range kv.All("b/") {
			keys = append(keys, k+"="+string(v))
		}
		if got := strings.Join(keys, " "); got != "b/1=1 b/2=1" {
			t.Errorf("All: %s", got)
		}
		if v, err := kv.Get("empty"); err != nil || len(v) != 0 {
			t.Errorf("empty: %q %v", v, err)
		}
		must(t, kv.Delete("b/1"))
		must(t, kv.Delete("b/1"))
		if _, err := kv.Get("b/1"); !errdefs.IsNotFound(err) {
			t.Errorf("Get after Delete: %v", err)
		}
		if err := kv.Put("", nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Put of the empty key: %v", err)
		}
	}
	if _, err := s.Scope(core.OwnerCRI, false).Get("b/2"); err != nil {
		t.Error(err)
	}
}
