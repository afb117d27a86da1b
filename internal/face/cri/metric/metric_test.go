package metric

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
)

// asked are the names that the conformance suite wants described, which are
// those that kubelet tells with cadvisor.
const asked = `container_blkio_device_usage_total container_cpu_cfs_periods_total container_cpu_cfs_throttled_periods_total
container_cpu_cfs_throttled_seconds_total container_cpu_system_seconds_total container_cpu_usage_seconds_total container_cpu_user_seconds_total
container_file_descriptors container_fs_inodes_free container_fs_inodes_total container_fs_limit_bytes container_fs_reads_bytes_total
container_fs_reads_total container_fs_usage_bytes container_fs_writes_bytes_total container_fs_writes_total container_hugetlb_max_usage_bytes
container_hugetlb_usage_bytes container_last_seen container_memory_cache container_memory_failcnt container_memory_failures_total
container_memory_kernel_usage container_memory_mapped_file container_memory_max_usage_bytes container_memory_rss container_memory_swap
container_memory_usage_bytes container_memory_working_set_bytes container_network_receive_bytes_total container_network_receive_errors_total
container_network_receive_packets_dropped_total container_network_receive_packets_total container_network_transmit_bytes_total
container_network_transmit_errors_total container_network_transmit_packets_dropped_total container_network_transmit_packets_total
container_oom_events_total container_pressure_cpu_stalled_seconds_total container_pressure_cpu_waiting_seconds_total
container_pressure_io_stalled_seconds_total container_pressure_io_waiting_seconds_total container_pressure_memory_stalled_seconds_total
container_pressure_memory_waiting_seconds_total container_processes container_sockets container_spec_cpu_period container_spec_cpu_quota
container_spec_cpu_shares container_spec_memory_limit_bytes container_spec_memory_reservation_limit_bytes container_spec_memory_swap_limit_bytes
container_start_time_seconds container_threads container_threads_max container_ulimits_soft`

