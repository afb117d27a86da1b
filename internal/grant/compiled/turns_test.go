package compiled

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/turns"
)

// compiler is a cache that compiles by waiting. A module begins with its compile time, in seconds.
type compiler struct {
	*Cache
	t   *testing.T
	dir string

	mu                sync.Mutex // guards runs, most, busy, abandoned
	runs, most, busy  int
	abandoned, number int
}

func newCompiler(t *testing.T, slots int) *compiler {
	t.Helper()
	c, err := New(Options{Dir: filepath.Join(t.TempDir(), "cache"), Program: os.Args[0], Slots: slots})
	if err != nil {
		t.Fatal(err)
	}
	k := &compiler{Cache: c, t: t, dir: t.TempDir()}
	c.compile = k.run
	return k
}

func (k *compiler) run(ctx context.Context, w *compilation) error {
	k.mu.Lock()
	k.runs++
	k.busy++
	k.most = max(k.most, k.busy)
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.busy--
		if ctx.Err() != nil {
			k.abandoned++
		}
	}()
	var text [64]byte
	n, _ := w.module.ReadAt(text[:], 0)
	seconds, how, _ := strings.Cut(string(text[:n]), " ")
	d, err := strconv.Atoi(seconds)
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Duration(d) * time.Second):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if strings.HasPrefix(how, "bad") {
		return errors.New("it is no module")
	}
	if strings.HasPrefix(how, "full") {
		return fmt.Errorf("write: %w", unix.ENOSPC)
	}
	f, err := os.Create(filepath.Join(k.Cache.dir, w.key.Name()))
	if err != nil {
		return err
	}
	if err := f.Chmod(0o600); err != nil {
		return err
	}
	return errors.Join(seal(f, w.key, strings.NewReader(written), int64(len(written))), f.Close())
}

// module returns a module that takes so long, which is another one than those before.
func (k *compiler) module(seconds int, how string) *os.File {
	k.t.Helper()
	k.number++
	path := filepath.Join(k.dir, strconv.Itoa(k.number))
	if err := os.WriteFile(path, fmt.Appendf(nil, "%d %s %d", seconds, how, k.number), 0o600); err != nil {
		k.t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { _ = f.Close() })
	return f
}

// open opens a module's entry and returns how long that took.
func (k *compiler) open(ctx context.Context, module *os.File, by turns.Path) (time.Duration, error) {
	start := time.Now()
	f, err := k.Open(ctx, module, by)
	if err == nil {
		err = f.Close()
	}
	return time.Since(start), err
}

// attack starts and warms so many modules of a minute each for one owner and each of the namespaces.
func (k *compiler) attack(ctx context.Context, owner string, n int) {
	for i := range n {
		module, by := k.module(60, ""), turns.Path{owner, fmt.Sprint("namespace", i%3), fmt.Sprint("image", i)}
		go func() { _, _ = k.open(ctx, module, by) }()
		more := k.module(60, "").Name()
		go func() { _ = k.Warm(ctx, more, by) }()
	}
	synctest.Wait()
}

func inBubble(t *testing.T, slots int, test func(t *testing.T, k *compiler)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newCompiler(t, slots)) })
}

func TestAnotherOwnersModuleIsCompiledAtOnce(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, k *compiler) {
		k.attack(t.Context(), "attacker", 30)
		if took, err := k.open(t.Context(), k.module(1, ""), turns.Path{"neighbour", "", "small"}); err != nil || took != time.Second {
			t.Errorf("it took %s, %v", took, err)
		}
		if k.most != 2 {
			t.Errorf("%d modules were compiled at once", k.most)
		}
	})
}

// TestInOneQueueANeighbourWaits shows that the other tests can see the fault: with one slot and no paths, each waits for all before it.
func TestInOneQueueANeighbourWaits(t *testing.T) {
	inBubble(t, 1, func(t *testing.T, k *compiler) {
		k.turns, k.patience = turns.New(1, math.MaxInt), time.Hour
		for range 5 {
			module := k.module(60, "")
			go func() { _, _ = k.open(t.Context(), module, nil) }()
		}
		synctest.Wait()
		if took, err := k.open(t.Context(), k.module(1, ""), nil); err != nil || took != 5*time.Minute+time.Second {
			t.Errorf("it took %s, %v", took, err)
		}
	})
}

// TestAStartWaitsForItsTurnForABoundedTime: also among others of the same owner, however many they are. The container then compiles.
func TestAStartWaitsForItsTurnForABoundedTime(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, k *compiler) {
		k.attack(t.Context(), "cri", 30)
		took, err := k.open(t.Context(), k.module(1, ""), turns.Path{"cri", "neighbour", "small"})
		if !errors.Is(err, turns.ErrFull) || took != defaultPatience {
			t.Errorf("it took %s, %v", took, err)
		}
		if s := k.Status(); s.Alone == 0 || s.Compiling != 1 || s.Waiting == 0 {
			t.Errorf("the status is %+v", s)
		}
	})
}

func TestAStartComesBeforeModulesOfPulls(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, k *compiler) {
		for i := range 20 {
			path := k.module(5, "").Name()
			go func() { _ = k.Warm(t.Context(), path, turns.Path{"cri", "", fmt.Sprint(i)}) }()
		}
		synctest.Wait()
		if took, err := k.open(t.Context(), k.module(1, ""), turns.Path{"cri", "a", "19"}); err != nil || took != 6*time.Second {
			t.Errorf("it took %s, %v", took, err)
		}
	})
}

