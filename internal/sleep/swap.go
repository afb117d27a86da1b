package sleep

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/sleep/pages"
)

// swapFile is the name of a file in a container's state. It exists while the node's swap has the memory, and has one of the words below.
const swapFile = "swap"

// The content of a swapFile.
const (
	swapAsleep = "asleep"
	swapWaking = "waking"
)

// FreeSwap returns how many bytes of the node's swap are free, and 0 if it has none.
func FreeSwap() uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	return sizeOf(string(b), "SwapFree")
}

// sizeOf returns the bytes in the line of a key, which has kibibytes.
func sizeOf(text, key string) (n uint64) {
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			_, _ = fmt.Sscan(v, &n)
			return n << 10
		}
	}
	return 0
}

// toSwap freezes a cgroup and has the kernel move the memory of its processes to the node's swap. It returns false if the swap has no
// room, or if less than half of the memory went there: a cgroup may be forbidden to use swap.
func (s *Sleeper) toSwap(ctx context.Context, id core.ID, cgroup core.CgroupRef) (slept core.Slept, done bool, err error) {
	if err := s.o.Cgroups.Freeze(ctx, cgroup, true); err != nil {
		return slept, false, err
	}
	pids, err := s.o.Cgroups.Pids(ctx, cgroup)
	if err != nil {
		return slept, false, err
	}
	before, _ := usage(pids)
	if before > FreeSwap() {
		return slept, false, nil
	}
	for _, pid := range pids {
		if err := pages.PageOut(ctx, pid); err != nil {
			return slept, false, fmt.Errorf("move the memory of process %d to the swap: %w", pid, err)
		}
	}
	after, swapped := usage(pids)
	slept = core.Slept{Processes: len(pids), Given: before - min(before, after), Stored: swapped, Swap: true}
	if after*2 > before {
		return slept, false, nil
	}
	if after > 0 {
		slept.Resident = []core.Resident{{Pid: pids[0], Why: "memory that the kernel does not swap, of all processes", Bytes: after}}
	}
	return slept, true, s.markSwapped(id, swapAsleep)
}

// usage returns the anonymous memory of processes and their swap, in bytes. Memory that processes share counts once, and a process
// that has ended has none. The counters in /proc/PID/status are wrong by some MiB.
func usage(pids []int) (memory, swap uint64) {
	for _, pid := range pids {
		if b, err := os.ReadFile("/proc/" + itoa(pid) + "/smaps_rollup"); err == nil {
			memory += sizeOf(string(b), "Pss_Anon")
			swap += sizeOf(string(b), "SwapPss")
		}
	}
	return memory, swap
}

// markSwapped stores the stage of a container that has its memory in the swap.
func (s *Sleeper) markSwapped(id core.ID, stage string) error {
	if err := os.MkdirAll(s.state(id), 0o700); err != nil {
		return err
	}
	next := filepath.Join(s.state(id), swapFile+".new")
	if err := os.WriteFile(next, []byte(stage), 0o600); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(s.state(id), swapFile))
}

// swapped returns the stage of a container that has its memory in the swap, and core.StageNone for others.
func (s *Sleeper) swapped(id core.ID) core.SleepStage {
	switch b, _ := os.ReadFile(filepath.Join(s.state(id), swapFile)); string(b) {
	case swapAsleep:
		return core.StageAsleep
	case swapWaking:
		return core.StageWaking
	default:
		return core.StageNone
	}
}

// wakeFromSwap thaws a container that has its memory in the swap. The kernel restores a page when a thread uses it.
func (s *Sleeper) wakeFromSwap(ctx context.Context, id core.ID, cgroup core.CgroupRef, done func(core.Woken)) error {
	since := time.Now()
	if err := errors.Join(s.markSwapped(id, swapWaking), s.o.Cgroups.Freeze(ctx, cgroup, false)); err != nil {
		return err
	}
	took := time.Since(since)
	for _, observe := range []func(time.Duration){s.o.Thawed, s.o.Woken} {
		if observe != nil {
			observe(took)
		}
	}
	if err := s.Forget(ctx, id); err != nil {
		return err
	}
	done(core.Woken{Took: took})
	return nil
}
