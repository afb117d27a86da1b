package stats

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore/longshore/internal/core"
)

func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// anyDevice leaves out how this machine calls its block devices.
var anyDevice = cmpopts.IgnoreFields(core.IOStats{}, "Device")

func TestV1(t *testing.T) {
	dirs := map[string]string{
		"cpuacct": write(t, map[string]string{"cpuacct.usage": "900\n", "cpuacct.stat": "user 3\nsystem 4\n", "cpuacct.usage_percpu": "400 500 \n"}),
		"cpu":     write(t, map[string]string{"cpu.stat": "nr_periods 5\nnr_throttled 2\nthrottled_time 77\n"}),
		"memory": write(t, map[string]string{
			"memory.usage_in_bytes": "1000\n", "memory.limit_in_bytes": "2000\n", "memory.max_usage_in_bytes": "1500\n", "memory.failcnt": "3\n",
			"memory.memsw.limit_in_bytes": "9223372036854771712\n", "memory.memsw.failcnt": "4\n",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 6\n",
			"memory.stat":        "rss 1\npgfault 6\nunevictable 4096\ntotal_rss 100\ntotal_cache 200\ntotal_mapped_file 5\ntotal_pgfault 8\ntotal_pgmajfault 1\ntotal_inactive_file 300\ntotal_swap 200\n",
		}),
		"pids":    write(t, map[string]string{"pids.current": "4\n", "pids.max": "max\n"}),
		"blkio":   write(t, map[string]string{"blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:0 Total 30\nTotal 30\n", "blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\n"}),
		"hugetlb": write(t, map[string]string{"hugetlb.2MB.usage_in_bytes": "1\n", "hugetlb.2MB.max_usage_in_bytes": "2\n", "hugetlb.2MB.failcnt": "3\n", "hugetlb.2MB.rsvd.usage_in_bytes": "9\n"}),
	}
	dir := func(controller string) string { return dirs[controller] }
	kept := newKept(t)
	got := kept.V1(dir, core.StatsUsage|core.StatsDetail)
	got.At = time.Time{}
	k := core.Known
	want := core.Stats{
		CPU: core.CPUStats{Usage: k(900), User: k(3e7), System: k(4e7), Periods: k(5), Throttled: k(2), ThrottledNS: k(77), PerCPU: []uint64{400, 500}},
		Memory: core.MemoryStats{
			Usage: k(1000), WorkingSet: k(700), RSS: k(100), Cache: k(200), Limit: k(2000), Peak: k(1500), Swap: k(200), Mapped: k(5),
			Faults: k(8), MajorFaults: k(1), FailCount: k(7), OOMKills: k(6),
			Raw: map[string]uint64{"rss": 1, "pgfault": 6, "unevictable": 4096, "total_rss": 100, "total_cache": 200, "total_mapped_file": 5, "total_pgfault": 8, "total_pgmajfault": 1, "total_inactive_file": 300, "total_swap": 200},
		},
		Pids: core.PidsStats{Current: k(4)},
		IO:   []core.IOStats{{Major: 8, ReadBytes: 10, WriteBytes: 20, Reads: 1, Writes: 2}},
		Huge: map[string]core.HugeStats{"2MB": {Usage: 1, Max: k(2), Failures: 3}},
	}
	if d := cmp.Diff(want, got, anyDevice); d != "" {
		t.Error(d)
	}
	sameButForDetails(t, want, kept.V1(dir, core.StatsCommon))
	sameTasks(t, kept.V1(dir, core.StatsCommon), kept.V1(dir, core.StatsTasks))
	// StatsUsage alone gives the same values, and no more.
	got = kept.V1(dir, core.StatsUsage)
	got.At = time.Time{}
	want.Pids, want.IO, want.Huge, want.CPU = core.PidsStats{}, nil, nil, core.CPUStats{Usage: want.CPU.Usage}
	want.Memory.Peak, want.Memory.FailCount, want.Memory.OOMKills, want.Memory.Raw = core.Value{}, core.Value{}, core.Value{}, nil
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("usage only: %s", d)
	}
}

