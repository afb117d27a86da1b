package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Host describes the machine of a run; without it figures mean nothing.
type Host struct {
	Kernel    string `json:"kernel"`
	Processor string `json:"processor"`
	CPUs      int    `json:"cpus"`
	MemoryMB  int    `json:"memory_mb"`
	// Busy is the share of the processors' time that others used just before the run, from 0 to 1.
	Busy float64 `json:"busy"`
}

// quietShare is how busy a quiet machine may be.
const quietShare = 0.05

// Describe describes this machine, which it watches for a second.
func Describe(ctx context.Context) (Host, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return Host{}, err
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return Host{}, err
	}
	busy, err := busyShare(ctx, time.Second)
	return Host{
		Kernel: unix.ByteSliceToString(u.Release[:]), Processor: processor(), CPUs: runtime.NumCPU(),
		MemoryMB: int(info.Totalram * uint64(info.Unit) >> 20), Busy: busy,
	}, err
}

// processor returns the name of the first processor, or "".
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// busyShare returns the share of the processors' time that is used in an interval.
func busyShare(ctx context.Context, d time.Duration) (float64, error) {
	before, err := processorTime()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(d):
	}
	after, err := processorTime()
	if err != nil || after.all == before.all {
		return 0, err
	}
	return 1 - float64(after.idle-before.idle)/float64(after.all-before.all), nil
}

type ticks struct{ all, idle uint64 }

// processorTime reads the first line of /proc/stat (proc_stat(5)).
func processorTime() (t ticks, err error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	return parseStat(text)
}

func parseStat(text []byte) (t ticks, err error) {
	line, _, _ := bytes.Cut(text, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 9 || fields[0] != "cpu" {
		return t, fmt.Errorf("/proc/stat begins with %q", line)
	}
	for i, f := range fields[1:9] { // guest times, which follow, are part of the others
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		t.all += n
		if i == 3 || i == 4 { // idle and iowait
			t.idle += n
		}
	}
	return t, nil
}

// Quiet writes how busy the machine is if it is not quiet, or returns that as an error if it must be.
func (h Host) Quiet(w io.Writer, must bool) error {
	if h.Busy <= quietShare {
		return nil
	}
	text := fmt.Sprintf("the machine is not quiet: others use %.0f %% of its processors", 100*h.Busy)
	if must {
		return errors.New(text)
	}
	_, err := fmt.Fprintf(w, "bench: %s, so figures vary\n", text)
	return err
}
