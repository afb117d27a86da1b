package guest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// fake returns a machine with a directory as its kernel, and the calls to that.
func fake(t testing.TB, files map[string]string) (m *Machine, dir string, calls *[]string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		put(t, filepath.Join(dir, name), text)
	}
	calls = new([]string)
	m = New()
	m.sysfs, m.procfs, m.shared, m.dev = dir+"/sys", dir+"/proc", dir+"/shared", dir+"/dev"
	called := func(call string) error {
		*calls = append(*calls, call)
		return nil
	}
	m.kernel.swapOn = func(path string) error { return called("swapon " + path) }
	m.kernel.entropy = func(data []byte) error { return called("entropy " + string(data)) }
	m.kernel.setClock = func(seconds, micros int64) error {
		return called("clock " + time.Unix(seconds, micros*1000).UTC().Format(time.RFC3339Nano))
	}
	m.kernel.program = func(_ context.Context, stdin []byte, path string, args ...string) ([]byte, error) {
		return stdin, called(strings.Join(append([]string{path}, args...), " "))
	}
	return m, dir, calls
}

func put(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func content(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(b))
}

func TestTheKernelIsTold(t *testing.T) {
	m, dir, calls := fake(t, map[string]string{"sys/devices/system/memory/probe": ""})
	for _, tt := range []struct {
		name string
		do   func() error
		want string // "" is InvalidArgument
	}{
		{"a time", func() error { return m.SetClock(1e9, 5) }, "clock 2001-09-09T01:46:40.000005Z"},
		{"a time before all", func() error { return m.SetClock(-1, 0) }, ""},
		{"a second of microseconds", func() error { return m.SetClock(1, 1e6) }, ""},
		{"entropy", func() error { return m.AddEntropy([]byte("dice")) }, "entropy dice"},
		{"no entropy", func() error { return m.AddEntropy(nil) }, ""},
		{"too much entropy", func() error { return m.AddEntropy(make([]byte, maxEntropy+1)) }, ""},
		{"a swap file", func() error { return m.AddSwap("/swap") }, "swapon /swap"},
		{"a swap file somewhere", func() error { return m.AddSwap("swap") }, ""},
		{"a module", func() error { return m.LoadModule(t.Context(), "dummy", []string{"numdummies=2", "-r"}) }, "/sbin/modprobe -v -- dummy numdummies=2 -r"},
		{"an option for a module", func() error { return m.LoadModule(t.Context(), "-r", nil) }, ""},
		{"no module", func() error { return m.LoadModule(t.Context(), "", nil) }, ""},
	} {
		*calls = nil
		err := tt.do()
		if got := strings.Join(*calls, "; "); got != tt.want || (err != nil) != (tt.want == "") || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %q, %v; want %q", tt.name, got, err, tt.want)
		}
	}
	if err := m.ProbeMemory([]uint64{0x8000000, 0xabc0000000}); err != nil {
		t.Error(err)
	}
	if got := content(t, dir+"/sys/devices/system/memory/probe"); got != "0xABC0000000" {
		t.Errorf("the last address is %q", got)
	}
	if out, err := m.SetPacketFilter(t.Context(), true, []byte("*filter")); err != nil || string(out) != "*filter" || (*calls)[len(*calls)-1] != "/usr/sbin/ip6tables-restore --wait 5" {
		t.Errorf("ip6tables: %q, %v, %q", out, err, *calls)
	}
	m.kernel.program = runProgram
	if _, err := m.tool(t.Context(), nil, "no-such-program"); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a program that there is not: %v", err)
	}
	if _, err := runProgram(t.Context(), nil, "/bin/sh", "-c", "echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("a program that fails: %v", err)
	}
	if out, err := runProgram(t.Context(), []byte("in"), "/bin/cat"); err != nil || !bytes.Equal(out, []byte("in")) {
		t.Errorf("cat: %q, %v", out, err)
	}
}

