package client

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	types "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols"
	kata "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols/client"
	pb "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols/grpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/longshore/longshore/test/kata/qemu"
)

// TestEveryCallOfAGuest: Kata's client, on the host of a virtual machine, makes every call of the
// agent that is the machine's first process, by the hybrid vsock that shims dial. A container of
// the machine sees the effects: it shares the network and the clock, and sees the kernel's files.
func TestEveryCallOfAGuest(t *testing.T) {
	qemu.Wanted(t)
	s := guest(t)
	s.run("health", s.health)
	s.run("a sandbox", s.guestSandbox)
	s.run("the network", s.guestNetwork)
	s.run("the machine", s.guestMachine)
	s.run("files and volumes", s.guestVolumes)
	s.run("processes", s.processes)
	s.run("limits", s.limits)
	s.run("out of memory", s.outOfMemory)
	s.run("what is not served", s.unserved)
	s.run("policies", s.policies)
	s.run("the end", func(t *testing.T) {
		s.ok("DestroySandbox", &pb.DestroySandboxRequest{})
		<-s.off // the agent has switched the power off
	})
	const program = "the guest's image has no such program, and the answer names it"
	refusals := map[string]string{
		"GetIPTables": program, "SetIPTables": program, "MemHotplugByProbe": "this kernel sees memory by itself, as GetGuestDetails says",
		"MemAgentMemcgSet": "there is no memory agent, as with the reference unless it is switched on", "MemAgentCompactSet": "there is no memory agent",
	}
	if s.done["SetPolicy"] != codes.OK {
		refusals["SetPolicy"] = "the guest's image has no longshore-policy"
	}
	s.every(refusals)
}

// guestRoot is where the guest mounts the disk with containers' files. It has further disks,
// to swap to, and a link.
const (
	guestRoot = "/run/image"
	swapAt    = 0x12
	linkMAC   = "02:00:00:00:00:01" // of a link that leads nowhere
)

// guest boots a machine, with a disk to swap to.
func guest(t *testing.T) *shim {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kata") // short, for the sockets in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	args := []string{"-netdev", "hubport,hubid=0,id=net", "-device", "virtio-net-pci,netdev=net,mac=" + linkMAC}
	for _, slot := range []int{swapAt, swapAt + 1} { // the second is /dev/vdc
		name := filepath.Join(dir, fmt.Sprintf("swap%x", slot))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, 16<<20); err != nil {
			t.Fatal(err)
		}
		command(t, "mkswap", name)
		args = append(args, "-drive", fmt.Sprintf("file=%s,if=none,id=swap%x,format=raw", name, slot), "-device", fmt.Sprintf("virtio-blk-pci,drive=swap%x,addr=%x", slot, slot))
	}
	m, err := qemu.New(t.Context(), qemu.Options{Dir: dir, Parameters: "agent.log=debug", Args: args})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Errorf("the machine: %v", err)
		}
		if t.Failed() {
			t.Logf("the console:\n%s", m.Console())
		}
	})
	_ = m.Dial(t, qemu.AgentPort).Close() // it listens
	s := &shim{t: t, root: guestRoot, done: map[string]codes.Code{}, off: m.Ended()}
	if s.client, err = kata.NewAgentClient(t.Context(), fmt.Sprintf("hvsock://%s:%d", m.Socket(), qemu.AgentPort), 60); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

// sees runs a script in the container that sees the calls' effects.
func (s *shim) sees(script string) string {
	s.t.Helper()
	s.execs++
	id := "see" + strconv.Itoa(s.execs)
	s.ok("ExecProcess", &pb.ExecProcessRequest{ContainerId: "witness", ExecId: id, Process: process(script)})
	out := s.output("ReadStdout", "witness", id)
	errs := s.output("ReadStderr", "witness", id)
	if got := s.status("witness", id); got != 0 {
		s.t.Errorf("%s: status %d: %s", script, got, errs)
	}
	return out
}

// shown fails unless a script of sees has all words.
func (s *shim) shown(script string, words ...string) {
	s.t.Helper()
	out := s.sees(script)
	for _, w := range words {
		if !strings.Contains(out, w) {
			s.t.Errorf("%s does not show %q:\n%s", script, w, out)
		}
	}
}

