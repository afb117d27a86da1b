// Package stats reads the numbers that the kernel keeps of a cgroup or a
// process into core.Stats. A missing file makes a Value that is not OK, never a
// zero.
//
// It must not know the origin or the content of cgroups. Start reading at
// Kept, its V1 and V2.
package stats

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// reader reads small files of cgroups one after the other into one buffer. Its results are valid
// until its next read.
type reader struct {
	buf  []byte
	n    int // of them were read
	kept *Kept
	fill func(fd int) error // made once
}

// newReader's files have at most size bytes, as a rule: others take longer.
func newReader(size int) *reader {
	r := &reader{buf: make([]byte, size)}
	r.fill = r.from
	return r
}

// common and tasks are the fields that include StatsCommon and StatsTasks.
const (
	common = core.StatsCommon | core.StatsDetail
	tasks  = core.StatsTasks | common
)

// usual is larger than the files of a cgroup.
const usual = 4 << 10

// reader returns a reader that uses k's open files, until done.
func (k *Kept) reader() (r *reader, done func()) {
	if k == nil {
		return newReader(usual), func() {}
	}
	r, _ = k.readers.Get().(*reader)
	r.kept = k
	return r, func() { k.readers.Put(r) }
}

// readIf reads the whole of a file that is wanted.
func (r *reader) readIf(wanted bool, dir, file string) ([]byte, bool) {
	if !wanted {
		return nil, false
	}
	return r.read(dir, file)
}

// read reads the whole of a file; "" is no directory.
func (r *reader) read(dir, file string) ([]byte, bool) {
	if dir == "" {
		return nil, false
	}
	b, err := r.file(dir, file)
	return b, err == nil
}

// file reads the whole of a file.
func (r *reader) file(dir, name string) ([]byte, error) {
	read := r.kept.with
	if !often(name) {
		read = r.kept.within
	}
	if err := read(dir, name, r.fill); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(r.buf[:r.n]), nil
}

// often reports whether a file's values are read all the time.
func often(file string) bool {
	switch file {
	case "cpuacct.usage", "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.stat",
		"cpu.stat", "memory.current", "memory.max", "memory.swap.current", "memory.swap.max",
		"cpu.pressure", "memory.pressure", "io.pressure":
		return true
	}
	return false
}

// from reads the whole of an open file, from its beginning. The kernel hands out
// such a file in one piece if there is room, so the end is not asked for.
func (r *reader) from(fd int) error {
	r.n = 0
	for {
		m, err := unix.Pread(fd, r.buf[r.n:], int64(r.n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if r.n += m; m == 0 || r.n < len(r.buf) {
			return nil
		}
		r.buf = append(r.buf, make([]byte, len(r.buf))...)
	}
}

// File reads a file of cgroups or /proc whole. Such files can be polled, so that
// os.ReadFile would register each with the poller: more work than the reading.
func File(path string) ([]byte, error) { return readFrom(open(path)) }

// readFrom reads an open file, and closes it.
func readFrom(fd int, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 0, 512)
	for {
		if len(b) == cap(b) {
			b = slices.Grow(b, cap(b))
		}
		n, err := unix.Read(fd, b[len(b):cap(b)])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return nil, err
		case n == 0:
			return b, nil
		default:
			b = b[:len(b)+n]
		}
	}
}

