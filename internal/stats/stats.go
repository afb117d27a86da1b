// Package stats reads the figures that the kernel keeps of a cgroup or a
// process into core.Stats. A file that is not there makes a figure that is not
// OK, never a zero.
//
// It must not know where cgroups come from or what they hold. Start reading at
// V1 and V2.
package stats

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// dir reads files of one directory; the zero dir has none.
type dir string

func (d dir) read(file string) (string, bool) {
	if d == "" {
		return "", false
	}
	b, err := os.ReadFile(filepath.Join(string(d), file))
	if err != nil {
		return "", false
	}
	return string(bytes.TrimSpace(b)), true
}

// number reads a file of one number.
func (d dir) number(file string) core.Value {
	s, ok := d.read(file)
	if !ok {
		return core.Value{}
	}
	return number(s)
}

// limit is number, but "max" and v1's page-rounded infinity are not OK.
func (d dir) limit(file string) core.Value {
	v := d.number(file)
	if v.N >= math.MaxInt64-1<<20 {
		return core.Value{}
	}
	return v
}

// keys reads a file of "key number" lines.
func (d dir) keys(file string) map[string]uint64 {
	s, ok := d.read(file)
	if !ok {
		return nil
	}
	return keys(s)
}

func number(s string) core.Value {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return core.Value{}
	}
	return core.Known(n)
}

func keys(s string) map[string]uint64 {
	out := make(map[string]uint64, 48)
	for line := range strings.Lines(s) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(v, 10, 64); err == nil {
			out[k] = n
		}
	}
	return out
}

func of(m map[string]uint64, key string) core.Value {
	n, ok := m[key]
	return core.Value{N: n, OK: ok}
}

// times scales a known value.
func times(v core.Value, by uint64) core.Value {
	v.N *= by
	return v
}

// minus is a-b, not below 0; OK when both are.
func minus(a, b core.Value) core.Value {
	if !a.OK || !b.OK {
		return core.Value{}
	}
	return core.Known(a.N - min(a.N, b.N))
}

// io collects the figures of devices in the order they are first met.
type io struct {
	order []string
	by    map[string]*core.IOStats
}

func (i *io) device(majorMinor string) *core.IOStats {
	if s, ok := i.by[majorMinor]; ok {
		return s
	}
	maj, mnr, ok := strings.Cut(majorMinor, ":")
	a, b := number(maj), number(mnr)
	if !ok || !a.OK || !b.OK {
		return nil
	}
	if i.by == nil {
		i.by = map[string]*core.IOStats{}
	}
	s := &core.IOStats{Major: a.N, Minor: b.N}
	i.by[majorMinor] = s
	i.order = append(i.order, majorMinor)
	return s
}

func (i *io) list() []core.IOStats {
	var out []core.IOStats
	for _, k := range i.order {
		out = append(out, *i.by[k])
	}
	return out
}

// huge reads hugetlb's files: base names the usage file's ending.
func huge(d dir, usage, peak, failures string) map[string]core.HugeStats {
	if d == "" {
		return nil
	}
	entries, err := filepath.Glob(filepath.Join(string(d), "hugetlb.*."+usage))
	if err != nil || len(entries) == 0 {
		return nil
	}
	out := map[string]core.HugeStats{}
	for _, e := range entries {
		size, ok := strings.CutSuffix(strings.TrimPrefix(filepath.Base(e), "hugetlb."), "."+usage)
		if !ok || strings.HasSuffix(size, ".rsvd") {
			continue
		}
		h := core.HugeStats{Usage: d.number(filepath.Base(e)).N}
		if peak != "" {
			h.Max = d.number("hugetlb." + size + "." + peak).N
			h.Failures = d.number("hugetlb." + size + "." + failures).N
		} else {
			h.Failures = d.keys("hugetlb." + size + "." + failures)["max"]
		}
		out[size] = h
	}
	return out
}

func now() time.Time { return time.Now().UTC() }