func (s *shim) guestSandbox(t *testing.T) {
	s.refused(codes.FailedPrecondition, "CreateSandbox comes first", "CreateContainer", &pb.CreateContainerRequest{ContainerId: "c0", OCI: s.spec("true")})
	s.ok("CreateSandbox", &pb.CreateSandboxRequest{Hostname: "guest", SandboxId: "s1", Storages: []*pb.Storage{{
		Driver: "ephemeral", Source: "shm", Fstype: "tmpfs", MountPoint: "/run/kata-containers/sandbox/shm", Options: []string{"mode=1777", "size=1048576"},
	}}})
	d := answer[*pb.GuestDetailsResponse](s, "GetGuestDetails", &pb.GuestDetailsRequest{MemBlockSize: true, MemHotplugProbe: true})
	if d.GetMemBlockSizeBytes() == 0 || d.GetSupportMemHotplugProbe() || !d.GetAgentDetails().GetInitDaemon() {
		t.Errorf("GetGuestDetails answers %v", d)
	}
	s.started("witness", s.spec("exec sleep 100000", &pb.Mount{Destination: "/sys", Type: "sysfs", Source: "sysfs"}, &pb.Mount{Destination: "/tmp", Type: "bind", Source: "/run", Options: []string{"rbind"}}),
		&pb.Storage{Driver: "blk", Source: qemu.DiskAt, Fstype: "ext4", MountPoint: guestRoot, Options: []string{"ro"}})
	s.shown("hostname; busybox df -k /tmp/kata-containers/sandbox/shm", "guest\n", " 1024 ")
}

func (s *shim) guestNetwork(t *testing.T) {
	s.ok("UpdateInterface", &pb.UpdateInterfaceRequest{Interface: &types.Interface{Name: "net0", HwAddr: linkMAC, Mtu: 1400, IPAddresses: []*types.IPAddress{{Address: "192.0.2.2", Mask: "24"}}}})
	s.shown("busybox ip addr show net0", "192.0.2.2/24", "mtu 1400", linkMAC, "UP")
	if got := answer[*pb.Interfaces](s, "ListInterfaces", &pb.ListInterfacesRequest{}); !strings.Contains(got.String(), "192.0.2.2") {
		t.Errorf("ListInterfaces answers %v", got)
	}
	s.ok("UpdateRoutes", &pb.UpdateRoutesRequest{Routes: &pb.Routes{Routes: []*types.Route{{Dest: "198.51.100.0/24", Device: "net0", Scope: unix.RT_SCOPE_LINK}}}})
	s.shown("busybox ip route", "198.51.100.0/24 dev net0")
	if got := answer[*pb.Routes](s, "ListRoutes", &pb.ListRoutesRequest{}); !strings.Contains(got.String(), "198.51.100.0/24") {
		t.Errorf("ListRoutes answers %v", got)
	}
	s.ok("AddARPNeighbors", &pb.AddARPNeighborsRequest{Neighbors: &pb.ARPNeighbors{ARPNeighbors: []*types.ARPNeighbor{
		{ToIPAddress: &types.IPAddress{Address: "192.0.2.9"}, Device: "net0", Lladdr: "02:00:00:00:00:09"},
	}}})
	s.shown("cat /proc/net/arp", "192.0.2.9", "02:00:00:00:00:09")
	s.refused(codes.Internal, "there is no iptables-save", "GetIPTables", &pb.GetIPTablesRequest{})
	s.refused(codes.Internal, "there is no ip6tables-restore", "SetIPTables", &pb.SetIPTablesRequest{IsIpv6: true, Data: []byte("*filter\nCOMMIT\n")})
}

func (s *shim) guestMachine(t *testing.T) {
	const past = 1_234_567_890
	s.ok("SetGuestDateTime", &pb.SetGuestDateTimeRequest{Sec: past, Usec: 42})
	now, err := strconv.Atoi(strings.TrimSpace(s.sees("busybox date +%s")))
	if err != nil || now < past || now > past+3600 {
		t.Errorf("the guest's clock is %d, %v", now, err)
	}
	s.ok("ReseedRandomDev", &pb.ReseedRandomDevRequest{Data: []byte("dice of the host")})
	const cpu1 = "/sys/devices/system/cpu/cpu1/online"
	s.shown("echo 0 > "+cpu1+"; cat "+cpu1, "0\n")
	s.ok("OnlineCPUMem", &pb.OnlineCPUMemRequest{NbCpus: 2})
	s.shown("cat "+cpu1+"; grep -c ^processor /proc/cpuinfo", "1\n2\n")
	s.refused(codes.Internal, "probe", "MemHotplugByProbe", &pb.MemHotplugByProbeRequest{MemHotplugProbeAddr: []uint64{0x1ab000000}})
	s.ok("AddSwap", &pb.AddSwapRequest{PCIPath: []uint32{swapAt}})
	s.shown("cat /proc/swaps", "/dev/vdb", "16380")
	s.ok("AddSwapPath", &pb.AddSwapPathRequest{Path: "/dev/vdc"})
	s.shown("cat /proc/swaps", "/dev/vdb", "/dev/vdc")
	s.refused(codes.Internal, "busy", "AddSwapPath", &pb.AddSwapPathRequest{Path: "/dev/vdc"})
	if got := answer[*pb.Metrics](s, "GetMetrics", &pb.GetMetricsRequest{}).GetMetrics(); !strings.Contains(got, `kata_guest_meminfo{item="swap_total"} 33546240`) {
		t.Errorf("GetMetrics does not have the swap:\n%.3000s", got)
	}
}

