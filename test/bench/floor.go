package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/plan"
	"github.com/longshore/longshore/test/bench/machine"
)

// floor measures the kernel's own cost of a pod: a network namespace, a veth on a bridge, cgroups,
// an overlay, clone, mounts, pivot_root, exec and exit, by the shortest program that does it.
// Nothing is recorded, logged, confined or reported.
func (b *bench) floor(ctx context.Context) error {
	if !b.ours() {
		return nil
	}
	f, err := b.newFloor()
	if err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	defer f.close()
	var took []time.Duration
	used := ownCPU()
	for range b.pods {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		t, err := f.pod()
		if err != nil {
			return fmt.Errorf("floor: %w", err)
		}
		took = append(took, t)
	}
	b.row("", "the kernel's floor of a pod", took)
	cpu := ms(ownCPU()-used) / float64(b.pods)
	b.value("", "CPU per pod, the floor's", cpu, "ms, start to gone")
	b.mu.Lock()
	defer b.mu.Unlock()
	if life := b.samples[cpuLife]; len(life) > 0 && cpu > 0 {
		fmt.Printf("%-28s %8.2f times the floor\n", "CPU per pod, start to gone", life[len(life)-1]/cpu)
	}
	if b.started > 0 {
		fmt.Printf("%-28s %8.2f times the floor (p50)\n", "pod start", float64(b.started)/float64(middle(took)))
	}
	return nil
}

// ownCPU is our CPU time and that of our ended children.
func ownCPU() (used time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			used += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return used
}

const floorBridge = "floor0"

// floor has the objects before the first pod.
type floor struct {
	dir, image string
	cgroups    []string
	bridge     netlink.Link
	plan       []byte
	pods       int // made so far
}

func (b *bench) newFloor() (_ *floor, err error) {
	f := &floor{dir: filepath.Join(b.server.State, "floor")}
	f.image = filepath.Join(f.dir, "image")
	for _, d := range []string{"image/bin", "image/proc", "image/sys", "image/dev", "upper", "work", "root"} {
		if err := os.MkdirAll(filepath.Join(f.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(f.image, "bin", "true"), busybox, 0o755); err != nil {
		return nil, err
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if dir := "/sys/fs/cgroup/" + c; os.Chdir(dir) == nil {
			f.cgroups = append(f.cgroups, filepath.Join(dir, machine.Name()+"-floor"))
		}
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: floorBridge}}); err != nil {
		return nil, err
	}
	if f.bridge, err = netlink.LinkByName(floorBridge); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(f.bridge); err != nil {
		return nil, err
	}
	host, err := compile.ReadHost()
	if err != nil {
		return nil, err
	}
	out, err := compile.Container(compile.Input{ID: "floor", Root: filepath.Join(f.dir, "root"), Host: host, Cgroup: compile.Cgroup{Dirs: f.cgroups}, Spec: &specs.Spec{
		Version: specs.Version, Root: &specs.Root{}, Process: &specs.Process{Args: []string{"/bin/true"}, Cwd: "/"},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc"}, {Destination: "/dev", Type: "tmpfs", Options: []string{"mode=755"}}, {Destination: "/sys", Type: "sysfs"},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}, {Type: specs.UTSNamespace}, {Type: specs.IPCNamespace}}},
	}})
	f.plan = out.Plan
	return f, err
}

func (f *floor) close() { _ = netlink.LinkDel(f.bridge) }

// pod makes one on a thread of its own, which dies with its network namespace.
func (f *floor) pod() (took time.Duration, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		took, err = f.onThread()
	}()
	<-done
	return took, err
}

func (f *floor) onThread() (took time.Duration, err error) {
	t := time.Now()
	ours, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Close(ours) }()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return 0, err
	}
	if err := f.connect(ours); err != nil {
		return 0, err
	}
	for i, c := range f.cgroups {
		if err := os.Mkdir(c, 0o755); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, unix.Rmdir(c)) }()
		limit := []struct{ file, value string }{{"cpu.shares", "102"}, {"memory.limit_in_bytes", "134217728"}, {"pids.max", "1000"}}[i]
		if err := os.WriteFile(filepath.Join(c, limit.file), []byte(limit.value), 0o600); err != nil {
			return 0, err
		}
	}
	root := filepath.Join(f.dir, "root")
	if err := unix.Mount("overlay", root, "overlay", 0, "lowerdir="+f.image+",upperdir="+f.dir+"/upper,workdir="+f.dir+"/work"); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unix.Unmount(root, unix.MNT_DETACH)) }()
	if err := f.run(); err != nil {
		return 0, err
	}
	return time.Since(t), nil
}

// connect makes the veth, one end on the bridge of the namespace ours.
func (f *floor) connect(ours int) error {
	inside, err := netlink.NewHandle()
	if err != nil {
		return err
	}
	defer inside.Close()
	f.pods++ // the kernel takes its time with the links of those that have ended
	peer := fmt.Sprintf("floor-%d", f.pods)
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: peer, PeerNamespace: netlink.NsFd(ours)}
	if err := inside.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	eth, err := inside.LinkByName("eth0")
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 254, 0, 2), Mask: net.CIDRMask(24, 32)}}
	if err := errors.Join(inside.AddrAdd(eth, addr), inside.LinkSetUp(eth), inside.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: net.IPv4(10, 254, 0, 1)})); err != nil {
		return fmt.Errorf("address: %w", err)
	}
	done := make(chan error)
	go func() { // on a thread that has stayed outside
		link, err := netlink.LinkByName(peer)
		if err == nil {
			err = errors.Join(netlink.LinkSetMaster(link, f.bridge), netlink.LinkSetUp(link))
		}
		done <- err
	}()
	return <-done
}

// run starts the container and waits for its end.
func (f *floor) run() error {
	mem, err := unix.Mmap(-1, 0, len(f.plan), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(mem) }()
	copy(mem, f.plan)
	placed, err := plan.Place(mem)
	if err != nil {
		return err
	}
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = null.Close() }()
	fd := int(null.Fd())
	child, err := fork.Start(placed, fork.Files{Stdin: fd, Stdout: fd, Stderr: fd, Park: -1, Console: -1, Target: -1})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(child.PidFD) }()
	if err := child.Outcome(placed); err != nil {
		return err
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(child.Pid, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
		return fmt.Errorf("ended with %d: %w", ws.ExitStatus(), err)
	}
	return nil
}