// sameButForDetails compares stats by StatsDetail with those by StatsCommon.
func sameButForDetails(t *testing.T, detail, common core.Stats) {
	t.Helper()
	raw := map[string]uint64{}
	for _, key := range []string{"total_rss", "pgfault", "pgmajfault", "unevictable"} {
		if n, ok := detail.Memory.Raw[key]; ok {
			raw[key] = n
		}
	}
	pages := map[string]core.HugeStats{}
	for size, h := range detail.Huge {
		h.Failures = 0
		pages[size] = h
	}
	detail.Memory.Raw, detail.CPU.PerCPU, detail.Huge, common.At = raw, nil, pages, time.Time{}
	if d := cmp.Diff(detail, common, anyDevice); d != "" {
		t.Errorf("StatsCommon: %s", d)
	}
}

// sameTasks compares stats by StatsCommon with those by StatsTasks.
func sameTasks(t *testing.T, all, few core.Stats) {
	t.Helper()
	unread := core.Value{}
	all.At, all.IO, all.Huge = few.At, nil, nil
	all.Memory.Peak, all.Memory.FailCount, all.Memory.OOMKills = unread, unread, unread
	if d := cmp.Diff(all, few); d != "" {
		t.Errorf("StatsTasks: %s", d)
	}
}

func TestV2(t *testing.T) {
	dir := write(t, map[string]string{
		"cpu.stat":       "usage_usec 10\nuser_usec 6\nsystem_usec 4\nnr_periods 1\nnr_throttled 0\nthrottled_usec 2\n",
		"memory.current": "1000\n", "memory.max": "max\n", "memory.peak": "1100\n", "memory.swap.current": "0\n", "memory.swap.max": "50\n",
		"memory.stat":         "anon 400\nfile 500\nkernel 30\nfile_mapped 7\npgfault 9\npgmajfault 2\ninactive_file 600\n",
		"memory.events.local": "max 11\n",
		"memory.events":       "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n",
		"pids.current":        "3\n", "pids.max": "10\n",
		"io.stat":             "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n7:1\n",
		"cpu.pressure":        "some avg10=1.50 avg60=0.00 avg300=0.25 total=99\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=5\n",
		"hugetlb.2MB.current": "4\n", "hugetlb.2MB.events": "max 5\n",
	})
	kept := newKept(t)
	got := kept.V2(dir, core.StatsUsage|core.StatsDetail)
	got.At = time.Time{}
	k := core.Known
	want := core.Stats{
		CPU: core.CPUStats{Usage: k(10000), User: k(6000), System: k(4000), Periods: k(1), Throttled: k(0), ThrottledNS: k(2000)},
		Memory: core.MemoryStats{
			Usage: k(1000), WorkingSet: k(400), RSS: k(400), Cache: k(500), Peak: k(1100), Swap: k(0), SwapLimit: k(50), Kernel: k(30), Mapped: k(7),
			Faults: k(9), MajorFaults: k(2), FailCount: k(11), OOMKills: k(2),
			Raw: map[string]uint64{"anon": 400, "file": 500, "kernel": 30, "file_mapped": 7, "pgfault": 9, "pgmajfault": 2, "inactive_file": 600},
		},
		Pids:     core.PidsStats{Current: k(3), Limit: k(10)},
		IO:       []core.IOStats{{Major: 8, ReadBytes: 1, WriteBytes: 2, Reads: 3, Writes: 4}},
		Huge:     map[string]core.HugeStats{"2MB": {Usage: 4, Failures: 5}},
		Pressure: map[string]core.PressureStat{"cpu": {Some: core.PressureLine{Avg10: 1.5, Avg300: .25, Total: 99}, Full: core.PressureLine{Avg10: .5, Total: 5}}},
	}
	if d := cmp.Diff(want, got, anyDevice); d != "" {
		t.Error(d)
	}
	sameButForDetails(t, want, kept.V2(dir, core.StatsCommon))
	sameTasks(t, kept.V2(dir, core.StatsCommon), kept.V2(dir, core.StatsTasks))
	got = kept.V2(dir, core.StatsUsage)
	got.At = time.Time{}
	want.Pids, want.IO, want.Huge = core.PidsStats{}, nil, nil
	want.Memory.Peak, want.Memory.FailCount, want.Memory.OOMKills, want.Memory.Raw = core.Value{}, core.Value{}, core.Value{}, nil
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("usage only: %s", d)
	}
}

