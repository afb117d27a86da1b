package sleep_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
)

// Programs in several languages sleep and wake again and again. Their content must be the same, their connections must stay, and at
// least nine tenths of their memory must be free in their sleep. LONGSHORE_SLEEP_CYCLES is the number of cycles of each program, and
// LONGSHORE_SLEEP_MIB their memory.
func TestPythonKeepsItsMemory(t *testing.T)     { keepsMemory(t, "python") }
func TestNodeKeepsItsMemory(t *testing.T)       { keepsMemory(t, "node") }
func TestJavaKeepsItsMemory(t *testing.T)       { keepsMemory(t, "java") }
func TestGoKeepsItsMemory(t *testing.T)         { keepsMemory(t, "go") }
func TestPostgreSQLKeepsItsMemory(t *testing.T) { keepsMemory(t, "postgresql") }
func TestRedisKeepsItsMemory(t *testing.T)      { keepsMemory(t, "redis") }
func TestNginxKeepsItsMemory(t *testing.T)      { keepsMemory(t, "nginx") }

func keepsMemory(t *testing.T, name string) {
	t.Helper()
	i := slices.IndexFunc(sleeptest.Programs(), func(p sleeptest.Program) bool { return p.Name == name })
	roottest.Run(t, func(t *testing.T) {
		inCycles(t, sleeptest.Programs()[i], number(t, "LONGSHORE_SLEEP_CYCLES", 2), number(t, "LONGSHORE_SLEEP_MIB", 48))
	})
}

// number returns the number in a variable of the environment.
func number(t *testing.T, variable string, otherwise int) int {
	t.Helper()
	s := os.Getenv(variable)
	if s == "" {
		return otherwise
	}
	var n int
	if _, err := fmt.Sscan(s, &n); err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// newProgram starts a program.
func newProgram(t *testing.T, p sleeptest.Program, mib int) (*bed, sleeptest.Client) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	dir, err := os.MkdirTemp("", "sleeper") // a server of another user has files below it
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	argv, err := p.Argv(sleeptest.Launch{Self: os.Args[0], Dir: dir, Addr: addr, MiB: mib})
	if errors.Is(err, sleeptest.ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b := newBedTo(t, nil, argv...)
	b.addr = addr
	var c sleeptest.Client
	roottest.Eventually(t, "the server", func() bool {
		c, err = p.Connect(t.Context(), addr, mib)
		return err == nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return b, c
}

// inCycles has a program sleep and wake again and again.
func inCycles(t *testing.T, p sleeptest.Program, cycles, mib int) {
	t.Helper()
	b, c := newProgram(t, p, mib)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sum, err := c.Sum(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var first, thawed []time.Duration
	var faults []uint64
	for i := range cycles {
		awake := b.anonymous()
		slept := b.sleep()
		asleep := b.anonymous()
		if asleep*10 > awake {
			t.Errorf("cycle %d: asleep it has %d of %d KiB; %+v", i, asleep>>10, awake>>10, slept)
		}
		begun := time.Now()
		done := b.wake()
		thawed = append(thawed, time.Since(begun))
		if err := c.One(ctx); err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
		first = append(first, time.Since(begun))
		if got, err := c.Sum(ctx); got != sum || err != nil {
			t.Fatalf("cycle %d: the content has the sum %s, %v, want %s", i, got, err, sum)
		}
		w := <-done
		if w.Err != nil {
			t.Fatal(w.Err)
		}
		faults = append(faults, w.Faults)
		if i == 0 {
			t.Logf("awake %d MiB, asleep %d MiB, stored %d MiB, %+v; %+v", awake>>20, asleep>>20, slept.Stored>>20, slept.Resident, w)
		}
	}
	t.Logf("faults of its first wakes: %d", faults[:min(12, len(faults))])
	slices.Sort(first)
	slices.Sort(thawed)
	at := func(d []time.Duration, percent int) time.Duration { return d[(len(d)*percent+99)/100-1] }
	t.Logf("%d cycles; it runs after %v, p50, %v, p99; first answers after %v, p50, %v, p99", cycles, at(thawed, 50), at(thawed, 99), at(first, 50), at(first, 99))
}
