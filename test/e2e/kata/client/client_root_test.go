package client

import (
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	types "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols"
	pb "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols/grpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/longshore/longshore/internal/roottest"
)

// TestEveryCall: Kata's client makes every call that it knows, in an order that the shim might use,
// and each call has its effect.
func TestEveryCall(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		machine(t)
		s := newShim(t)
		s.run("health", s.health)
		s.run("the network, before there is a sandbox", s.network)
		s.run("the packet filter", s.packetFilter)
		s.run("no container before a sandbox", func(*testing.T) {
			s.refused(codes.FailedPrecondition, "CreateSandbox comes first", "CreateContainer", &pb.CreateContainerRequest{ContainerId: "c0", OCI: s.spec("true")})
		})
		s.run("a sandbox", s.sandbox)
		s.run("the machine", s.machine)
		s.run("files", s.files)
		s.run("a container", s.container)
		s.run("processes", s.processes)
		s.run("limits", s.limits)
		s.run("volumes", s.volumes)
		s.run("out of memory", s.outOfMemory)
		s.run("what is not served", s.unserved)
		s.run("policies", s.policies)
		s.run("the end", s.end)
		refusals := map[string]string{
			"MemAgentMemcgSet":   "there is no memory agent, as with the reference unless it is switched on",
			"MemAgentCompactSet": "there is no memory agent, as with the reference unless it is switched on",
		}
		if s.done["SetPolicy"] != codes.OK {
			refusals["SetPolicy"] = "longshore-policy is not beside longshore-guest: the list of requests in the options is what there is"
		}
		s.every(refusals)
	})
}

const ownResolvConf = "nameserver 192.0.2.1\n"

// machine makes the files of the agent's machine: processors, memory and a disk that can be plugged
// in, and a resolv.conf.
func machine(t *testing.T) {
	t.Helper()
	lay(t, "/sys/devices/system/cpu", map[string]string{"cpu0/topology/core_id": "0", "cpu1/online": "0\n"})
	lay(t, "/sys/devices/system/memory", map[string]string{"block_size_bytes": "8000000\n", "probe": "", "memory0/online": "1\n", "memory7/online": "0\n"})
	lay(t, "/sys/devices/pci0000:00", map[string]string{"0000:00:02.0/0000:07:1f.0/virtio3/block/null/size": "0\n"}) // that device file there is
	const own = "/run/own-resolv.conf"                                                                               // in the test's own /run: the source of a mount cannot be removed
	if err := os.WriteFile(own, []byte(ownResolvConf), 0o644); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "--bind", own, "/etc/resolv.conf")
	if err := os.MkdirAll(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	command(t, "mount", "-t", "tmpfs", "tmpfs", shared)
}

func (s *shim) health(t *testing.T) {
	if got := answer[*pb.HealthCheckResponse](s, "Check", &pb.CheckRequest{}).GetStatus(); got != pb.HealthCheckResponse_SERVING {
		t.Errorf("Check answers %v", got)
	}
	if v := answer[*pb.VersionCheckResponse](s, "Version", &pb.CheckRequest{}); v.GetAgentVersion() == "" || v.GetGrpcVersion() == "" {
		t.Errorf("Version answers %v", v)
	}
}