func TestAFileOfAnyLengthIsReadWhole(t *testing.T) {
	long := strings.Repeat("key 1\n", 4<<10) + "last 7"
	dir := write(t, map[string]string{"f": long, "empty": ""})
	r := newReader(usual)
	if b, err := File(filepath.Join(dir, "f")); err != nil || string(b) != long {
		t.Errorf("%d bytes of %d, %v", len(b), len(long), err)
	}
	if _, err := File(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if b, ok := r.read(dir, "f"); !ok || string(b) != long {
		t.Errorf("%d bytes of %d, %t", len(b), len(long), ok)
	}
	if v := of(r.keys(dir, "f"), "last"); v != core.Known(7) {
		t.Errorf("last key: %+v", v)
	}
	if v := r.number(dir, "empty"); v.OK {
		t.Errorf("an empty file is %+v", v)
	}
	for text, want := range map[string]core.Value{
		"18446744073709551615\n": core.Known(1<<64 - 1), "18446744073709551616": {}, "-1": {}, "max": {}, "1 2": {}, "": {}, "0": core.Known(0),
	} {
		if got := number(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func BenchmarkUsage(b *testing.B) {
	dir := b.TempDir()
	for name, content := range map[string]string{
		"cpuacct.usage": "900\n", "memory.usage_in_bytes": "1000\n", "memory.limit_in_bytes": "2000\n", "memory.memsw.usage_in_bytes": "1200\n",
		"memory.memsw.limit_in_bytes": "9223372036854771712\n", "memory.stat": strings.Repeat("some_key 123456\n", 60) + "total_inactive_file 300\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			b.Fatal(err)
		}
	}
	for name, kept := range map[string]*Kept{"opened": nil, "kept": newKept(b)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				kept.V1(func(string) string { return dir }, core.StatsUsage)
			}
		})
	}
}

func TestWhatIsNotThereIsNotMeasured(t *testing.T) {
	for name, s := range map[string]core.Stats{"v1": newKept(t).V1(func(string) string { return "" }, ^core.StatsFields(0)), "v2": newKept(t).V2(t.TempDir(), ^core.StatsFields(0))} {
		s.At = time.Time{}
		if d := cmp.Diff(core.Stats{}, s); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestProcess(t *testing.T) {
	list, err := Processes(t.Context(), []int{1 << 30, os.Getpid()}, true)
	if len(list) != 1 {
		t.Fatalf("of nobody and this process: %+v, %v", list, err)
	}
	p := list[0]
	if err != nil || p.Threads == 0 || p.RSS == 0 || p.Comm == "" || p.Pid != os.Getpid() || p.Files.N < 3 || !p.Sockets.OK {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := newReader(usual).process(1<<30, true); !errdefs.IsNotFound(err) {
		t.Errorf("nobody: %v", err)
	}
	p, err = parseStat([]byte("7 (a) b (c)) S 1 1 1 0 -1 0 0 0 0 0 5 6 0 0 20 0 3 0 100 200 300"))
	if err != nil || p.Comm != "a) b (c)" || p.User != 5e7 || p.System != 6e7 || p.Threads != 3 || p.RSS != 300*uint64(os.Getpagesize()) {
		t.Errorf("%+v, %v", p, err)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("7 (a) S 1 1 1 0 -1 0 0 0 0 0 5 6 0 0 20 0 3 0 100 200 300")
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := parseStat([]byte(s)); err != nil && !errdefs.IsDataLoss(err) {
			t.Error(err)
		}
	})
}

func FuzzPressure(f *testing.F) {
	f.Add("some avg10=1.50 avg60=0.00 avg300=0.25 total=99\nfull avg10=0.50")
	f.Fuzz(func(_ *testing.T, s string) { pressure(s); keys([]byte(s)) })
}
