package ocicli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/subprocess"
)

func psCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("ps", "ID [OPTION OF PS…]")
	format := f.String("format", "table", "table or json")
	f.StringVar(format, "f", "table", "table or json")
	id, rest, err := a.id(f, args)
	if err != nil {
		return err
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	t, err := a.cgroups()
	if err != nil {
		return err
	}
	pids, err := t.Pids(ctx, c.ref())
	if err != nil && !errors.Is(err, errdefs.ErrNotFound) {
		return err
	}
	switch *format {
	case "json":
		if pids == nil {
			pids = []int{}
		}
		b, err := json.Marshal(pids)
		if err != nil {
			return err
		}
		return a.print("%s\n", b)
	case "table":
	default:
		return fmt.Errorf("--format %q: want table or json: %w", *format, errdefs.ErrInvalidArgument)
	}
	if len(rest) == 0 {
		rest = []string{"-ef"}
	}
	out := &subprocess.Head{Max: 64 << 20}
	cmd := subprocess.Command(ctx, "ps", rest...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := subprocess.Run(ctx, cmd); err != nil {
		return fmt.Errorf("ps: %w: %s", err, out.Line())
	}
	lines := strings.Split(out.String(), "\n")
	column := slices.Index(strings.Fields(lines[0]), "PID")
	if column < 0 {
		return fmt.Errorf("ps: no column PID in %q: %w", lines[0], errdefs.ErrInvalidArgument)
	}
	text := lines[0] + "\n"
	for _, line := range lines[1:] {
		fields := strings.Fields(line)
		if len(fields) <= column {
			continue
		}
		if pid, err := strconv.Atoi(fields[column]); err == nil && slices.Contains(pids, pid) {
			text += line + "\n"
		}
	}
	return a.print("%s", text)
}

// event is one line of the events command, in runc's format.
type event struct {
	Type string `json:"type"` // "stats" or "oom"
	ID   string `json:"id"`
	Data any    `json:"data,omitempty"`
}

type memoryEntry struct {
	Limit   uint64 `json:"limit"`
	Usage   uint64 `json:"usage,omitempty"`
	Max     uint64 `json:"max,omitempty"`
	Failcnt uint64 `json:"failcnt"`
}

type blkioEntry struct {
	Major uint64 `json:"major"`
	Minor uint64 `json:"minor"`
	Op    string `json:"op,omitempty"`
	Value uint64 `json:"value"`
}

// runcStats has runc's names for the kernel's statistics.
type runcStats struct {
	CPU struct {
		Usage struct {
			Total  uint64   `json:"total"`
			PerCPU []uint64 `json:"percpu,omitempty"`
			Kernel uint64   `json:"kernel"`
			User   uint64   `json:"user"`
		} `json:"usage"`
		Throttling struct {
			Periods     uint64 `json:"periods"`
			Throttled   uint64 `json:"throttledPeriods"`
			ThrottledNS uint64 `json:"throttledTime"`
		} `json:"throttling"`
	} `json:"cpu"`
	Memory struct {
		Cache  uint64            `json:"cache,omitempty"`
		Usage  memoryEntry       `json:"usage"`
		Swap   memoryEntry       `json:"swap"`
		Kernel memoryEntry       `json:"kernel"`
		Raw    map[string]uint64 `json:"raw,omitempty"`
	} `json:"memory"`
	Pids struct {
		Current uint64 `json:"current"`
		Limit   uint64 `json:"limit,omitempty"`
	} `json:"pids"`
	Blkio struct {
		Bytes    []blkioEntry `json:"ioServiceBytesRecursive,omitempty"`
		Serviced []blkioEntry `json:"ioServicedRecursive,omitempty"`
	} `json:"blkio"`
	Hugetlb map[string]memoryEntry `json:"hugetlb,omitempty"`
}

func statsOf(s core.Stats) runcStats {
	var f runcStats
	u, th := &f.CPU.Usage, &f.CPU.Throttling
	u.Total, u.Kernel, u.User, u.PerCPU = s.CPU.Usage.N, s.CPU.System.N, s.CPU.User.N, s.CPU.PerCPU
	th.Periods, th.Throttled, th.ThrottledNS = s.CPU.Periods.N, s.CPU.Throttled.N, s.CPU.ThrottledNS.N
	m := s.Memory
	f.Memory.Cache, f.Memory.Raw = m.Cache.N, m.Raw
	f.Memory.Usage = memoryEntry{Limit: m.Limit.N, Usage: m.Usage.N, Max: m.Peak.N, Failcnt: m.FailCount.N}
	// As in the kernel's v1 and in OCI: memory and swap together.
	f.Memory.Swap = memoryEntry{Usage: m.Usage.N + m.Swap.N}
	if m.SwapLimit.OK {
		f.Memory.Swap.Limit = m.SwapLimit.N + m.Limit.N
	}
	f.Memory.Kernel = memoryEntry{Usage: m.Kernel.N}
	f.Pids.Current, f.Pids.Limit = s.Pids.Current.N, s.Pids.Limit.N
	for _, d := range s.IO {
		f.Blkio.Bytes = append(f.Blkio.Bytes, blkioEntry{d.Major, d.Minor, "Read", d.ReadBytes}, blkioEntry{d.Major, d.Minor, "Write", d.WriteBytes})
		f.Blkio.Serviced = append(f.Blkio.Serviced, blkioEntry{d.Major, d.Minor, "Read", d.Reads}, blkioEntry{d.Major, d.Minor, "Write", d.Writes})
	}
	for size, h := range s.Huge {
		if f.Hugetlb == nil {
			f.Hugetlb = map[string]memoryEntry{}
		}
		f.Hugetlb[size] = memoryEntry{Usage: h.Usage, Max: h.Max.N, Failcnt: h.Failures}
	}
	return f
}

func eventsCmd(ctx context.Context, a *app, args []string) error {
	f := a.flags("events", "ID")
	once := f.Bool("stats", false, "print the stats once")
	interval := f.Duration("interval", 5*time.Second, "time between stats")
	id, _, err := a.id(f, args)
	if err != nil {
		return err
	}
	if *interval <= 0 {
		return fmt.Errorf("--interval %s: %w", *interval, errdefs.ErrInvalidArgument)
	}
	c, err := a.load(id)
	if err != nil {
		return err
	}
	if a.status(c) == specs.StateStopped {
		return fmt.Errorf("container %s: container not running: %w", id, errdefs.ErrFailedPrecondition)
	}
	kills, err := a.printStats(ctx, c)
	if err != nil || *once {
		return err
	}
	tick := time.NewTicker(*interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if a.status(c) == specs.StateStopped {
			return nil
		}
		now, err := a.printStats(ctx, c)
		if errors.Is(err, errdefs.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		for ; kills < now; kills++ {
			if err := a.printEvent(event{Type: "oom", ID: id}); err != nil {
				return err
			}
		}
	}
}

// printStats prints the stats, and returns how many processes the kernel has killed for
// lack of memory so far.
func (a *app) printStats(ctx context.Context, c *container) (kills uint64, err error) {
	t, err := a.cgroups()
	if err != nil {
		return 0, err
	}
	s, err := t.Stats(ctx, c.ref(), core.StatsUsage|core.StatsDetail)
	if err != nil {
		return 0, err
	}
	return s.Memory.OOMKills.N, a.printEvent(event{Type: "stats", ID: c.ID, Data: statsOf(s)})
}

func (a *app) printEvent(e event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return a.print("%s\n", b)
}
