// Package kmsg reads out-of-memory kills from the kernel log. It is the engine's
// core.OOMLog: a cgroup counts kills, but only the kernel log says which limit was
// reached and which process was killed.
//
// It must not know what lived in the cgroups. Start reading at Log.Victims.
package kmsg

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Options configure a Log.
type Options struct {
	// Path is the kernel log; "" means /dev/kmsg.
	Path string
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Log implements core.OOMLog on this machine. It reads each entry of the kernel log
// once.
type Log struct {
	path string
	log  *slog.Logger

	mu    sync.Mutex // guards fd, kills
	fd    int        // the kernel log, read up to the newest of kills; -1 before the first read
	kills []kill     // the newest kills in the log, oldest first
}

// kill is an out-of-memory kill in the kernel log.
type kill struct {
	since time.Duration // since boot
	core.OOMVictim
}

// maxKills is how many kills are kept: more than happen between two calls of Victims.
const maxKills = 1024

var _ core.OOMLog = (*Log)(nil)

// New returns a Log. It opens nothing.
func New(o Options) *Log {
	if o.Path == "" {
		o.Path = "/dev/kmsg"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Log{path: o.Path, log: o.Logger, fd: -1}
}

// slack is subtracted from the requested time, because the time of an entry is computed
// from two clocks that are read one after the other.
const slack = 100 * time.Millisecond

// Victims returns the kills since the given time, oldest first. It is nil if the kernel
// log cannot be read, and empty if there were none. The log is a ring: entries that were
// not read in time are lost. Its pids are those of the initial pid namespace; in another
// one they would mean other processes, and are set to 0.
func (l *Log) Victims(ctx context.Context, since time.Time) []core.OOMVictim {
	l.mu.Lock()
	defer l.mu.Unlock()
	boot, err := bootTime()
	if err != nil || !l.read(ctx) {
		return nil
	}
	victims := []core.OOMVictim{}
	for _, k := range l.kills {
		// The wall clock may have been set since the entry was read.
		if k.At = boot.Add(k.since); !k.At.Before(since.Add(-slack)) {
			victims = append(victims, k.OOMVictim)
		}
	}
	if len(victims) > 0 && !inInitialPidNamespace() {
		for i := range victims {
			victims[i].Pid = 0
		}
	}
	return victims
}

// inInitialPidNamespace recognizes the initial pid namespace by its inode number, which
// is fixed (PROC_PID_INIT_INO).
func inInitialPidNamespace() bool {
	ns, err := os.Readlink("/proc/self/ns/pid")
	return err == nil && ns == "pid:[4026531836]"
}

// read reads the entries that the log has got since the last read. That takes a system
// call per entry, and the log has thousands, while every exit of a container asks for
// kills. It reports whether the log can be read. Preconditions: mu is held.
func (l *Log) read(ctx context.Context) bool {
	if l.fd < 0 {
		fd, err := unix.Open(l.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			l.log.DebugContext(ctx, "the kernel log cannot be read", "path", l.path, "error", err)
			return false
		}
		l.fd, l.kills = fd, nil
	}
	buf := make([]byte, 8192) // the longest possible record
	for ctx.Err() == nil {
		n, err := unix.Read(l.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EPIPE): // EPIPE: overwritten meanwhile, go on with the next
			continue
		case errors.Is(err, unix.EINVAL): // a record longer than the buffer
			continue
		case err != nil && !errors.Is(err, unix.EAGAIN):
			// The next read starts from the log's beginning.
			l.log.WarnContext(ctx, "cannot read the kernel log; causes of out-of-memory kills may be missing", "path", l.path, "error", err)
			_ = unix.Close(l.fd)
			l.fd = -1
			return true
		case err != nil || n <= 0:
			return true
		}
		r, ok := parseRecord(string(buf[:n]))
		if !ok {
			continue
		}
		if v, ok := parseVictim(r.text); ok {
			l.kills = merge(l.kills, kill{since: r.since, OOMVictim: v})
			l.kills = l.kills[max(0, len(l.kills)-maxKills):]
		}
	}
	return true
}

// merge adds v, unless it is the second line about the same kill: "oom-kill:" names the
// cgroups, and "Killed process" follows it.
func merge(kills []kill, k kill) []kill {
	const together = 10 * time.Second // the report between the two lines may be long
	for i := len(kills) - 1; i >= 0; i-- {
		old := &kills[i]
		if k.since-old.since > together {
			break
		}
		if old.Pid != k.Pid {
			continue
		}
		if k.Victim == "" {
			return kills
		}
		if old.Victim == "" {
			old.Memcg, old.Victim = k.Memcg, k.Victim
			return kills
		}
	}
	return append(kills, k)
}

// bootTime returns the wall-clock time of the kernel log's zero. The log's clock does
// not advance while the machine is suspended, like CLOCK_MONOTONIC.
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

// parseRecord parses "6,1234,5678901,-;text\n KEY=value\n": level, sequence,
// microseconds since boot, flags. Only the kernel's own entries count, because others
// can write to the log too.
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
	const facility = 3 // bits to shift the level out; facility 0 is the kernel
	if !ok1 || !ok2 || prefix>>facility != 0 || micros > 1<<52 {
		return record{}, false
	}
	text, _, _ = strings.Cut(text, "\n")
	return record{since: time.Duration(micros) * time.Microsecond, text: unescape(text)}, true
}

// unescape decodes \xNN, which the kernel writes for unprintable bytes.
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
	// The task's name may contain anything: parse pid from the end, and the cgroups from
	// before the name.
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
		v.Victim = task // ",global_oom,task_memcg=": the whole machine was out of memory
	}
	return v, true
}
