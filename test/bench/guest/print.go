package guest

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// print writes the table and returns an error that names the figures beyond their bounds.
func (f *Results) print(out io.Writer) error {
	t := table{out: out}
	t.row("file with the keeper, MB", float64(f.File)/1e6, maxFile/1e6, "bare server %.2f", float64(f.BareFile)/1e6)
	t.row("start to first Check", ratio(f.Start, f.BareStart), maxStart, "times the bare server's: p50 %s of %s, best %s of %s",
		round(middle(f.Start)), round(middle(f.BareStart)), round(f.Start[0]), round(f.BareStart[0]))
	t.row("private memory, MiB more", float64(f.Idle.Private-f.BareMemory.Private)/1024, maxPrivate/1024, "%s, bare server %.1f; RssAnon in KiB %v, with %d containers %v",
		f.Idle, float64(f.BareMemory.Private)/1024, f.Idle.Own, containers, f.Full.Own)
	t.row("resident, 20 containers, MiB", float64(f.Full.Resident)/1024, maxResident/1024, "each page once; VmRSS in KiB %v, of the bare server %v", f.Full.Each, f.BareMemory.Each)
	if f.HaveRunc {
		t.row("create and start", ratio(f.Run, f.RuncRun), maxOverRunc, "times runc's: p50 %s of %s", round(middle(f.Run)), round(middle(f.RuncRun)))
		t.row("exec of true", ratio(f.Exec, f.RuncExec), maxOverRunc, "times runc's: p50 %s of %s", round(middle(f.Exec)), round(middle(f.RuncExec)))
	}
	if len(t.beyond) > 0 {
		return fmt.Errorf("beyond their bounds: %s", strings.Join(t.beyond, ", "))
	}
	return t.err
}

type table struct {
	out    io.Writer
	beyond []string
	err    error
}

func (t *table) row(what string, value, bound float64, format string, args ...any) {
	mark := " "
	if value > bound {
		mark = "!"
		t.beyond = append(t.beyond, what)
	}
	if _, err := fmt.Fprintf(t.out, "%-28s %8.2f %s≤ %-5.1f %s\n", what, value, mark, bound, fmt.Sprintf(format, args...)); err != nil {
		t.err = err
	}
}

// String is the private memory of all.
func (m Memory) String() string { return fmt.Sprintf("%.1f", float64(m.Private)/1024) }

func middle(d []time.Duration) time.Duration { return d[len(d)/2] }

func ratio(a, b []time.Duration) float64 { return float64(middle(a)) / float64(middle(b)) }

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
