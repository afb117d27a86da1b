package base

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/present"
)

// Table writes rows in columns.
func Table(w io.Writer, header []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			row[i] = Printable(cell)
		}
		// An empty last cell would leave blanks at the end of the line.
		if _, err := fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t")); err != nil {
			return fmt.Errorf("write: %w", err)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// Printable escapes control characters in a cell: keys and commands come from other programs.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || (r >= 0x7f && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}

// Short returns the beginning of an ID.
func Short(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	if len(id) > 12 {
		return id[:12]
	}
	return id
}

// Cut shortens a cell to n characters.
func Cut(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// Size formats bytes in decimal units.
func Size(n uint64) string {
	if n < 1000 {
		return strconv.FormatUint(n, 10) + "B"
	}
	f, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB", "PB", "EB"} {
		if f /= 1000; f < 999.5 {
			break
		}
	}
	return strconv.FormatFloat(f, 'g', 3, 64) + unit
}

// Ago formats a time as a rough duration before now.
func Ago(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return Span(time.Since(t.AsTime())) + " ago"
}

// Span formats a duration roughly.
func Span(d time.Duration) string {
	for _, u := range []struct {
		d    time.Duration
		name string
	}{{365 * 24 * time.Hour, "year"}, {30 * 24 * time.Hour, "month"}, {24 * time.Hour, "day"}, {time.Hour, "hour"}, {time.Minute, "minute"}, {time.Second, "second"}} {
		if n := int(d / u.d); n > 0 {
			if n > 1 {
				return fmt.Sprintf("%d %ss", n, u.name)
			}
			return fmt.Sprintf("%d %s", n, u.name)
		}
	}
	return "less than a second"
}

// PortText formats published ports.
func PortText(ports []*longshorev1.Port) string {
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s->%d/%s", HostText(p), p.GetContainer(), p.GetProtocol()))
	}
	return strings.Join(out, ", ")
}

// HostText returns a port's address and number on the host; 0.0.0.0 is every address.
func HostText(p *longshorev1.Port) string {
	ip := p.GetHostIp()
	switch {
	case ip == "":
		ip = present.AnyAddress
	case strings.Contains(ip, ":"):
		ip = "[" + ip + "]"
	}
	return ip + ":" + strconv.FormatUint(uint64(p.GetHost()), 10)
}

// StateText returns a container's state, with how it ended.
func StateText(c *longshorev1.Container) string {
	a := c.GetAutopsy()
	switch {
	case a == nil && c.GetState() == "running" && c.GetHealth() != "":
		return c.GetState() + " (" + c.GetHealth() + ")"
	case a == nil:
		return c.GetState()
	case a.GetLost():
		return c.GetState() + " (lost)"
	case a.GetOom() != nil && a.GetOom().GetMain():
		return fmt.Sprintf("%s (%d, out of memory)", c.GetState(), a.GetStatus())
	}
	return fmt.Sprintf("%s (%d)", c.GetState(), a.GetStatus())
}

// Print prints to standard output.
func (a *App) Print(format string, args ...any) error {
	if _, err := fmt.Fprintf(a.Stdout, format, args...); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// Warn prints a message to standard error.
func (a *App) Warn(format string, args ...any) {
	_, _ = fmt.Fprintf(a.Stderr, "longshore: "+format+"\n", args...)
}

// Facts writes lines and remembers the first error.
type Facts struct {
	W   io.Writer
	Err error
}

// Line writes one line.
func (t *Facts) Line(format string, args ...any) {
	if _, err := fmt.Fprintf(t.W, format+"\n", args...); err != nil && t.Err == nil {
		t.Err = fmt.Errorf("write: %w", err)
	}
}

// Fact writes a line with a name before it.
func (t *Facts) Fact(name, format string, args ...any) {
	t.Line("  %-12s %s", name, fmt.Sprintf(format, args...))
}

// BytesOrDash formats a number of bytes, or a dash when the kernel does not report it.
func BytesOrDash(n *uint64) string {
	if n == nil {
		return "-"
	}
	return Size(*n)
}

// WarnLostOutput reports on stderr that n bytes of a process's output are not in its log; 0 reports nothing.
func (a *App) WarnLostOutput(n uint64) error {
	if n == 0 {
		return nil
	}
	_, err := fmt.Fprintf(a.Stderr, "longshore: %s of the output is lost: no log could take it\n", Size(n))
	return err
}