func (s *shim) guestVolumes(t *testing.T) {
	const text, cache = "127.0.0.1 localhost\n", "/run/kata-containers/cache"
	s.ok("CopyFile", &pb.CopyFileRequest{Path: shared + "/why", FileSize: int64(len(text)), FileMode: unix.S_IFREG | 0o644, DirMode: 0o755, Data: []byte(text)})
	volume := &pb.Storage{Driver: "ephemeral", Source: "tmpfs", Fstype: "tmpfs", MountPoint: cache, Options: []string{"size=1048576"}}
	spec := s.spec("read x; cat /dev/why; while read x; do busybox df -k /dev/shm | tail -n 1; done; echo done >&2; exit 42",
		&pb.Mount{Destination: "/dev/shm", Type: "bind", Source: cache, Options: []string{"rbind"}}, &pb.Mount{Destination: "/dev/why", Type: "bind", Source: shared + "/why", Options: []string{"rbind"}})
	spec.Annotations = map[string]string{"io.kubernetes.container.terminationMessagePath": "/dev/why"}
	s.started("c3", spec, volume)
	s.write("c3", "c3", "\n")
	next := func() string {
		t.Helper()
		return string(answer[*pb.ReadStreamResponse](s, "ReadStdout", &pb.ReadStreamRequest{ContainerId: "c3", ExecId: "c3", Len: 4096}).GetData())
	}
	if got := next(); got != text {
		t.Errorf("the container reads %q", got)
	}
	has := func(kib string) {
		t.Helper()
		s.write("c3", "c3", "\n")
		if got := next(); !strings.Contains(got, " "+kib+" ") {
			t.Errorf("the volume is %q, want %s KiB", got, kib)
		}
	}
	has("1024")
	volume.Options = []string{"remount", "size=2097152"}
	s.ok("UpdateEphemeralMounts", &pb.UpdateEphemeralMountsRequest{Storages: []*pb.Storage{volume}})
	has("2048")
	s.ok("ResizeVolume", &pb.ResizeVolumeRequest{VolumeGuestPath: cache, Size: 4 << 20})
	has("4096")
	if v := answer[*pb.VolumeStatsResponse](s, "GetVolumeStats", &pb.VolumeStatsRequest{VolumeGuestPath: cache}); len(v.GetUsage()) != 2 || v.GetUsage()[0].GetTotal() != 4<<20 {
		t.Errorf("GetVolumeStats answers %v", v)
	}
	s.ok("RemoveStaleVirtiofsShareMounts", &pb.RemoveStaleVirtiofsShareMountsRequest{})
	s.ok("CloseStdin", &pb.CloseStdinRequest{ContainerId: "c3", ExecId: "c3"})
	if got := s.output("ReadStderr", "c3", "c3"); got != "done\n" {
		t.Errorf("stderr is %q", got)
	}
	if got := s.status("c3", "c3"); got != 42 {
		t.Errorf("status %d, want 42", got)
	}
	if got := answer[*pb.GetDiagnosticDataResponse](s, "GetDiagnosticData", &pb.GetDiagnosticDataRequest{LogType: "termination_log", ContainerId: "c3"}).GetData(); got != text {
		t.Errorf("GetDiagnosticData answers %q", got)
	}
	s.ok("RemoveContainer", &pb.RemoveContainerRequest{ContainerId: "c3"})
	if got := s.sees("busybox ls /tmp/kata-containers"); strings.Contains(got, "cache") {
		t.Errorf("the volume is left: %s", got)
	}
}