func TestDescriptorsAreThoseThatAreAskedFor(t *testing.T) {
	var got []string
	for _, d := range New().Descriptors() {
		got = append(got, d.Name)
		if d.Help == "" || !slices.IsSorted(d.LabelKeys) || len(slices.Compact(slices.Clone(d.LabelKeys))) != len(d.LabelKeys) || len(d.LabelKeys) < len(base) {
			t.Errorf("%v", d)
		}
	}
	slices.Sort(got)
	want := strings.Fields(asked)
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func full() *Object {
	k, n := core.Known, func(n int64) *int64 { return &n }
	u := func(n uint64) *uint64 { return &n }
	return &Object{
		Pod: &v1.PodSandboxMetadata{Name: "web", Namespace: "default"}, Container: "c", ID: "/kube/p/c", Name: "abc", Image: "redis:7", Started: time.Unix(50, 0), Main: 7,
		Stats: core.Stats{
			At:  time.Unix(100, 0),
			CPU: core.CPUStats{Usage: k(25e8), User: k(19e8), System: k(1e9), Periods: k(1), Throttled: k(2), ThrottledNS: k(3e9)},
			Memory: core.MemoryStats{
				Usage: k(10), WorkingSet: k(11), RSS: k(12), Cache: k(13), Peak: k(14), Swap: k(15), Kernel: k(16), Mapped: k(17),
				Faults: k(18), MajorFaults: k(19), FailCount: k(20), OOMKills: k(21), Raw: map[string]uint64{"total_rss": 12, "pgfault": 8, "pgmajfault": 9},
			},
			Pids: core.PidsStats{Current: k(30), Limit: k(31), Processes: k(2)},
			IO:   []core.IOStats{{Device: "sda", Major: 8, ReadBytes: 40, WriteBytes: 41, Reads: 42, Writes: 43}},
			Net:  []core.NetStats{{Name: "eth0", RxBytes: 50, RxPackets: 51, RxErrors: 52, RxDropped: 53, TxBytes: 54, TxPackets: 55, TxErrors: 56, TxDropped: 57}},
			Root: core.RootStats{Bytes: k(60), At: time.Unix(90, 0), Filesystem: core.FilesystemStats{Device: "/dev/sda1", Bytes: k(61), Inodes: k(62), FreeInodes: k(63)}},
			Processes: []core.ProcessStats{
				{Pid: 7, Files: k(3), Sockets: k(1), FileLimit: k(1024)}, {Pid: 8, Files: k(4), Sockets: k(2), FileLimit: k(2048)}, {Pid: 9},
			},
			Huge:     map[string]core.HugeStats{"2MB": {Usage: 70, Max: k(71)}, "1GB": {Usage: 72}},
			Pressure: map[string]core.PressureStat{"cpu": {Some: core.PressureLine{Total: 5e6}, Full: core.PressureLine{Total: 2e6}}},
			Limits: &specs.LinuxResources{
				CPU:    &specs.LinuxCPU{Period: u(100000), Quota: n(20000), Shares: u(1024)},
				Memory: &specs.LinuxMemory{Limit: n(80), Reservation: n(-1), Swap: n(90)},
			},
		},
	}
}

// told is each metric by name and the labels beside those that all have.
func told(o *Object) map[string]uint64 {
	s := New()
	keys := map[string][]string{}
	for _, d := range s.Descriptors() {
		keys[d.Name] = d.LabelKeys
	}
	got := map[string]uint64{}
	for _, m := range s.Of(o) {
		name := m.Name
		for i, k := range keys[m.Name] {
			if !slices.Contains(base[:], k) {
				name += " " + k + "=" + m.LabelValues[i]
			}
		}
		if _, twice := got[name]; twice {
			name = "twice: " + name
		}
		got[name] = m.Value.Value
	}
	return got
}

func TestFiguresBecomeMetrics(t *testing.T) {
	want := map[string]uint64{
		"container_cpu_usage_seconds_total cpu=total": 2, "container_cpu_user_seconds_total": 1, "container_cpu_system_seconds_total": 1,
		"container_cpu_cfs_periods_total": 1, "container_cpu_cfs_throttled_periods_total": 2, "container_cpu_cfs_throttled_seconds_total": 3,
		"container_memory_usage_bytes": 10, "container_memory_working_set_bytes": 11, "container_memory_rss": 12, "container_memory_cache": 13,
		"container_memory_max_usage_bytes": 14, "container_memory_swap": 15, "container_memory_kernel_usage": 16, "container_memory_mapped_file": 17,
		"container_memory_failures_total failure_type=pgfault scope=hierarchy": 18, "container_memory_failures_total failure_type=pgmajfault scope=hierarchy": 19,
		"container_memory_failures_total failure_type=pgfault scope=container": 8, "container_memory_failures_total failure_type=pgmajfault scope=container": 9,
		"container_memory_failcnt": 20, "container_oom_events_total": 21, "container_threads": 30, "container_threads_max": 31, "container_processes": 2,
		"container_blkio_device_usage_total device=/dev/sda major=8 minor=0 operation=Read": 40, "container_blkio_device_usage_total device=/dev/sda major=8 minor=0 operation=Write": 41,
		"container_fs_reads_bytes_total device=/dev/sda": 40, "container_fs_writes_bytes_total device=/dev/sda": 41,
		"container_fs_reads_total device=/dev/sda": 42, "container_fs_writes_total device=/dev/sda": 43,
		"container_network_receive_bytes_total interface=eth0": 50, "container_network_receive_packets_total interface=eth0": 51,
		"container_network_receive_errors_total interface=eth0": 52, "container_network_receive_packets_dropped_total interface=eth0": 53,
		"container_network_transmit_bytes_total interface=eth0": 54, "container_network_transmit_packets_total interface=eth0": 55,
		"container_network_transmit_errors_total interface=eth0": 56, "container_network_transmit_packets_dropped_total interface=eth0": 57,
		"container_fs_usage_bytes device=/dev/sda1": 60, "container_fs_limit_bytes device=/dev/sda1": 61,
		"container_fs_inodes_total device=/dev/sda1": 62, "container_fs_inodes_free device=/dev/sda1": 63,
		"container_file_descriptors": 7, "container_sockets": 3, "container_ulimits_soft ulimit=max_open_files": 1024,
		"container_hugetlb_usage_bytes pagesize=2MB": 70, "container_hugetlb_max_usage_bytes pagesize=2MB": 71, "container_hugetlb_usage_bytes pagesize=1GB": 72,
		"container_pressure_cpu_waiting_seconds_total": 5, "container_pressure_cpu_stalled_seconds_total": 2,
		"container_spec_cpu_period": 100000, "container_spec_cpu_quota": 20000, "container_spec_cpu_shares": 1024,
		"container_spec_memory_limit_bytes": 80, "container_spec_memory_reservation_limit_bytes": 0, "container_spec_memory_swap_limit_bytes": 90,
		"container_start_time_seconds": 50, "container_last_seen": 100,
	}
	if d := cmp.Diff(want, told(full())); d != "" {
		t.Error(d)
	}
	o := full()
	o.Stats.Memory.Raw = map[string]uint64{"anon": 12} // v2
	o.Stats.Limits.CPU.Quota = new(int64)
	o.Stats.Pids.Limit = core.Value{}
	got := told(o)
	if got["container_spec_memory_swap_limit_bytes"] != 10 || len(got) != len(want)-3 || got["container_threads_max"] != 0 {
		t.Errorf("on cgroup v2, without a quota: %d metrics, %v", len(got), got)
	}
}

// TestWhatIsNotMeasuredIsNotTold: no figures, no metrics.
func TestWhatIsNotMeasuredIsNotTold(t *testing.T) {
	if got := told(&Object{}); len(got) != 0 {
		t.Errorf("%v", got)
	}
	o := &Object{Stats: core.Stats{Processes: []core.ProcessStats{{Pid: 1, Threads: 3}, {Pid: 2, Threads: 2}}}}
	if d := cmp.Diff(map[string]uint64{"container_threads": 5}, told(o)); d != "" {
		t.Errorf("without a controller of pids: %s", d)
	}
}

func TestLabelsAndTimes(t *testing.T) {
	for _, m := range New().Of(full()) {
		cached := strings.HasPrefix(m.Name, "container_fs_") && !strings.Contains(m.Name, "s_total") && !strings.Contains(m.Name, "s_bytes_total") || m.Name == "container_fs_inodes_total"
		if want := map[bool]int64{true: 90e9}[cached]; m.Timestamp != want {
			t.Errorf("%s is of %d, want %d", m.Name, m.Timestamp, want)
		}
		if m.Name == "container_cpu_usage_seconds_total" {
			if d := cmp.Diff([]string{"c", "total", "/kube/p/c", "redis:7", "abc", "default", "web"}, m.LabelValues); d != "" {
				t.Error(d)
			}
		}
	}
}

// TestTextIsWhatPrometheusReads holds the text against the messages: the same
// metrics, labels and values, but for parts of seconds.
func TestTextIsWhatPrometheusReads(t *testing.T) {
	set := New()
	o, other := full(), full()
	o.Stats.CPU.Usage = core.Known(2_500_000_000)
	o.Image = "a\"b\\c\nd\xff"
	other.Container, other.Name = "second", "def"
	other.Stats.CPU = core.CPUStats{}
	var text strings.Builder
	if err := set.WriteText(&text, []*Object{o, other, {}}); err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text.String()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, text.String())
	}
	got, want := map[string]float64{}, map[string]float64{}
	for name, f := range families {
		if f.GetHelp() == "" || strings.Count(text.String(), "# TYPE "+name+" ") != 1 {
			t.Errorf("%s: help %q", name, f.GetHelp())
		}
		for _, m := range f.Metric {
			key := name
			for _, l := range m.Label {
				key += " " + l.GetName() + "=" + l.GetValue()
			}
			got[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	of := map[string]*v1.MetricDescriptor{}
	for _, d := range set.Descriptors() {
		of[d.Name] = d
	}
	for _, m := range slices.Concat(set.Of(o), set.Of(other)) {
		key := m.Name
		labels := map[string]string{}
		for i, k := range of[m.Name].LabelKeys {
			labels[k] = strings.ToValidUTF8(m.LabelValues[i], "\uFFFD")
		}
		order := slices.Concat(base[:], slices.DeleteFunc(slices.Clone(set.labelsOf(m.Name)), func(k string) bool { return slices.Contains(base[:], k) }))
		for _, k := range order {
			key += " " + k + "=" + labels[k]
		}
		want[key] = float64(m.Value.Value)
		if got[key] != want[key] && int(got[key]) == int(want[key]) {
			got[key] = want[key] // parts of seconds, below
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-messages +text):\n%s", d)
	}
	for _, part := range []string{
		`container_cpu_usage_seconds_total{container="c",id="/kube/p/c",image="a\"b\\c\nd\uFFFD",name="abc",namespace="default",pod="web",cpu="total"} 2.5`,
		`container_pressure_cpu_waiting_seconds_total{container="second",`, "# TYPE container_memory_rss gauge\n", "# TYPE container_memory_failcnt counter\n",
	} {
		if part = strings.ReplaceAll(part, `\uFFFD`, "\uFFFD"); !strings.Contains(text.String(), part) {
			t.Errorf("no %s in\n%s", part, text.String())
		}
	}
}

// labelsOf are those that a metric has beside the base.
func (s *Set) labelsOf(name string) []string {
	for _, m := range s.metrics {
		if m.name == name {
			return m.labels
		}
	}
	return nil
}

func TestTextTellsWhatItsWriterSays(t *testing.T) {
	r, w := io.Pipe()
	_ = r.CloseWithError(io.ErrShortWrite)
	if err := New().WriteText(w, []*Object{full()}); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%v", err)
	}
}

// TestFractionsOfSeconds shows that a metric in seconds has its fraction in double_value, and no other metric has one.
func TestFractionsOfSeconds(t *testing.T) {
	want := map[string]float64{
		"container_cpu_usage_seconds_total": 2.5, "container_cpu_user_seconds_total": 1.9, "container_cpu_system_seconds_total": 1,
		"container_cpu_cfs_throttled_seconds_total": 3, "container_pressure_cpu_waiting_seconds_total": 5, "container_pressure_cpu_stalled_seconds_total": 2,
	}
	got := map[string]float64{}
	for _, m := range New().Of(full()) {
		if m.DoubleValue == nil {
			continue
		}
		got[m.Name] = m.DoubleValue.Value
		if m.Value.GetValue() != uint64(m.DoubleValue.Value) {
			t.Errorf("%s: value %v, double_value %v", m.Name, m.Value, m.DoubleValue)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
