package stats

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Process reads one process from /proc, with what it has open when files are
// asked for. NotFound when it has ended.
func Process(pid int, files bool) (core.ProcessStats, error) {
	proc := "/proc/" + strconv.Itoa(pid)
	b, err := File(proc + "/stat")
	if err != nil {
		return core.ProcessStats{}, fmt.Errorf("read process %d: %w: %w", pid, err, class(err))
	}
	p, err := parseStat(string(b))
	if err != nil {
		return core.ProcessStats{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	p.Pid = pid
	if status, err := File(proc + "/status"); err == nil {
		for line := range strings.Lines(string(status)) {
			if rest, ok := strings.CutPrefix(line, "VmSwap:"); ok {
				p.Swap = number(strings.TrimSuffix(strings.TrimSpace(rest), " kB")).N * 1024
			}
		}
	}
	if files {
		p.Files, p.Sockets = descriptors(proc + "/fd")
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit); err == nil && limit.Cur != unix.RLIM_INFINITY {
			p.FileLimit = core.Known(limit.Cur)
		}
	}
	return p, nil
}

// descriptors counts what a process has open; unknown when it has ended or may
// not be looked at.
func descriptors(dir string) (files, sockets core.Value) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return core.Value{}, core.Value{}
	}
	files, sockets = core.Known(uint64(len(entries))), core.Known(0)
	for _, e := range entries {
		if to, err := os.Readlink(dir + "/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			sockets.N++
		}
	}
	return files, sockets
}

func class(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return errdefs.ErrPermissionDenied
	}
	return errdefs.ErrNotFound // ENOENT, or ESRCH between open and read
}

// parseStat reads the fields of /proc/PID/stat; the name in it may hold
// anything, parentheses too.
func parseStat(s string) (core.ProcessStats, error) {
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return core.ProcessStats{}, fmt.Errorf("no name in %q: %w", s, errdefs.ErrDataLoss)
	}
	f := strings.Fields(s[end+1:]) // f[0] is field 3, the state
	if len(f) < 22 {
		return core.ProcessStats{}, fmt.Errorf("%d fields in %q: %w", len(f), s, errdefs.ErrDataLoss)
	}
	const tick = 1e9 / 100
	threads, _ := strconv.Atoi(f[17])
	return core.ProcessStats{
		Comm:    s[open+1 : end],
		User:    number(f[11]).N * tick,
		System:  number(f[12]).N * tick,
		Threads: threads,
		RSS:     number(f[21]).N * uint64(os.Getpagesize()),
	}, nil
}
