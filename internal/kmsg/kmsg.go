// Package kmsg reads out-of-memory kills from the kernel log. It is the engine's
// core.OOMLog: a cgroup counts kills, only the kernel log tells which limit was
// hit and who died of it.
//
// It must not know what lived in the cgroups. Start reading at Log.Victims.
package kmsg

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Options go with New.
type Options struct {
	// Path is the kernel log; "" is /dev/kmsg.
	Path string
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
}

// Log is core.OOMLog on this machine.
type Log struct {
	path string
	log  *slog.Logger
}

var _ core.OOMLog = (*Log)(nil)

// New returns the Log; nothing is opened.
func New(o Options) *Log {
	if o.Path == "" {
		o.Path = "/dev/kmsg"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Log{path: o.Path, log: o.Logger}
}

// slack is added to the time asked for: the kernel's clock of the log and the
// wall clock are put together from two readings.
const slack = 100 * time.Millisecond

// Victims returns the kills since the given time, oldest first; nil when the
// kernel log cannot be read, and empty when there was none. The log is a ring:
// old entries go. Its pids are those of the initial pid namespace; in another
// one they would name somebody else and are left at 0.
func (l *Log) Victims(ctx context.Context, since time.Time) []core.OOMVictim {
	victims := l.read(ctx, since)
	if len(victims) > 0 && !inInitialPidNamespace() {
		for i := range victims {
			victims[i].Pid = 0
		}
	}
	return victims
}

// inInitialPidNamespace knows the initial pid namespace by its inode, which the
// kernel fixes (PROC_PID_INIT_INO).
func inInitialPidNamespace() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == "pid:[4026531836]"
}

func (l *Log) read(ctx context.Context, since time.Time) []core.OOMVictim {
	fd, err := unix.Open(l.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		l.log.DebugContext(ctx, "the kernel log cannot be read", "path", l.path, "error", err)
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	boot, err := bootTime()
	if err != nil {
		return nil
	}
	victims := []core.OOMVictim{}
	buf := make([]byte, 8192) // the kernel's longest record
	for ctx.Err() == nil {
		n, err := unix.Read(fd, buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE): // EPIPE: overwritten meanwhile, go on with the next
			continue
		case errors.Is(err, unix.EINVAL): // a record longer than the buffer
			continue
		case err != nil && !errors.Is(err, unix.EAGAIN):
			l.log.WarnContext(ctx, "reading the kernel log broke off", "path", l.path, "error", err)
			return victims
		case err != nil || n <= 0:
			return victims
		}
		r, ok := parseRecord(string(buf[:n]))
		if !ok {
			continue
		}
		at := boot.Add(r.since)
		if at.Before(since.Add(-slack)) {
			continue
		}
		if v, ok := parseVictim(r.text); ok {
			v.At = at
			victims = merge(victims, v)
		}
	}
	return victims
}

// merge adds v unless it is the second line about the same kill: "oom-kill:"
// tells the cgroups, "Killed process" follows it.
func merge(victims []core.OOMVictim, v core.OOMVictim) []core.OOMVictim {
	const together = 10 * time.Second // the report between the two may be long
	for i := len(victims) - 1; i >= 0; i-- {
		old := &victims[i]
		if v.At.Sub(old.At) > together {
			break
		}
		if old.Pid != v.Pid {
			continue
		}
		if v.Victim == "" {
			return victims
		}
		if old.Victim == "" {
			old.Memcg, old.Victim = v.Memcg, v.Victim
			return victims
		}
	}
	return append(victims, v)
}

// bootTime is the wall-clock time of the kernel log's zero. The log's clock
// stands still while the machine sleeps, as CLOCK_MONOTONIC does.
func bootTime() (time.Time, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(-time.Duration(ts.Nano())), nil
}

// record is one entry of the kernel log.
type record struct {
	since time.Duration // since boot
	text  string
}

// parseRecord reads "6,1234,5678901,-;text\n KEY=value\n": level, sequence,
// microseconds since boot, flags. Only the kernel's own entries count: anybody
// with access can write others.
func parseRecord(s string) (record, bool) {
	head, text, ok := strings.Cut(s, ";")
	if !ok {
		return record{}, false
	}
	f := strings.Split(head, ",")
	if len(f) < 3 {
		return record{}, false
	}
	prefix, ok1 := number(f[0])
	micros, ok2 := number(f[2])
	const facility = 3 // bits to shift away the level; 0 is the kernel
	if !ok1 || !ok2 || prefix>>facility != 0 || micros > 1<<52 {
		return record{}, false
	}
	text, _, _ = strings.Cut(text, "\n")
	return record{since: time.Duration(micros) * time.Microsecond, text: unescape(text)}, true
}

// unescape undoes \xNN, by which the kernel writes unprintable bytes.
func unescape(s string) string {
	if !strings.Contains(s, `\x`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] == 'x' {
			if hi, lo := hex(s[i+2]), hex(s[i+3]); hi >= 0 && lo >= 0 {
				b.WriteByte(byte(hi<<4 | lo))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func hex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	default:
		return -1
	}
}

func number(s string) (uint64, bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	var n uint64
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, true
}

// parseVictim reads the two lines that tell of a kill:
//
//	oom-kill:constraint=CONSTRAINT_MEMCG,…,oom_memcg=/a,task_memcg=/a/b,task=sh,pid=42,uid=0
//	Memory cgroup out of memory: Killed process 42 (sh) total-vm:…
func parseVictim(text string) (core.OOMVictim, bool) {
	if rest, ok := strings.CutPrefix(text, "oom-kill:"); ok {
		return parseOOMKill(rest)
	}
	_, rest, ok := strings.Cut(text, "ut of memory: Killed process ")
	if !ok {
		_, rest, ok = strings.Cut(text, "ut of memory (oom_kill_allocating_task): Killed process ")
	}
	if !ok {
		return core.OOMVictim{}, false
	}
	digits, _, _ := strings.Cut(rest, " ")
	pid, ok := number(digits)
	if !ok || pid == 0 || pid > 1<<30 {
		return core.OOMVictim{}, false
	}
	return core.OOMVictim{Pid: int(pid)}, true
}

func parseOOMKill(s string) (core.OOMVictim, bool) {
	var v core.OOMVictim
	// The task's name may hold anything: read pid from the end, the cgroups
	// from before the name.
	i := strings.LastIndex(s, ",pid=")
	if i < 0 {
		return v, false
	}
	digits, _, _ := strings.Cut(s[i+len(",pid="):], ",")
	pid, ok := number(digits)
	if !ok || pid == 0 || pid > 1<<30 {
		return v, false
	}
	v.Pid = int(pid)
	head, _, ok := strings.Cut(s[:i], ",task=")
	if !ok {
		return v, false
	}
	if _, memcg, ok := strings.Cut(head, ",oom_memcg="); ok {
		v.Memcg, v.Victim, _ = strings.Cut(memcg, ",task_memcg=")
	} else if _, task, ok := strings.Cut(head, ",task_memcg="); ok {
		v.Victim = task // ",global_oom,task_memcg=": the whole machine ran out
	}
	return v, true
}