func TestProcessorsAndMemoryArePluggedIn(t *testing.T) {
	m, dir, _ := fake(t, map[string]string{
		"sys/devices/system/cpu/cpu0/topology/x":       "", // cannot be switched off
		"sys/devices/system/cpu/cpu1/online":           "1\n",
		"sys/devices/system/cpu/cpu2/online":           "0\n",
		"sys/devices/system/cpu/cpu3/online":           "0\n",
		"sys/devices/system/cpu/cpufreq/x":             "",
		"sys/devices/system/memory/memory0/online":     "1\n",
		"sys/devices/system/memory/memory9/online":     "0\n",
		"sys/devices/system/memory/auto_online_blocks": "",
		"sys/fs/cgroup/cpuset/cpuset.cpus":             "0-1\n",
		"sys/fs/cgroup/cpuset/ours/cpuset.cpus":        "0-1\n",
		"sys/fs/cgroup/cpuset/ours/a/cpuset.cpus":      "0-1\n",
		"sys/fs/cgroup/cpuset/ours/b/cpuset.cpus":      "1\n",
		"sys/fs/cgroup/cpuset/other/cpuset.cpus":       "0-1\n",
	})
	m.Groups, m.PlugTime, m.cpuTime = "/ours", 0, 100*time.Millisecond
	if err := m.OnlineCPUs(t.Context(), 2); err != nil || content(t, dir+"/sys/devices/system/cpu/cpu2/online") != "0" {
		t.Errorf("two processors, which there are: %v", err)
	}
	if err := m.OnlineCPUs(t.Context(), 9); err == nil {
		t.Error("nine processors were found")
	}
	if got := content(t, dir+"/sys/devices/system/cpu/cpu3/online"); got != "1" {
		t.Errorf("after the wish for nine processor 3 is %q", got)
	}
	before := m.cpuset("")
	put(t, dir+"/sys/devices/system/cpu/online", "0-3\n")
	if err := m.widen(t.Context(), before); err == nil {
		t.Error("the cgroups' root has not got the new processors, and nobody says so")
	}
	m.cpuTime = time.Minute
	widened := make(chan error, 1)
	go func() { widened <- m.widen(t.Context(), before) }()
	put(t, dir+"/sys/fs/cgroup/cpuset/cpuset.cpus", "0-3\n") // as the kernel does a moment later
	if err := <-widened; err != nil {
		t.Error(err)
	}
	for name, want := range map[string]string{"ours": "0-3", "ours/a": "0-3", "ours/b": "1", "other": "0-1"} {
		if got := content(t, filepath.Join(dir, "sys/fs/cgroup/cpuset", name, "cpuset.cpus")); got != want {
			t.Errorf("%s has the processors %q, want %q", name, got, want)
		}
	}
	if err := m.OnlineMemory(); err != nil || content(t, dir+"/sys/devices/system/memory/memory9/online") != "1" {
		t.Errorf("memory: %v", err)
	}
	if got := content(t, dir+"/sys/devices/system/memory/auto_online_blocks"); got != "online" {
		t.Errorf("memory that comes later is %s", got)
	}
	// A processor that is still coming is waited for.
	m.PlugTime = time.Minute
	done := make(chan error, 1)
	go func() { done <- m.OnlineCPUs(t.Context(), 5) }()
	put(t, dir+"/sys/devices/system/cpu/cpu4/online", "0\n")
	if err := <-done; err != nil {
		t.Errorf("a processor that comes late: %v", err)
	}
}

