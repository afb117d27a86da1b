package state_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
)

// A record and the event about its change are stored together or not at all.
func ExampleStore() {
	store := state.NewMemory(state.DefaultEventLimit)
	defer func() { _ = store.Close() }()
	sandbox := core.Sandbox{Meta: core.Meta{ID: "1f", Owner: core.OwnerCRI, Key: "pod"}, State: core.SandboxReady}
	err := store.Update(func(tx core.Tx) error {
		if err := tx.Sandboxes().Put(sandbox); err != nil {
			return err
		}
		_, err := tx.Append(core.Event{Kind: core.EventSandboxReady, Owner: sandbox.Owner, Sandbox: sandbox.ID})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}

	// When a function fails, none of its changes is stored.
	err = store.Update(func(tx core.Tx) error {
		if err := tx.Sandboxes().Delete(sandbox.ID); err != nil {
			return err
		}
		return errors.New("its network is still there")
	})
	fmt.Println("delete:", err)

	// A follower waits for an event that is newer than the last one it knows.
	if err := store.Wait(context.Background(), 0); err != nil {
		log.Fatal(err)
	}
	err = store.View(func(tx core.Tx) error {
		kept, err := tx.Sandboxes().ByKey(core.OwnerCRI, "pod")
		if err != nil {
			return err
		}
		fmt.Println(kept.ID, kept.State, tx.LastSeq())
		_, err = tx.Sandboxes().ByKey(core.OwnerNomad, "pod")
		fmt.Println("another owner's:", errdefs.IsNotFound(err))
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// delete: its network is still there
	// 1f ready 1
	// another owner's: true
}

// A face stores data other than its objects in a key-value store of its own.
func ExampleStore_Scope() {
	store := state.NewMemory(0)
	defer func() { _ = store.Close() }()
	kv := store.Scope(core.OwnerNomad, true)
	for _, task := range []string{"b", "a"} {
		if err := kv.Put("task/"+task, []byte("running")); err != nil {
			log.Fatal(err)
		}
	}
	for key, value := range kv.All("task/") {
		fmt.Printf("%s %s\n", key, value)
	}
	_, err := store.Scope(core.OwnerCRI, true).Get("task/a")
	fmt.Println("another owner's:", errdefs.IsNotFound(err))
	// Output:
	// task/a running
	// task/b running
	// another owner's: true
}
