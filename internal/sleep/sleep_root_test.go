package sleep_test

import (
	"bufio"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/keepertest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sleep"
	"github.com/longshore/longshore/internal/sleep/sleeptest"
)

// bed is a Sleeper with a program in a cgroup.
type bed struct {
	t      *testing.T
	tree   *cgroup.Tree
	ref    core.CgroupRef
	dir    string
	holder *keepertest.Holder
	s      *sleep.Sleeper
	cmd    *exec.Cmd
	addr   string
}

const id = core.ID("c1")

// newBed starts a program that writes its address.
func newBed(t *testing.T, program ...string) *bed {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	b := newBedTo(t, w, program...)
	_ = w.Close()
	if b.addr, err = bufio.NewReader(r).ReadString('\n'); err != nil {
		t.Fatalf("the program's address: %v", err)
	}
	b.addr = strings.TrimSpace(b.addr)
	return b
}

// newBedTo starts a program with an output.
func newBedTo(t *testing.T, out *os.File, program ...string) *bed {
	t.Helper()
	tree, err := cgroup.New(cgroup.Options{Root: roottest.Cgroup(t)})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{t: t, tree: tree, dir: t.TempDir(), holder: keepertest.NewHolder(t)}
	if b.ref, err = tree.Place(core.Cgroup{}, core.CgroupRef{}, "sleeper"); err != nil {
		t.Fatal(err)
	}
	if err := tree.Create(t.Context(), b.ref, nil); err != nil {
		t.Fatal(err)
	}
	b.agent()
	join := "for c in cpu memory freezer pids; do d=/sys/fs/cgroup/$c" + b.ref.Path + "; [ ! -d $d ] || echo 0 > $d/cgroup.procs || exit 99; done; "
	if tree.Mode() == core.CgroupV2 {
		join = "echo 0 > /sys/fs/cgroup" + b.ref.Path + "/cgroup.procs || exit 99; "
	}
	b.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), "/bin/sh", append([]string{"-c", join + `exec "$@"`, "sh"}, program...)...)
	b.cmd.Stdout, b.cmd.Stderr = out, os.Stderr
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = tree.Kill(context.Background(), b.ref)
		_ = tree.Freeze(context.Background(), b.ref, false)
		_ = b.cmd.Wait()
		_ = b.s.Forget(context.Background(), id)
	})
	return b
}

// agent makes the next agent's Sleeper.
func (b *bed) agent() { b.prefer(false) }

// prefer makes the next agent's Sleeper, which may prefer the swap.
func (b *bed) prefer(swap bool) {
	b.s = sleep.New(sleep.Options{
		Program: "/proc/self/exe", Root: filepath.Join(b.dir, "root"), State: filepath.Join(b.dir, "state"),
		Cgroups: b.tree, Holder: b.holder, Swap: swap, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// request has the program answer.
func (b *bed) request(word string) string {
	b.t.Helper()
	answer, err := sleeptest.Ask(b.t.Context(), b.addr, word)
	if err != nil {
		b.t.Fatal(err)
	}
	return answer
}

func (b *bed) sleep() core.Slept {
	b.t.Helper()
	slept, err := b.s.Sleep(b.t.Context(), id, b.ref)
	if err != nil {
		b.t.Fatal(err)
	}
	return slept
}

// wake wakes the program, and returns a channel that gets the end of the wake.
func (b *bed) wake() <-chan core.Woken {
	b.t.Helper()
	done := make(chan core.Woken, 1)
	if err := b.s.Wake(b.t.Context(), id, b.ref, func(w core.Woken) { done <- w }); err != nil {
		b.t.Fatal(err)
	}
	return done
}

// anonymous returns how many bytes of private anonymous memory the processes have, without the changed pages of mapped files.
func (b *bed) anonymous() (n uint64) {
	b.t.Helper()
	pids, err := b.tree.Pids(b.t.Context(), b.ref)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, pid := range pids {
		bytes, err := sleeptest.Anonymous(pid)
		if err != nil {
			b.t.Fatal(err)
		}
		n += bytes
	}
	return n
}

func TestMemoryComesBack(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		b := newBed(t, os.Args[0], sleeptest.WorkArg, "127.0.0.1:0", "48")
		sum := b.request(sleeptest.Sum)
		awake := b.anonymous()
		for _, word := range []string{sleeptest.Sum, sleeptest.Touch, sleeptest.Drop, sleeptest.Move, sleeptest.Fork, sleeptest.New, sleeptest.Dirty, sleeptest.Sum} {
			slept := b.sleep()
			if asleep := b.anonymous(); asleep*10 > awake {
				t.Errorf("asleep it has %d of %d bytes, %+v", asleep, awake, slept)
			}
			done := b.wake()
			got := b.request(word)
			switch word {
			case sleeptest.Drop, sleeptest.New, sleeptest.Dirty:
				sum = got
			case sleeptest.Touch:
			default:
				if got != sum {
					t.Errorf("%s after a sleep: %s, want %s", word, got, sum)
				}
			}
			w := <-done
			t.Logf("%s: slept %+v, woken %+v", word, slept, w)
			if w.Err != nil {
				t.Error(w.Err)
			}
			if got := b.request(sleeptest.Sum); got != sum {
				t.Errorf("after %q the memory has the sum %s, want %s", word, got, sum)
			}
		}
		if names, err := b.holder.Names(t.Context()); err != nil || len(names) > 0 {
			t.Errorf("still held: %v, %v", names, err)
		}
	})
}