func TestDisksArePluggedIn(t *testing.T) {
	m, dir, _ := fake(t, map[string]string{
		"sys/devices/pci0000:00/0000:00:02.0/0000:01:00.0/virtio3/block/vdb/size": "", "dev/vdb": "",
		"sys/devices/pci0000:00/0000:00:05.0/virtio4/block/vdc/size": "", "dev/vdc": "",
		"sys/class/scsi_host/host0/scan": "", "sys/bus/scsi/devices/0:0:4:1/block/sda/size": "", "dev/sda": "",
	})
	m.PlugTime = 10 * time.Millisecond
	find := disks{m.sysfs, m.dev, m.PlugTime}
	for path, want := range map[string]string{"02/00": "/dev/vdb", "02.0/00.0": "/dev/vdb", "05": "/dev/vdc", "/dev/vdc": "/dev/vdc"} {
		if got, err := find.blockDisk(t.Context(), path); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	if got, err := find.scsiDisk(t.Context(), "4:1"); err != nil || got != "/dev/sda" || content(t, dir+"/sys/class/scsi_host/host0/scan") != "0 4 1" {
		t.Errorf("SCSI: %q, %v", got, err)
	}
	for _, none := range []string{"03/00", "02/01", "/dev/vdz"} {
		if _, err := find.blockDisk(t.Context(), none); !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", none, err)
		}
	}
	for _, bad := range []string{"", "x", "20/00", "02/", "02/00/../..", "/dev/../etc/passwd", "/etc/passwd", "02.8", "*"} {
		if _, err := find.blockDisk(t.Context(), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "1", "1:x", "*:1", "1:2:3"} {
		if _, err := find.scsiDisk(t.Context(), bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("SCSI %q: %v", bad, err)
		}
	}
	m.PlugTime = time.Minute
	done := make(chan error, 1)
	go func() {
		_, err := m.DiskAt(t.Context(), "07/00")
		done <- err
	}()
	put(t, dir+"/dev/vdd", "")
	put(t, dir+"/sys/devices/pci0000:00/0000:00:07.0/0000:02:00.0/virtio5/block/vdd/size", "")
	if err := <-done; err != nil {
		t.Errorf("a disk that comes late: %v", err)
	}
}

// FuzzPCIPath: no path of the shim's leads out of the root bus' directory.
func FuzzPCIPath(f *testing.F) {
	for _, s := range []string{"02/00", "02.0/1f.7", "../..", "*", "02//00", "20/00/02"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := pciPattern(s)
		if err == nil && (strings.Contains(p, "..") || !strings.HasPrefix(p, "devices/pci0000:") || strings.Count(p, "/")-strings.Count(s, "/") > 2 || strings.ContainsAny(p, "*?\\")) {
			t.Errorf("%q is %q", s, p)
		}
	})
}

