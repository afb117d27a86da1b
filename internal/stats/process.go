package stats

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Processes reads processes from /proc, with counts of their open files if files is set. Those that
// have ended are left out. An error is ctx's.
func Processes(ctx context.Context, pids []int, files bool) ([]core.ProcessStats, error) {
	var list []core.ProcessStats
	r := newReader(usual / 2)
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return list, err
		}
		if p, err := r.process(pid, files); err == nil {
			list = append(list, p)
		}
	}
	return list, nil
}

// process reads one; NotFound when it has ended.
func (r *reader) process(pid int, files bool) (core.ProcessStats, error) {
	proc := "/proc/" + strconv.Itoa(pid)
	b, err := r.file(proc, "stat")
	if err != nil {
		return core.ProcessStats{}, fmt.Errorf("read process %d: %w: %w", pid, err, class(err))
	}
	p, err := parseStat(b)
	if err != nil {
		return core.ProcessStats{}, fmt.Errorf("read process %d: %w", pid, err)
	}
	p.Pid = pid
	if status, ok := r.readIf(!files, proc, "status"); ok {
		for line := range bytes.Lines(status) {
			if rest, ok := bytes.CutPrefix(line, []byte("VmSwap:")); ok {
				p.Swap = numberOf(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))).N * 1024
				break
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

// descriptors counts a process's open files; unknown if it has ended or may not be read.
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
func parseStat(s []byte) (core.ProcessStats, error) {
	open, end := bytes.IndexByte(s, '('), bytes.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return core.ProcessStats{}, fmt.Errorf("no name in %q: %w", s, errdefs.ErrDataLoss)
	}
	var f [22][]byte // f[0] is field 3, the state
	n := 0
	for word := range bytes.FieldsSeq(s[end+1:]) {
		f[n] = word
		if n++; n == len(f) {
			break
		}
	}
	if n < len(f) {
		return core.ProcessStats{}, fmt.Errorf("%d fields in %q: %w", n, s, errdefs.ErrDataLoss)
	}
	const tick = 1e9 / 100
	threads, _ := strconv.Atoi(string(f[17]))
	return core.ProcessStats{
		Comm:    string(s[open+1 : end]),
		User:    numberOf(f[11]).N * tick,
		System:  numberOf(f[12]).N * tick,
		Threads: threads,
		RSS:     numberOf(f[21]).N * uint64(os.Getpagesize()),
	}, nil
}
