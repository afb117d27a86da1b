package wasm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/grant/compiled"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/turns"
)

// TestANeighboursModuleIsCompiledBesideSlowOnes compiles real modules: one owner's, a minute or
// more each, and another's of 50 bytes, which waits for none of them. One of the first owner's
// waits for them: so they are slow.
func TestANeighboursModuleIsCompiledBesideSlowOnes(t *testing.T) {
	c, err := compiled.New(compiled.Options{Dir: filepath.Join(t.TempDir(), "cache"), Program: os.Args[0], Slots: 2, Patience: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var attack sync.WaitGroup
	defer attack.Wait()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	for i := range 20 {
		path := moduleFile(t, imagetest.SlowModule(100, fmt.Sprint(i))).Name()
		attack.Go(func() { _ = c.Warm(ctx, path, turns.Path{"attacker", fmt.Sprint(i % 5), fmt.Sprint(i)}) })
	}
	roottest.Eventually(t, "the attacker's modules wait", func() bool { return c.Status().Waiting == 19 })
	small := func(name, owner string) error {
		f, err := c.Open(t.Context(), moduleFile(t, imagetest.Module("wasi_snapshot_preview1."+name)), turns.Path{owner, "", name})
		if err == nil {
			err = f.Close()
		}
		return err
	}
	if err := small("fd_close", "neighbour"); err != nil {
		t.Errorf("the neighbour's module: %v", err)
	}
	if err := small("fd_read", "attacker"); !errors.Is(err, turns.ErrFull) {
		t.Errorf("a module of the attacker's: %v: nothing was slow", err)
	}
	if s := c.Status(); s.Compiling != 1 || s.Waiting != 19 {
		t.Errorf("the status is %+v", s)
	}
}
