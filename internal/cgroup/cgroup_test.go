package cgroup

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/cgroup/device"
	"github.com/longshore/longshore/internal/core"
)

const (
	hybridMounts = `22 1 0:20 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
23 22 0:21 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
24 22 0:22 / /sys/fs/cgroup/memory rw shared:5 - cgroup cgroup rw,memory
25 22 0:22 / /mnt/memory rw - cgroup cgroup rw,memory
26 22 0:23 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
27 22 0:24 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
garbage
`
	unifiedMounts = "27 22 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n28 22 0:25 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n"
)

func tree(t *testing.T, mounts string) *Tree {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mountinfo")
	if err := os.WriteFile(path, []byte(mounts), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := New(Options{Mountinfo: path})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLayout(t *testing.T) {
	h := tree(t, hybridMounts)
	if h.Mode() != core.CgroupHybrid || len(h.layout.v1) != 3 || h.layout.unified != "/sys/fs/cgroup/unified" {
		t.Errorf("%+v", h.layout)
	}
	ref := core.CgroupRef{Path: "/a", Adopted: map[string]string{"cpuacct": "/x/y/"}}
	if dir, ok := h.layout.v1Dir(ref, "cpu"); dir != "/x/y" || !ok {
		t.Errorf("cpu lives with cpuacct: %s", dir)
	}
	if dir, _ := h.layout.v1Dir(ref, "memory"); dir != "/sys/fs/cgroup/memory/a" {
		t.Errorf("memory: %s", dir)
	}
	if _, ok := h.layout.v1Dir(ref, "pids"); ok {
		t.Error("a controller out of nothing")
	}
	want := []string{"/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/systemd/a", "/sys/fs/cgroup/unified/a"}
	if got := h.layout.owned(ref); !slices.Equal(got, want) {
		t.Errorf("owned %v", got)
	}
	if u := tree(t, unifiedMounts); u.Mode() != core.CgroupV2 || len(u.layout.v1) != 0 {
		t.Errorf("%+v", u.layout)
	}
	if _, err := parseLayout(strings.NewReader("1 1 0:1 / / rw - ext4 /dev/sda rw\n")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without cgroups: %v", err)
	}
	if l, err := parseLayout(strings.NewReader("1 1 0:1 / /my\\040cg rw - cgroup cgroup rw,pids\n")); err != nil || l.mode != core.CgroupV1 || l.v1[0].mount != "/my cg" {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestWritableCgroupsNeedNsdelegate(t *testing.T) {
	for mounts, want := range map[string]string{
		hybridMounts:  "this node has hybrid",
		unifiedMounts: "remount,nsdelegate /sys/fs/cgroup",
		"27 22 0:24 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n": "",
	} {
		err := Delegating{tree(t, mounts)}.Writable()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v; want %q", mounts, err, want)
		}
	}
}

func TestPlace(t *testing.T) {
	h, u := tree(t, hybridMounts), tree(t, unifiedMounts)
	above := core.CgroupRef{Path: "/longshore/sb"}
	for _, c := range []struct {
		tree   *Tree
		parent core.Cgroup
		above  core.CgroupRef
		want   core.CgroupRef // zero: InvalidArgument
	}{
		{h, core.Cgroup{}, core.CgroupRef{}, core.CgroupRef{Path: "/longshore/n"}},
		{h, core.Cgroup{}, above, core.CgroupRef{Path: "/longshore/sb/n"}},
		{h, core.Cgroup{Parent: "/kubepods/pod1"}, above, core.CgroupRef{Path: "/kubepods/pod1/n"}},
		{h, core.Cgroup{Parent: "kubepods//pod1/"}, above, core.CgroupRef{Path: "/kubepods/pod1/n"}},
		{h, core.Cgroup{Parent: "/"}, above, core.CgroupRef{Path: "/n"}},
		{h, core.Cgroup{Parent: "/a/../b"}, above, core.CgroupRef{}},
		{u, core.Cgroup{Parent: "a-b.slice:cri:x"}, above, core.CgroupRef{Path: "/a.slice/a-b.slice/cri-x.scope"}},
		{u, core.Cgroup{Parent: ":cri:"}, above, core.CgroupRef{Path: "/system.slice/cri-n.scope"}},
		{u, core.Cgroup{Parent: "a.slice::s.slice"}, above, core.CgroupRef{Path: "/a.slice/s.slice"}},
		{u, core.Cgroup{Parent: "kubepods-pod1.slice"}, above, core.CgroupRef{Path: "/kubepods.slice/kubepods-pod1.slice/longshore-n.scope"}},
		{u, core.Cgroup{Parent: "a.slice:x:y/../z"}, above, core.CgroupRef{}},
		{u, core.Cgroup{Parent: "a--b.slice"}, above, core.CgroupRef{}},
		{h, core.Cgroup{Adopt: map[string]string{"memory": "/x"}}, above, core.CgroupRef{Path: "/longshore/sb/n", Adopted: map[string]string{"memory": "/x"}}},
		{h, core.Cgroup{Adopt: map[string]string{"memory": "/x", "cpu": "/y"}}, above, core.CgroupRef{Adopted: map[string]string{"memory": "/x", "cpu": "/y"}}},
		{h, core.Cgroup{Adopt: map[string]string{"memory": "x"}}, above, core.CgroupRef{}},
		{u, core.Cgroup{Adopt: map[string]string{"": "/sys/fs/cgroup/nomad.slice/t.scope"}}, above, core.CgroupRef{Path: "/nomad.slice/t.scope", Adopted: map[string]string{"": "/sys/fs/cgroup/nomad.slice/t.scope"}}},
		{u, core.Cgroup{Adopt: map[string]string{"": "/tmp/x"}}, above, core.CgroupRef{}},
		{u, core.Cgroup{Adopt: map[string]string{"cpu": "/tmp/x"}}, above, core.CgroupRef{}},
	} {
		got, err := c.tree.Place(c.parent, c.above, "n")
		if c.want.IsZero() {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%+v: %+v, %v", c.parent, got, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c.parent, err)
		} else if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%+v: %s", c.parent, d)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\n"} {
		if _, err := h.Place(core.Cgroup{}, above, name); !errdefs.IsInvalidArgument(err) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if path, err := ExpandSlice("-.slice"); path != "" || err != nil {
		t.Errorf("the root slice: %q, %v", path, err)
	}
}

func ptr[T any](v T) *T { return &v }

func full() *specs.LinuxResources {
	dev := []specs.LinuxThrottleDevice{{Rate: 77}}
	dev[0].Major, dev[0].Minor = 8, 1
	return &specs.LinuxResources{
		CPU:            &specs.LinuxCPU{Shares: ptr[uint64](1024), Quota: ptr[int64](50000), Period: ptr[uint64](100000), Cpus: "0-1", Mems: "0", Burst: ptr[uint64](5)},
		Memory:         &specs.LinuxMemory{Limit: ptr[int64](100), Swap: ptr[int64](150), Reservation: ptr[int64](50)},
		Pids:           &specs.LinuxPids{Limit: ptr[int64](-1)},
		BlockIO:        &specs.LinuxBlockIO{Weight: ptr[uint16](500), ThrottleReadBpsDevice: dev},
		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 0}, {Pagesize: "1GB", Limit: 9}},
		Rdma:           map[string]specs.LinuxRdma{"mlx": {HcaHandles: ptr[uint32](3)}},
	}
}

func text(settings []setting) []string {
	var out []string
	for _, s := range settings {
		line := s.file + "=" + s.value
		if s.idle {
			line += " idle"
		}
		out = append(out, line)
	}
	return out
}

func TestV1Settings(t *testing.T) {
	want := []string{
		"cpu.shares=1024", "cpu.cfs_period_us=100000", "cpu.cfs_quota_us=50000", "cpu.cfs_burst_us=5", "cpuset.cpus=0-1", "cpuset.mems=0",
		"memory.limit_in_bytes=100", "memory.memsw.limit_in_bytes=150", "memory.soft_limit_in_bytes=50", "pids.max=max idle",
		"blkio.bfq.weight=500", "blkio.throttle.read_bps_device=8:1 77", "hugetlb.2MB.limit_in_bytes=0 idle", "hugetlb.1GB.limit_in_bytes=9",
		"rdma.max=mlx hca_handle=3",
	}
	if d := cmp.Diff(want, text(v1Settings(full()))); d != "" {
		t.Error(d)
	}
}

func TestV2Settings(t *testing.T) {
	res := full()
	res.Unified = map[string]string{"memory.high": "90", "io.max": "8:0 rbps=1\n8:16 wbps=2\n"}
	got, err := v2Settings(res)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"cpu.weight=39", "cpu.max=50000 100000", "cpu.max.burst=5", "cpuset.cpus=0-1", "cpuset.mems=0",
		"memory.swap.max=50", "memory.max=100", "memory.low=50", "pids.max=max idle", "io.weight=default 4950", "io.max=8:1 rbps=77",
		"hugetlb.2MB.max=0 idle", "hugetlb.1GB.max=9", "rdma.max=mlx hca_handle=3",
		"io.max=8:0 rbps=1", "io.max=8:16 wbps=2", "memory.high=90",
	}
	if d := cmp.Diff(want, text(got)); d != "" {
		t.Error(d)
	}
	for name, bad := range map[string]*specs.LinuxResources{
		"swap below memory":    {Memory: &specs.LinuxMemory{Limit: ptr[int64](9), Swap: ptr[int64](5)}},
		"swap without memory":  {Memory: &specs.LinuxMemory{Swap: ptr[int64](5)}},
		"real time":            {CPU: &specs.LinuxCPU{RealtimeRuntime: ptr[int64](5)}},
		"net_cls":              {Network: &specs.LinuxNetwork{ClassID: ptr[uint32](5)}},
		"a path":               {Unified: map[string]string{"../x.y": "1"}},
		"the tree's own files": {Unified: map[string]string{"cgroup.procs": "1"}},
	} {
		if _, err := v2Settings(bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPeriodAloneKeepsTheQuota(t *testing.T) {
	u := tree(t, unifiedMounts)
	u.layout.unified = t.TempDir()
	file := filepath.Join(u.layout.unified, "a", "cpu.max")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("max 100000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := u.Update(t.Context(), core.CgroupRef{Path: "/a"}, &specs.LinuxResources{CPU: &specs.LinuxCPU{Period: ptr[uint64](50000)}}); err != nil {
		t.Fatal(err)
	}
	if got, _ := readText(file); !strings.HasPrefix(got, "max 50000") {
		t.Errorf("cpu.max is %q", got)
	}
}

func TestWeightsComeBack(t *testing.T) {
	for shares, weight := range map[uint64]uint64{0: 0, 2: 1, 1024: 39, 262144: 10000, 1 << 40: 10000, 1: 1} {
		if got := CPUWeight(shares); got != weight {
			t.Errorf("%d shares weigh %d, want %d", shares, got, weight)
		}
	}
	for w := uint64(1); w <= 10000; w++ {
		if got := CPUWeight(CPUShares(w)); got != w {
			t.Fatalf("weight %d comes back as %d", w, got)
		}
	}
}

func TestMissingControllers(t *testing.T) {
	h := tree(t, hybridMounts)
	h.layout.v1[1].mount = t.TempDir()
	ref := core.CgroupRef{Path: "/a"}
	if err := os.MkdirAll(h.layout.v1[1].mount+"/a", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.limit(ref, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: ptr[int64](-1)}, HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB"}}}); err != nil {
		t.Errorf("no limit on what is not there: %v", err)
	}
	if err := h.limit(ref, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: ptr[int64](5)}}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "pids") {
		t.Errorf("a limit on what is not there: %v", err)
	}
	if err := h.limit(ref, &specs.LinuxResources{Unified: map[string]string{"a.b": "c"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unified on v1: %v", err)
	}
}

func TestV2ReadBack(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{
		"cpu.weight": "39\n", "cpu.max": "max 100000\n", "memory.max": "1000\n", "memory.swap.max": "500\n", "memory.low": "0\n", "pids.max": "max\n", "cpuset.cpus": "0-3\n",
		"hugetlb.2MB.max": "2097152\n", "hugetlb.1GB.max": "max\n", "hugetlb.2MB.rsvd.max": "5\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := v2Resources(dir)
	want := &specs.LinuxResources{
		CPU:    &specs.LinuxCPU{Shares: ptr(CPUShares(39)), Quota: ptr[int64](-1), Period: ptr[uint64](100000), Cpus: "0-3"},
		Memory: &specs.LinuxMemory{Limit: ptr[int64](1000), Swap: ptr[int64](1500), Reservation: ptr[int64](0)},
		Pids:   &specs.LinuxPids{Limit: ptr[int64](-1)}, Unified: map[string]string{"cpu.weight": "39"},

		HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 2 << 20}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestBadPathsAreRefused(t *testing.T) {
	h := tree(t, hybridMounts)
	for _, ref := range []core.CgroupRef{{}, {Path: "/"}, {Path: "a"}, {Path: "/a/../.."}, {Path: "/a/"}, {Adopted: map[string]string{"cpu": "x"}}} {
		if err := h.Kill(t.Context(), ref); !errdefs.IsInvalidArgument(err) {
			t.Errorf("kill %+v: %v", ref, err)
		}
		if err := h.Remove(t.Context(), ref); !ref.IsZero() && !errdefs.IsInvalidArgument(err) {
			t.Errorf("remove %+v: %v", ref, err)
		}
	}
	if err := h.Remove(t.Context(), core.CgroupRef{Path: h.Root()}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("remove of everything: %v", err)
	}
}

// units is a systemd that only remembers.
type units []string

func (u *units) StartSlice(_ context.Context, name string) error {
	*u = append(*u, "start "+name)
	return nil
}

func (u *units) StartService(_ context.Context, name, slice string) error {
	*u = append(*u, "start "+name+" in "+slice)
	return nil
}

func (u *units) StopUnit(_ context.Context, name string) error {
	*u = append(*u, "stop "+name)
	return nil
}

func TestSystemdMakesUnitsAndWeWhatIsBelow(t *testing.T) {
	c := tree(t, unifiedMounts)
	c.layout.unified = t.TempDir()
	var u units
	c.systemd, c.root = &u, systemdRoot
	place := func(parent string, above core.CgroupRef, name string) core.CgroupRef {
		t.Helper()
		ref, err := c.Place(core.Cgroup{Parent: parent}, above, name)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	pod := place("kubepods-pod1.slice", core.CgroupRef{}, "n")
	if want := "/kubepods.slice/kubepods-pod1.slice/longshore-n.service/tree"; pod.Path != want {
		t.Errorf("a sandbox goes to %s, not %s", pod.Path, want)
	}
	container := place("", pod, "c")
	named := place(":cri:x", core.CgroupRef{}, "n")
	own := place("", core.CgroupRef{}, "n")
	slice := place("a.slice::a-b.slice", core.CgroupRef{}, "n")
	plain := place("/plain", core.CgroupRef{}, "n")
	adopted := core.CgroupRef{Path: slice.Path, Adopted: map[string]string{"": c.layout.unified}}
	// Nobody makes the kernel's files in a plain directory.
	for _, dir := range []string{"", "/kubepods.slice", "/kubepods.slice/kubepods-pod1.slice", path.Dir(pod.Path), pod.Path, "/system.slice", path.Dir(named.Path), c.root, "/plain"} {
		dir = c.layout.unified + dir
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"cgroup.controllers", "cgroup.subtree_control"} {
			if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, ref := range []core.CgroupRef{pod, container, named, own, slice, plain, adopted} {
		_, err := c.make(t.Context(), ref)
		if err != nil {
			t.Errorf("make %s: %v", ref.Path, err)
		}
	}
	if len(u) != 2 { // the units' directories exist, as systemd leaves them
		t.Errorf("of what is there systemd was asked for %v", u)
	}
	for _, unit := range []string{unitOf(pod.Path), unitOf(named.Path), c.root} {
		if err := os.RemoveAll(c.layout.unified + unit); err != nil {
			t.Fatal(err)
		}
	}
	for _, ref := range []core.CgroupRef{pod, named, own} {
		_, _ = c.makeUnit(t.Context(), ref)
	}
	for _, ref := range []core.CgroupRef{container, pod, named, own, slice, adopted} {
		if err := c.removeUnit(t.Context(), ref); err != nil {
			t.Errorf("remove %s: %v", ref.Path, err)
		}
	}
	want := units{
		"start a.slice", "start a-b.slice",
		"start longshore-n.service in kubepods-pod1.slice", "start cri-x.service in system.slice", "start longshore-sandboxes.service in system.slice",
		"stop longshore-n.service", "stop cri-x.service", "stop a-b.slice",
	}
	if d := cmp.Diff(want, u); d != "" {
		t.Error(d)
	}
	if err := c.Release(t.Context()); err != nil || u[len(u)-1] != "stop longshore-sandboxes.service" {
		t.Errorf("release: %v, %v", err, u)
	}
}

// TestDeviceRulesBecomeAProgram: on v2, in their order.
func TestDeviceRulesBecomeAProgram(t *testing.T) {
	rules := []specs.LinuxDeviceCgroup{{Access: "rwm"}, {Allow: true, Type: "c", Major: ptr(int64(1)), Minor: ptr(int64(3)), Access: "rw"}}
	u := tree(t, unifiedMounts)
	if err := u.Devices(core.CgroupRef{Path: "/a"}, nil); err != nil {
		t.Errorf("no rules: %v", err)
	}
	for _, bad := range []specs.LinuxDeviceCgroup{{Type: "x"}, {Access: "wr"}, {Access: "rr"}} {
		if err := u.Devices(core.CgroupRef{Path: "/a"}, []specs.LinuxDeviceCgroup{bad}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	var got string
	u.program = func(dir string, rules []device.Rule) error {
		got = dir
		for _, r := range rules {
			got += fmt.Sprintf(" %t %s", r.Allow, r)
		}
		return nil
	}
	if err := u.Devices(core.CgroupRef{Path: "/a"}, rules); err != nil || got != "/sys/fs/cgroup/a false a *:* rwm true c 1:3 rw" {
		t.Errorf("%v, the program was given %q", err, got)
	}
}

func FuzzLayout(f *testing.F) {
	f.Add(hybridMounts)
	f.Fuzz(func(t *testing.T, s string) {
		l, err := parseLayout(strings.NewReader(s))
		if err == nil && l.mode == "" {
			t.Error("no mode")
		}
	})
}

// TestFormerUnitsAreStopped: an agent without systemd stops the units of one with systemd, and no
// others.
func TestFormerUnitsAreStopped(t *testing.T) {
	c := tree(t, unifiedMounts)
	c.layout.unified = t.TempDir()
	var u units
	c.former = &u
	const pod = "/kubepods.slice/kubepods-pod1.slice/"
	paths := []string{pod + "longshore-n.service/tree", pod + "longshore-gone.service/tree", pod + "other.service/tree", pod + "longshore-n.service/tree/c", "/kubepods.slice"}
	for _, p := range []string{paths[3], paths[2], systemdRoot + "/tree"} {
		if err := os.MkdirAll(c.layout.unified+p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(p string, want ...string) {
		t.Helper()
		u = nil
		if err := c.Remove(t.Context(), core.CgroupRef{Path: p}); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		if !slices.Equal(u, want) {
			t.Errorf("%s: systemd was asked for %v, wanted %v", p, u, want)
		}
	}
	remove(paths[3])
	remove(paths[0], "stop longshore-n.service")
	remove(paths[1])
	remove(paths[2])
	remove(paths[4])
	u = nil
	if err := c.Release(t.Context()); err != nil || !slices.Equal(u, []string{"stop longshore-sandboxes.service"}) {
		t.Errorf("release: %v, %v", u, err)
	}
	c.former = nil
	remove(paths[0])
}