// TestOneModuleIsCompiledOnceForAll: also if its first client leaves, and closes its file. The
// start makes the pull's compilation urgent.
func TestOneModuleIsCompiledOnceForAll(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, k *compiler) {
		k.attack(t.Context(), "cri", 1)
		module := k.module(7, "")
		warm, giveUp := context.WithCancel(t.Context())
		warmed := make(chan error, 1)
		go func() { warmed <- k.Warm(warm, module.Name(), turns.Path{"cri", "", "shared"}) }()
		synctest.Wait()
		var all sync.WaitGroup
		for _, owner := range []string{"nomad", "cri", "cli"} {
			all.Go(func() {
				own, err := os.Open(module.Name())
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = own.Close() }()
				if took, err := k.open(t.Context(), own, turns.Path{owner, "", "shared"}); err != nil || took != 7*time.Second {
					t.Errorf("%s: it took %s, %v", owner, took, err)
				}
			})
		}
		synctest.Wait()
		giveUp()
		if err := <-warmed; !errors.Is(err, context.Canceled) {
			t.Errorf("the pull's: %v", err)
		}
		all.Wait()
		if k.runs != 2 { // the attacker's, and this one
			t.Errorf("%d compilations", k.runs)
		}
	})
}

func TestACompilationEndsWhenNobodyWaits(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, k *compiler) {
		ctx, giveUp := context.WithCancel(t.Context())
		k.attack(ctx, "cri", 10)
		giveUp()
		synctest.Wait()
		if s := k.Status(); s.Compiling != 0 || s.Waiting != 0 || k.runs == 0 || k.abandoned != k.runs {
			t.Errorf("%d compilations were begun, %d ended early; the status is %+v", k.runs, k.abandoned, s)
		}
		// It has not failed: it is compiled when it is wanted again.
		if took, err := k.open(t.Context(), k.module(1, ""), turns.Path{"cri"}); err != nil || took != time.Second {
			t.Errorf("it took %s, %v", took, err)
		}
		again, err := os.Open(filepath.Join(k.dir, "1"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = again.Close() }()
		if took, err := k.open(t.Context(), again, turns.Path{"cri"}); err != nil || took != time.Minute {
			t.Errorf("it took %s, %v", took, err)
		}
	})
}

// TestAModuleThatFailedIsRefusedBeforeItWaits: but not one that failed for a reason of the machine's.
func TestAModuleThatFailedIsRefusedBeforeItWaits(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, k *compiler) {
		bad, unlucky := k.module(1, "bad"), k.module(1, "full")
		for _, m := range []*os.File{bad, unlucky} {
			if _, err := k.open(t.Context(), m, turns.Path{"cri"}); err == nil || errors.Is(err, errFailed) {
				t.Errorf("error %v", err)
			}
		}
		k.attack(t.Context(), "cri", 10)
		if took, err := k.open(t.Context(), bad, turns.Path{"cri"}); !errors.Is(err, errFailed) || took != 0 {
			t.Errorf("it took %s, %v", took, err)
		}
		if _, err := k.open(t.Context(), unlucky, turns.Path{"nomad"}); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("error %v", err)
		}
	})
}

// TestAnOwnersWaitingModulesAreBounded: a module above the bound is refused at once, and other
// owners are not concerned.
func TestAnOwnersWaitingModulesAreBounded(t *testing.T) {
	inBubble(t, 2, func(t *testing.T, k *compiler) {
		k.attack(t.Context(), "cri", 4*maxWaiting)
		if s := k.Status(); s.Waiting != 2*maxWaiting { // starts, and modules of pulls
			t.Errorf("the status is %+v", s)
		}
		if took, err := k.open(t.Context(), k.module(1, ""), turns.Path{"cri"}); !errors.Is(err, turns.ErrFull) || took != 0 {
			t.Errorf("it took %s, %v", took, err)
		}
		if took, err := k.open(t.Context(), k.module(1, ""), turns.Path{"nomad"}); err != nil || took != time.Second {
			t.Errorf("another owner: it took %s, %v", took, err)
		}
	})
}

func TestSlotsLeaveHalfOfTheMachine(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		processors int
		memory     uint64
		want       int
	}{{1, gib, 2}, {2, 24 * gib, 2}, {8, 64 * gib, 4}, {8, 12 * gib, 3}, {64, 8 * gib, 2}, {256, 1024 * gib, 16}} {
		if got := slotsFor(c.processors, c.memory); got != c.want {
			t.Errorf("%d processors and %d bytes: %d slots, want %d", c.processors, c.memory, got, c.want)
		}
	}
}

// TestWhatEndedAChildDecidesWhetherItsModuleFailed: a kill for want of memory and a full disk are not the module's.
func TestWhatEndedAChildDecidesWhetherItsModuleFailed(t *testing.T) {
	for script, local := range map[string]bool{"exit 1": false, "exit 2": false, fmt.Sprint("exit ", StatusLocal): true, "kill -KILL $$": true, "kill -SEGV $$": false} {
		err := exec.CommandContext(t.Context(), "sh", "-c", script).Run()
		if err == nil || isLocal(fmt.Errorf("compile: %w", err)) != local {
			t.Errorf("%s: %v is local: %v", script, err, !local)
		}
	}
	if isLocal(errors.New("it takes too long")) || !isLocal(&os.PathError{Op: "open", Path: "x", Err: unix.EMFILE}) {
		t.Error("errors of the agent's are told apart wrongly")
	}
}