func (s *shim) network(t *testing.T) {
	command(t, "ip", "link", "add", "plugged", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "other")
	command(t, "ip", "link", "set", "other", "up")
	eth0 := &types.Interface{Name: "eth0", HwAddr: "02:00:00:00:00:01", Mtu: 1400, IPAddresses: []*types.IPAddress{
		{Address: "192.0.2.2", Mask: "24"}, {Family: types.IPFamily_v6, Address: "2001:db8::2", Mask: "64"},
	}}
	if got := answer[*types.Interface](s, "UpdateInterface", &pb.UpdateInterfaceRequest{Interface: eth0}); got.GetName() != "eth0" || got.GetMtu() != 1400 {
		t.Errorf("UpdateInterface answers %v", got)
	}
	shows(t, []string{"02:00:00:00:00:01", "mtu 1400", "192.0.2.2/24", "2001:db8::2/64", "UP"}, "ip", "addr", "show", "eth0")
	links := answer[*pb.Interfaces](s, "ListInterfaces", &pb.ListInterfacesRequest{}).GetInterfaces()
	if at := slices.IndexFunc(links, func(l *types.Interface) bool { return l.GetName() == "eth0" }); at < 0 || links[at].GetHwAddr() != eth0.GetHwAddr() || links[at].GetMtu() != 1400 || len(links[at].GetIPAddresses()) < 2 {
		t.Errorf("ListInterfaces answers %v", links)
	}
	routes := answer[*pb.Routes](s, "UpdateRoutes", &pb.UpdateRoutesRequest{Routes: &pb.Routes{Routes: []*types.Route{
		{Gateway: "192.0.2.1", Device: "eth0"}, {Dest: "198.51.100.0/24", Device: "eth0", Scope: unix.RT_SCOPE_LINK, Mtu: 1300},
	}}})
	shows(t, []string{"default via 192.0.2.1 dev eth0", "198.51.100.0/24 dev eth0 scope link mtu 1300"}, "ip", "route")
	if again := answer[*pb.Routes](s, "ListRoutes", &pb.ListRoutesRequest{}); again.String() != routes.String() || len(again.GetRoutes()) < 3 {
		t.Errorf("ListRoutes answers %v, UpdateRoutes %v", again, routes)
	}
	s.ok("AddARPNeighbors", &pb.AddARPNeighborsRequest{Neighbors: &pb.ARPNeighbors{ARPNeighbors: []*types.ARPNeighbor{
		{ToIPAddress: &types.IPAddress{Address: "192.0.2.9"}, Device: "eth0", Lladdr: "02:00:00:00:00:09"},
	}}})
	shows(t, []string{"192.0.2.9 dev eth0 lladdr 02:00:00:00:00:09 PERMANENT"}, "ip", "neigh")
	s.refused(codes.InvalidArgument, "mask", "UpdateInterface", &pb.UpdateInterfaceRequest{Interface: &types.Interface{Name: "eth0", IPAddresses: []*types.IPAddress{{Address: "192.0.2.3", Mask: "33"}}}})
	s.refused(codes.Internal, "Link not found", "UpdateInterface", &pb.UpdateInterfaceRequest{Interface: &types.Interface{Name: "none"}})
}

func (s *shim) packetFilter(t *testing.T) {
	for ipv6, tool := range map[bool]string{false: "iptables", true: "ip6tables"} {
		rules := "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n-A INPUT -p tcp -m tcp --dport 81 -j DROP\nCOMMIT\n"
		if _, err := os.Stat("/usr/sbin/" + tool + "-restore"); err != nil {
			s.refused(codes.Internal, tool, "SetIPTables", &pb.SetIPTablesRequest{IsIpv6: ipv6, Data: []byte(rules)})
			t.Skipf("%s is not installed", tool)
		}
		s.ok("SetIPTables", &pb.SetIPTablesRequest{IsIpv6: ipv6, Data: []byte(rules)})
		shows(t, []string{"--dport 81 -j DROP"}, tool, "-S")
		if got := answer[*pb.GetIPTablesResponse](s, "GetIPTables", &pb.GetIPTablesRequest{IsIpv6: ipv6}); !strings.Contains(string(got.GetData()), "--dport 81") {
			t.Errorf("GetIPTables answers %s", got.GetData())
		}
	}
}

func (s *shim) sandbox(t *testing.T) {
	req := &pb.CreateSandboxRequest{
		Hostname: "guest", SandboxId: "s1", Dns: []string{"nameserver 192.0.2.53", "search example.org"},
		Storages: []*pb.Storage{{Driver: "ephemeral", Source: "shm", Fstype: "tmpfs", MountPoint: "/run/kata-containers/sandbox/shm", Options: []string{"mode=1777", "size=1048576"}}},
	}
	s.ok("CreateSandbox", req)
	if got := content(t, "/etc/resolv.conf"); got != strings.Join(req.GetDns(), "\n") {
		t.Errorf("resolv.conf is %q", got)
	}
	if got := bytesOf(t, "/run/kata-containers/sandbox/shm"); got != 1<<20 {
		t.Errorf("the sandbox's shared memory has %d bytes", got)
	}
	s.refused(codes.AlreadyExists, "DestroySandbox ends it", "CreateSandbox", req)
}

// bytesOf is the size of a mounted file system.
func bytesOf(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * uint64(st.Bsize)
}

