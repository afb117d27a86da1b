package stats

import (
	"bytes"
	"context"
	"os"
	"strconv"

	"github.com/longshore/longshore/internal/core"
)

// Defunct is at the end of the name of a process that has ended and that nobody has waited for.
const Defunct = " <defunct>"

// Zombies returns the ended processes that their parents, which are among pids, have not waited
// for. No cgroup lists them any more. If ctx ends, the result is incomplete.
func Zombies(ctx context.Context, pids map[int]bool) []core.ProcessStats {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	r := newReader(usual / 2)
	var list []core.ProcessStats
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pids[pid] {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		b, err := r.file("/proc/"+e.Name(), "stat")
		if err != nil {
			continue
		}
		if parent, ok := zombie(b); !ok || !pids[parent] {
			continue
		}
		if p, err := parseStat(b); err == nil {
			p.Pid, p.Comm = pid, p.Comm+Defunct
			list = append(list, p)
		}
	}
	return list
}

// zombie parses a line of /proc/PID/stat. It returns the process's parent, and whether the process
// is a zombie.
func zombie(s []byte) (parent int, ok bool) {
	f := bytes.Fields(s[bytes.LastIndexByte(s, ')')+1:])
	if len(f) < 2 || string(f[0]) != "Z" {
		return 0, false
	}
	parent, err := strconv.Atoi(string(f[1]))
	return parent, err == nil
}