func open(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// number reads a file of one number.
func (r *reader) number(dir, file string) core.Value {
	b, ok := r.read(dir, file)
	if !ok {
		return core.Value{}
	}
	return numberOf(b)
}

// limit is number, but "max" and v1's page-rounded infinity are not OK.
func (r *reader) limit(dir, file string) core.Value {
	v := r.number(dir, file)
	if v.N >= math.MaxInt64-1<<20 {
		return core.Value{}
	}
	return v
}

// keys reads a file of "key number" lines.
func (r *reader) keys(dir, file string) map[string]uint64 {
	b, ok := r.read(dir, file)
	if !ok {
		return nil
	}
	return keys(b)
}

// pick reads the numbers of those keys of such a file that have a place.
func (r *reader) pick(dir, file string, place func(key []byte) *core.Value) {
	b, _ := r.read(dir, file)
	eachKey(b, func(key, value []byte) {
		if v := place(key); v != nil {
			*v = numberOf(value)
		}
	})
}

// places are those in a map.
func places(m map[string]*core.Value) func(key []byte) *core.Value {
	return func(key []byte) *core.Value { return m[string(key)] }
}

// memory reads memory.stat: the numbers that have a place, and the keys that want selects for Raw.
func (r *reader) memory(dir string, place func(key []byte) *core.Value, want core.StatsFields) map[string]uint64 {
	if want.Has(core.StatsDetail) {
		all := r.keys(dir, "memory.stat")
		spread(all, place)
		return all
	}
	b, ok := r.read(dir, "memory.stat")
	if !ok {
		return nil
	}
	raw := map[string]uint64{}
	eachKey(b, func(key, value []byte) {
		n := numberOf(value)
		if v := place(key); v != nil && n.OK {
			*v = n
		}
		switch string(key) {
		case "total_rss", "pgfault", "pgmajfault", "unevictable":
			if n.OK {
				raw[string(key)] = n.N
			}
		}
	})
	return raw
}

// spread puts the numbers of such a file, read before, in their places.
func spread(m map[string]uint64, place func(key []byte) *core.Value) {
	for key, n := range m {
		if v := place([]byte(key)); v != nil {
			*v = core.Known(n)
		}
	}
}

func number(s string) core.Value { return numberOf([]byte(s)) }

func numberOf(b []byte) core.Value {
	b = bytes.TrimSpace(b)
	if len(b) == 0 {
		return core.Value{}
	}
	var n uint64
	for _, c := range b {
		d := uint64(c - '0')
		if c < '0' || c > '9' || n > (math.MaxUint64-d)/10 {
			return core.Value{}
		}
		n = n*10 + d
	}
	return core.Known(n)
}

func eachKey(b []byte, fn func(key, value []byte)) {
	for line := range bytes.Lines(b) {
		if k, v, ok := bytes.Cut(bytes.TrimSpace(line), []byte{' '}); ok {
			fn(k, v)
		}
	}
}

func keys(b []byte) map[string]uint64 {
	out := make(map[string]uint64, bytes.Count(b, []byte{'\n'})+1)
	eachKey(b, func(k, v []byte) {
		if n := numberOf(v); n.OK {
			out[string(k)] = n.N
		}
	})
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

// io collects the numbers of devices in the order they are first met.
type io struct {
	order []string
	by    map[string]*core.IOStats
	// blocks is the directory of links that name block devices.
	blocks string
}

// name is a device's below /dev.
func (i *io) name(majorMinor string) string {
	link, err := os.Readlink(filepath.Join(i.blocks, majorMinor))
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(filepath.Base(link), "!", "/") // as sysfs writes a slash
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
	s := &core.IOStats{Device: i.name(majorMinor), Major: a.N, Minor: b.N}
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

// hugeNames are the endings of hugetlb's files. v1 counts failures in a file of one number, v2 in a file of keys.
type hugeNames struct{ usage, peak, failures string }

var (
	hugeV1 = hugeNames{".usage_in_bytes", ".max_usage_in_bytes", ".failcnt"} //nolint:gochecknoglobals // constant
	hugeV2 = hugeNames{".current", "", ".events"}                            //nolint:gochecknoglobals // constant
)

// huge reads hugetlb's files.
func huge(r *reader, d string, names hugeNames, want core.StatsFields) map[string]core.HugeStats {
	sizes := r.pageSizes(d, names.usage)
	if len(sizes) == 0 {
		return nil
	}
	out := make(map[string]core.HugeStats, len(sizes))
	for _, size := range sizes {
		usage, ok := r.read(d, "hugetlb."+size+names.usage)
		if !ok {
			continue
		}
		h := core.HugeStats{Usage: numberOf(usage).N}
		if names.peak != "" {
			h.Max = r.number(d, "hugetlb."+size+names.peak)
		}
		switch {
		case !want.Has(core.StatsDetail):
		case names.peak != "":
			h.Failures = r.number(d, "hugetlb."+size+names.failures).N
		default:
			h.Failures = r.keys(d, "hugetlb."+size+names.failures)["max"]
		}
		out[size] = h
	}
	return out
}

// pageSizes returns the sizes of huge pages that hugetlb counts: the kernel has set them when it booted, so that
// they are the same in all cgroups.
func (r *reader) pageSizes(d, usage string) []string {
	if d == "" {
		return nil
	}
	if r.kept != nil {
		if sizes := r.kept.sizes.Load(); sizes != nil {
			return *sizes
		}
	}
	entries, err := filepath.Glob(filepath.Join(d, "hugetlb.*"+usage))
	if err != nil || len(entries) == 0 {
		return nil
	}
	var sizes []string
	for _, e := range entries {
		size, ok := strings.CutSuffix(strings.TrimPrefix(filepath.Base(e), "hugetlb."), usage)
		if ok && !strings.HasSuffix(size, ".rsvd") {
			sizes = append(sizes, size)
		}
	}
	if r.kept != nil {
		r.kept.sizes.Store(&sizes)
	}
	return sizes
}

// blockDevices is where the kernel names block devices by their numbers.
const blockDevices = "/sys/dev/block"

func now() time.Time { return time.Now().UTC() }
