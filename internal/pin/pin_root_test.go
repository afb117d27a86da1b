package pin_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// makeNamespaces makes namespaces in a fork, as the keeper does.
func makeNamespaces(_ context.Context, uids, _ []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error) {
	var ids plan.IDMap
	for _, m := range uids {
		ids = append(ids, plan.IDRange{Inside: m.ContainerID, Outside: m.HostID, Size: m.Size})
	}
	var names []string
	for _, k := range kinds {
		names = append(names, map[specs.LinuxNamespaceType]string{"network": "net", "user": "user", "ipc": "ipc", "uts": "uts"}[k])
	}
	fds, err := fork.Namespaces(unix.CLONE_NEWNET|unix.CLONE_NEWUTS|unix.CLONE_NEWIPC, ids, ids, names...)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for _, fd := range fds {
		files = append(files, os.NewFile(uintptr(fd), "namespace"))
	}
	return files, nil
}

func newPins(t *testing.T) *pin.Pins {
	t.Helper()
	p, err := pin.New(pin.Options{Dir: "/run/ns", Make: makeNamespaces})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// inside runs fn on a thread that has entered the namespaces.
func inside(t *testing.T, fn func(), paths ...string) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for _, p := range paths {
			f, err := os.Open(p)
			if err != nil {
				t.Error(err)
				return
			}
			if err := unix.Setns(int(f.Fd()), 0); err != nil {
				t.Errorf("enter %s: %v", p, err)
			}
			_ = f.Close()
		}
		fn()
	}()
	<-done
}

func hostname(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Error(err)
	}
	return unix.ByteSliceToString(u.Nodename[:])
}

func TestPinsSurviveTheirThread(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { pinsSurvive(t) })
}

func pinsSurvive(t *testing.T) {
	p := newPins(t)
	before := hostname(t)
	req := core.PinRequest{
		Sandbox:  "sb1",
		Kinds:    []specs.LinuxNamespaceType{specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace},
		Hostname: "inside",
		Sysctls:  map[string]string{"net.ipv4.ip_forward": "1", "kernel.shm_rmid_forced": "1"},
	}
	paths, err := p.Pin(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var main, own unix.Stat_t
	for kind, file := range map[specs.LinuxNamespaceType]string{"network": "net", "ipc": "ipc", "uts": "uts"} {
		if err := unix.Stat("/proc/self/ns/"+file, &main); err != nil {
			t.Fatal(err)
		}
		if err := unix.Stat(paths[kind], &own); err != nil {
			t.Fatal(err)
		}
		if main.Ino == own.Ino {
			t.Errorf("%s: the process itself is in the pinned namespace", kind)
		}
	}
	inside(t, func() {
		if got := hostname(t); got != "inside" {
			t.Errorf("host name inside %q", got)
		}
		lo, err := net.InterfaceByName("lo")
		if err != nil || lo.Flags&net.FlagUp == 0 {
			t.Errorf("lo: %+v, %v", lo, err)
		}
		for path, want := range map[string]string{"/proc/sys/net/ipv4/ip_forward": "1", "/proc/sys/kernel/shm_rmid_forced": "1"} {
			if got, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s: %q, %v", path, got, err)
			}
		}
	}, paths["network"], paths["ipc"], paths["uts"])
	if got := hostname(t); got != before {
		t.Errorf("host name outside became %q", got)
	}
	if got, _ := os.ReadFile("/proc/sys/kernel/shm_rmid_forced"); strings.TrimSpace(string(got)) != "0" {
		t.Errorf("the sysctl leaked to the host: %q", got)
	}
	if _, err := p.Pin(t.Context(), req); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second pin: %v", err)
	}
	if ids, err := p.Pinned(t.Context()); err != nil || len(ids) != 1 || ids[0] != "sb1" {
		t.Errorf("pinned: %v, %v", ids, err)
	}
	for range 2 {
		if err := p.Unpin(t.Context(), "sb1"); err != nil {
			t.Errorf("unpin: %v", err)
		}
	}
	if ids, _ := p.Pinned(t.Context()); len(ids) != 0 {
		t.Errorf("still pinned: %v", ids)
	}
	assertNoMounts(t)
}