func TestHooksAreFound(t *testing.T) {
	m, dir, _ := fake(t, map[string]string{"hooks/prestart/b": "", "hooks/prestart/a": "", "hooks/prestart/no": "", "hooks/poststop/z": "", "hooks/poststart/d/x": ""})
	for _, name := range []string{"prestart/a", "prestart/b", "poststop/z"} {
		if err := os.Chmod(filepath.Join(dir, "hooks", name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("a", filepath.Join(dir, "hooks/prestart/link")); err != nil {
		t.Fatal(err)
	}
	h, err := m.FindHooks(dir + "/hooks")
	if got := strings.ReplaceAll(strings.Join(append(h.Prestart, h.Poststop...), " "), dir+"/hooks/", ""); err != nil || got != "prestart/a prestart/b poststop/z" || len(h.Poststart) > 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if h, err := m.FindHooks(dir + "/none"); err != nil || len(h.Prestart) > 0 {
		t.Errorf("no directory: %+v, %v", h, err)
	}
}

func TestHugePages(t *testing.T) {
	m, dir, _ := fake(t, map[string]string{"sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages": "3\n"})
	file := dir + "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	release, err := m.pages.reserve(m.sysfs, 2<<20, 5)
	if err != nil || content(t, file) != "8" {
		t.Fatalf("%v, %q", err, content(t, file))
	}
	if err := release(); err != nil || content(t, file) != "3" {
		t.Errorf("%v, %q", err, content(t, file))
	}
	if _, err := m.pages.reserve(m.sysfs, 1<<30, 1); err == nil {
		t.Error("pages of a size that the kernel has not")
	}
	for options, want := range map[string][2]uint64{"pagesize=2Mi,size=10Mi": {2 << 20, 10 << 20}, "pagesize=2048K,size=4M,fsgid=5": {2 << 20, 4 << 20}, "pagesize=1G,size=1073741824": {1 << 30, 1 << 30}} {
		page, size, _, err := hugeOptions(strings.Split(options, ","))
		if err != nil || page != want[0] || size != want[1] {
			t.Errorf("%s: %d, %d, %v", options, page, size, err)
		}
	}
	for _, bad := range []string{"", "pagesize=2M", "pagesize=2M,size=1M", "pagesize=2X,size=4M", "size=4M", "pagesize=-1,size=4M", "x=1"} {
		if _, _, _, err := hugeOptions(strings.Split(bad, ",")); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestAHead(t *testing.T) {
	m, dir, _ := fake(t, map[string]string{"log": strings.Repeat("x", 5000), "odd": "a\xffb"})
	if got, err := m.Head(dir + "/log"); err != nil || len(got) != 4096 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := m.Head(dir + "/odd"); err != nil || got != "a\uFFFDb" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := m.Head(dir + "/none"); err != nil || got != "" {
		t.Errorf("%q, %v", got, err)
	}
	if err := os.Symlink("log", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{dir + "/link", dir} {
		if _, err := m.Head(bad); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

func TestMetrics(t *testing.T) {
	m, _, _ := fake(t, map[string]string{
		"proc/loadavg":             "0.50 0.25 0.10 2/77 1234\n",
		"proc/stat":                "cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 5\n",
		"proc/vmstat":              "nr_free_pages 12\n",
		"proc/meminfo":             "MemTotal:   100 kB\nActive(anon):  1 kB\nHugePages_Total:   3\nAnonHugePages: 2 kB\nSReclaimable: 4 kB\nDirectMap2M: 5 kB\nPercpu: 6 kB\nCommitted_AS: 7 kB\nNFS_Unstable: 0 kB\n",
		"proc/diskstats":           " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11\n",
		"proc/self/stat":           "9 (a b) c) S 1 9 9 0 -1 4 1 1 1 1 250 50 3 4 20 0 6 0 10 4096 2 0\n",
		"proc/self/status":         "Name:\tx\nVmRSS:\t  12 kB\nHugetlbPages:\t 0 kB\nvoluntary_ctxt_switches:\t8\n",
		"proc/self/io":             "rchar: 5\n",
		"proc/thread-self/net/dev": "Inter-|   Receive\n face |bytes\n  eth0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
	})
	got := m.Metrics()
	for _, want := range []string{
		"kata_agent_scrape_count 1\n", "kata_agent_threads 6\n", "kata_agent_total_time 3\n", "kata_agent_total_vm 4096\n", `kata_agent_proc_stat{item="cstime"} 4` + "\n",
		`kata_agent_proc_status{item="vmrss"} 12`, `kata_agent_proc_status{item="hugetlbpages"} 0`, `kata_agent_proc_status{item="voluntary_ctxt_switches"} 8`,
		`kata_agent_io_stat{item="rchar"} 5`, `kata_guest_load{item="load15"} 0.10`, `kata_guest_tasks{item="cur"} 2`, `kata_guest_tasks{item="max"} 77`,
		`kata_guest_cpu_time{cpu="total",item="user"} 1`, `kata_guest_cpu_time{cpu="0",item="guest_nice"} 10`, `kata_guest_vm_stat{item="nr_free_pages"} 12`,
		`kata_guest_meminfo{item="mem_total"} 102400`, `{item="active_anon"} 1024`, `{item="hugepages_total"} 3`, `{item="anon_hugepages"} 2048`, `{item="s_reclaimable"} 4096`,
		`{item="direct_map_2M"} 5120`, `{item="per_cpu"} 6144`, `{item="committed_as"} 7168`, `{item="nfs_unstable"} 0`,
		`kata_guest_diskstat{disk="vda",item="reads"} 1`, `{disk="vda",item="weighted_time_in_progress"} 11`, `kata_guest_netdev_stat{interface="eth0",item="sent_compressed"} 16`,
		"# TYPE kata_guest_meminfo gauge\n", "# TYPE kata_guest_filesystem_bytes gauge\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %s", want)
		}
	}
	if t.Failed() {
		t.Log(got)
	}
	if again := m.Metrics(); !strings.Contains(again, "kata_agent_scrape_count 2\n") {
		t.Error("the second scrape is not counted")
	}
}
