package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Reclaim has the kernel free memory of the processes in and below ref: it drops their page cache, and moves anonymous memory to the
// swap, if the machine has one. Locked memory stays. It returns how many bytes the cgroup uses less. Kernels before 5.19 have no
// such call for cgroup v2.
func (t *Tree) Reclaim(ctx context.Context, ref core.CgroupRef) (freed uint64, err error) {
	if err := t.valid(ref); err != nil {
		return 0, fmt.Errorf("reclaim the memory of a cgroup: %w", err)
	}
	dir, v1 := t.layout.v1Dir(ref, "memory")
	usage, reclaim := filepath.Join(dir, "memory.usage_in_bytes"), filepath.Join(dir, "memory.force_empty")
	if !v1 {
		dir = t.layout.v2Dir(ref)
		usage, reclaim = filepath.Join(dir, "memory.current"), filepath.Join(dir, "memory.reclaim")
	}
	before, err := used(usage)
	for last := before; err == nil && last > 0; {
		amount := "0" // all of it
		if !v1 {
			amount = fmt.Sprint(last)
		}
		werr := writeFile(reclaim, amount)
		if err = ctx.Err(); err != nil {
			break
		}
		now, uerr := used(usage)
		freed = before - min(before, now)
		switch {
		case uerr != nil:
			err = uerr
		case werr != nil && !errors.Is(werr, unix.EAGAIN) && !errors.Is(werr, unix.EBUSY):
			err = werr
		case now+minProgress > last:
			return freed, nil
		}
		last = now
	}
	if err != nil {
		return freed, fmt.Errorf("reclaim the memory of cgroup %s: %w", ref.Path, err)
	}
	return freed, nil
}

// minProgress is the least progress, in bytes. After a call with less, no other one follows.
const minProgress = 1 << 20

// used reads the bytes that a cgroup uses.
func used(path string) (n uint64, err error) {
	b, err := os.ReadFile(path)
	if err == nil {
		_, err = fmt.Sscan(strings.TrimSpace(string(b)), &n)
	}
	return n, err
}