func assertNoMounts(t *testing.T) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), " /run/ns") {
		t.Errorf("mounts are left:\n%s", mounts)
	}
}

func TestUserNamespaceOwnsTheOthers(t *testing.T) {
	roottest.Run(t, func(t *testing.T) { userNamespace(t) })
}

func userNamespace(t *testing.T) {
	p := newPins(t)
	maps := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
	paths, err := p.Pin(t.Context(), core.PinRequest{
		Sandbox:  "sb2",
		Kinds:    []specs.LinuxNamespaceType{specs.UserNamespace, specs.NetworkNamespace, specs.UTSNamespace, specs.IPCNamespace},
		Hostname: "mapped", UIDs: maps, GIDs: maps,
		Sysctls: map[string]string{"net/ipv4/ip_unprivileged_port_start": "80", "kernel.shmmax": "7654321", "fs.mqueue.queues_max": "77"},
	})
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.Open(paths["user"])
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	var userSt, ownerSt unix.Stat_t
	if err := unix.Fstat(int(user.Fd()), &userSt); err != nil {
		t.Fatal(err)
	}
	netns, err := os.Open(paths["network"])
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	owner, err := unix.IoctlRetInt(int(netns.Fd()), unix.NS_GET_USERNS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(owner)
	if err := unix.Fstat(owner, &ownerSt); err != nil || ownerSt.Ino != userSt.Ino {
		t.Errorf("the network namespace is owned by %d, not by %d (%v)", ownerSt.Ino, userSt.Ino, err)
	}
	inside(t, func() {
		if got := hostname(t); got != "mapped" {
			t.Errorf("host name %q", got)
		}
		for file, want := range map[string]string{"net/ipv4/ip_unprivileged_port_start": "80", "kernel/shmmax": "7654321", "fs/mqueue/queues_max": "77"} {
			if got, err := os.ReadFile("/proc/sys/" + file); err != nil || strings.TrimSpace(string(got)) != want {
				t.Errorf("%s is %q, %v", file, got, err)
			}
		}
	}, paths["network"], paths["uts"], paths["ipc"])
	if err := p.Unpin(t.Context(), "sb2"); err != nil {
		t.Error(err)
	}
	assertNoMounts(t)
}

func TestFailedPinLeavesNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := newPins(t)
		for name, req := range map[string]core.PinRequest{
			"no such sysctl": {Kinds: []specs.LinuxNamespaceType{"network"}, Sysctls: map[string]string{"net.ipv4.nonesuch": "1"}},
			"bad value":      {Kinds: []specs.LinuxNamespaceType{"network"}, Sysctls: map[string]string{"net.ipv4.ip_forward": "many"}},
			"of the machine": {Kinds: []specs.LinuxNamespaceType{"network"}, Sysctls: map[string]string{"vm.swappiness": "1"}},
			"other kind":     {Kinds: []specs.LinuxNamespaceType{"network"}, Sysctls: map[string]string{"kernel.shmmax": "1"}},
			"pid":            {Kinds: []specs.LinuxNamespaceType{"pid"}},
			"host name":      {Kinds: []specs.LinuxNamespaceType{"network"}, Hostname: "x"},
			"no mapping":     {Kinds: []specs.LinuxNamespaceType{"user"}},
		} {
			req.Sandbox = "sb3"
			if _, err := p.Pin(t.Context(), req); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if entries, _ := os.ReadDir("/run/ns"); len(entries) != 0 {
			t.Errorf("left behind: %v", entries)
		}
		assertNoMounts(t)
		if err := p.Unpin(t.Context(), core.ID(filepath.Join("..", "x"))); !errdefs.IsInvalidArgument(err) {
			t.Errorf("unpin of a path: %v", err)
		}
	})
}

func BenchmarkPin(b *testing.B) {
	if os.Getenv(roottest.Env) != "1" {
		b.Skip("needs root")
	}
	p, err := pin.New(pin.Options{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := p.Pin(b.Context(), core.PinRequest{Sandbox: "b", Kinds: []specs.LinuxNamespaceType{"network", "ipc", "uts"}}); err != nil {
			b.Fatal(err)
		}
		if err := p.Unpin(b.Context(), "b"); err != nil {
			b.Fatal(err)
		}
	}
}