func (s *shim) machine(t *testing.T) {
	d := answer[*pb.GuestDetailsResponse](s, "GetGuestDetails", &pb.GuestDetailsRequest{MemBlockSize: true, MemHotplugProbe: true})
	if d.GetMemBlockSizeBytes() != 0x8000000 || !d.GetSupportMemHotplugProbe() || !d.GetAgentDetails().GetSupportsSeccomp() || d.GetAgentDetails().GetInitDaemon() || !slices.Contains(d.GetAgentDetails().GetStorageHandlers(), "virtio-fs") {
		t.Errorf("GetGuestDetails answers %v", d)
	}
	s.ok("MemHotplugByProbe", &pb.MemHotplugByProbeRequest{MemHotplugProbeAddr: []uint64{0x1ab000000}})
	if got := content(t, "/sys/devices/system/memory/probe"); got != "0x1AB000000" {
		t.Errorf("memory is probed at %q", got)
	}
	s.ok("OnlineCPUMem", &pb.OnlineCPUMemRequest{NbCpus: 2})
	for _, what := range []string{"cpu/cpu1", "memory/memory7"} {
		if got := content(t, "/sys/devices/system/"+what+"/online"); got != "1" {
			t.Errorf("%s: online is %q", what, got)
		}
	}
	told := func(want string) {
		t.Helper()
		if !s.kernel.heard(want) {
			t.Errorf("the kernel was not told %q, but %s", want, s.kernel.all())
		}
	}
	s.ok("SetGuestDateTime", &pb.SetGuestDateTimeRequest{Sec: 1_234_567_890, Usec: 42})
	told("clock 1234567890.000042")
	dice := []byte(rand.Text())
	s.ok("ReseedRandomDev", &pb.ReseedRandomDevRequest{Data: dice})
	told(fmt.Sprintf("%d bits of entropy %x", 8*len(dice), dice))
	s.ok("AddSwap", &pb.AddSwapRequest{PCIPath: []uint32{0x02, 0x1f}})
	told("swap on /dev/null")
	s.ok("AddSwapPath", &pb.AddSwapPathRequest{Path: "/swap.file"})
	told("swap on /swap.file")
	s.refused(codes.Internal, "no time", "SetGuestDateTime", &pb.SetGuestDateTimeRequest{Sec: 1, Usec: 1_000_000})
	s.refused(codes.Internal, "entropy", "ReseedRandomDev", &pb.ReseedRandomDevRequest{})
	if got := answer[*pb.Metrics](s, "GetMetrics", &pb.GetMetricsRequest{}).GetMetrics(); !strings.Contains(got, "kata_agent_scrape_count 1\n") || !strings.Contains(got, `kata_guest_meminfo{item="mem_total"}`) {
		t.Errorf("GetMetrics answers %.2000s", got)
	}
}

func (s *shim) files(t *testing.T) {
	const text = "127.0.0.1 localhost\n192.0.2.2 guest\n"
	for _, part := range [][2]int{{0, 10}, {10, len(text)}} {
		s.ok("CopyFile", &pb.CopyFileRequest{
			Path: shared + "/c1/hosts", FileSize: int64(len(text)), FileMode: unix.S_IFREG | 0o644, DirMode: 0o750, Uid: 5, Gid: 6, Offset: int64(part[0]), Data: []byte(text[part[0]:part[1]]),
		})
	}
	if got := content(t, shared+"/c1/hosts"); got != strings.TrimSpace(text) {
		t.Errorf("the file has %q", got)
	}
	shows(t, []string{"644 5 6"}, "stat", "-c", "%a %u %g", shared+"/c1/hosts")
	s.refused(codes.Internal, "is not below", "CopyFile", &pb.CopyFileRequest{Path: shared + "/../../x", FileMode: unix.S_IFREG | 0o644})
	v := answer[*pb.VolumeStatsResponse](s, "GetVolumeStats", &pb.VolumeStatsRequest{VolumeGuestPath: shared})
	if len(v.GetUsage()) != 2 || v.GetUsage()[0].GetTotal() != bytesOf(t, shared) || v.GetUsage()[0].GetUsed() == 0 || v.GetVolumeCondition().GetAbnormal() {
		t.Errorf("GetVolumeStats answers %v", v)
	}
	// Only the host sees this call's effect. It visits these mounts, and must leave them.
	s.ok("RemoveStaleVirtiofsShareMounts", &pb.RemoveStaleVirtiofsShareMountsRequest{})
	if got := content(t, shared+"/c1/hosts"); got != strings.TrimSpace(text) {
		t.Errorf("after RemoveStaleVirtiofsShareMounts the file has %q", got)
	}
}
