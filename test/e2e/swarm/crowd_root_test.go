package swarm

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/crowd"
	"github.com/longshore/longshore/test/nodetest"
)

// The size of the Swarm, and the limits of one node of it.
const (
	crowdSize     = 200
	crowdEach     = 10 // endpoints of a member
	crowdServices = 100
	crowdUsable   = time.Second
	crowdIdle     = 1.0             // percent of a core
	crowdFor      = 2 * time.Minute // for four full synchronizations each way
	crowdEnv      = "LONGSHORE_SWARM_CROWD"
)

// crowdAddr is the address of the n-th other node.
func crowdAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 99, 0, byte(20 + n)}) }

// crowdEndpoint is the address of the i-th endpoint of all.
func crowdEndpoint(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 20, byte(1 + i/200), byte(1 + i%200)})
}

// crowdRecords are those of all other nodes' endpoints.
func crowdRecords(network string) (list []crowd.Announcement) {
	for i := range crowdSize * crowdEach {
		addr, service := crowdEndpoint(i), fmt.Sprint("service", i%crowdServices)
		key := gossip.EndpointID(fmt.Sprint("task", i), network)
		list = append(list,
			crowd.Announcement{Member: i % crowdSize, Endpoint: key, Record: gossip.Peer{
				Addr: netip.PrefixFrom(addr, 16), MAC: fmt.Sprintf("02:42:0a:14:%02x:%02x", 1+i/200, 1+i%200), Tunnel: crowdAddr(i % crowdSize),
			}},
			crowd.Announcement{Member: i % crowdSize, Endpoint: key, Record: gossip.Endpoint{
				Name: fmt.Sprintf("%s.%d.task%d", service, i/crowdServices, i), Service: service, ServiceID: "id-" + service, Addr: addr,
				VIP: netip.AddrFrom4([4]byte{10, 20, 200, byte(1 + i%crowdServices)}), Aliases: []string{service}, TaskAliases: []string{fmt.Sprintf("%012x", i)},
			}})
	}
	return list
}

// began is when a process was started.
func began(t *testing.T, pid int) time.Time {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	ticks, err := strconv.ParseInt(f[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	return time.Now().Add(time.Duration(ticks)*10*time.Millisecond - time.Duration(now.Nano()))
}

// pss is the memory of a process, with its share of shared pages, in MiB.
func pss(t *testing.T, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "Pss:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	t.Fatalf("no Pss of process %d", pid)
	return 0
}

// slabs is the kernel's memory for its own objects, of the whole machine, in MiB.
func slabs(t *testing.T) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[0] == "SUnreclaim:" {
			kb, _ := strconv.ParseFloat(f[1], 64)
			return kb / 1024
		}
	}
	return 0
}

// passes lets a time of measurement pass.
func passes(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// idle returns the use of a core by processes, in percent, while nothing is to do.
func idle(t *testing.T, pids ...int) (percent []float64) {
	t.Helper()
	before := make([]time.Duration, len(pids))
	for i, pid := range pids {
		before[i] = machine.ProcessCPU(pid)
	}
	since := time.Now()
	passes(t, crowdFor)
	for i, pid := range pids {
		percent = append(percent, 100*float64(machine.ProcessCPU(pid)-before[i])/float64(time.Since(since)))
	}
	return percent
}

// until waits until at returns a time, and returns that time since from.
func until(t *testing.T, what string, from time.Time, at func() time.Time) time.Duration {
	t.Helper()
	var found time.Time
	roottest.Eventually(t, what, func() bool {
		found = at()
		return !found.IsZero()
	})
	return found.Sub(from).Round(time.Millisecond)
}

// TestACrowd measures our node in a Swarm of 200 others with 2000 endpoints on one network, and fails
// when it takes more than it may. Its time and processor are the point, so that it runs by itself.
func TestACrowd(t *testing.T) {
	if os.Getenv(crowdEnv) == "" {
		t.Skipf("%s is not set (make bench-gossip)", crowdEnv)
	}
	roottest.Run(t, func(t *testing.T) {
		x := newMixed(t, 1, 1)
		ours := x.ours[0]
		roottest.Eventually(t, "our node is in the gossip", func() bool { return ours.overlays().Gossip == "up" })
		keys := startPlainWorker(t, x.manager).keyring()
		var addrs []netip.Addr
		for n := range crowdSize {
			addrs = append(addrs, crowdAddr(n))
			nodetest.Lines(t, "ip", "address", "add", crowdAddr(n).String()+"/24", "dev", "swarm0")
		}
		others, err := crowd.New(crowd.Options{Addrs: addrs, Keys: keys, Join: []netip.Addr{netip.MustParseAddr(dockerdAddr(0)), netip.MustParseAddr(oursAddr(0))}})
		if err != nil {
			t.Fatal(err)
		}
		defer others.Close()
		x.docker("network", "create", "--driver", "overlay", "--attachable", "--subnet", "10.20.0.0/16", "wide")
		network := x.network("wide").ID
		records := crowdRecords(network)
		if err := others.Enter(network, records); err != nil {
			t.Fatal(err)
		}
		roottest.Eventually(t, "our node knows the others", func() bool {
			var s struct{ Overlays struct{ Members []string } }
			if err := json.Unmarshal([]byte(ours.cli("swarm", "status", "--json")), &s); err != nil {
				t.Fatal(err)
			}
			return len(s.Overlays.Members) == crowdSize+1
		})
		pid := ours.node.Pid()
		passes(t, 10*time.Second)
		alone, before, kernel := idle(t, pid), pss(t, pid), slabs(t)
		t.Logf("among %d nodes, on no network: %.2f %% of a core, %.1f MiB", crowdSize, alone[0], before)

		used := machine.ProcessCPU(pid)
		near, far, last := crowdEndpoint(0), crowdEndpoint(1), crowdEndpoint(crowdSize*crowdEach-1)
		x.create("first", x.ref, "--network", "wide", "--constraint", "node.labels.where==ours0", "--", "sh", "-c",
			fmt.Sprintf(`ping -i 0.05 %s >/dev/null & until nslookup %012x 127.0.0.11 >/dev/null; do :; done; ping -c 1 %s >/dev/null; ping -c 1 %s >/dev/null; exec sleep 100000`, near, crowdSize*crowdEach-1, far, last))
		var task apiTask
		roottest.Eventually(t, "the task has its address", func() bool {
			var list []apiTask
			if err := x.Get(t.Context(), "/tasks", &list); err != nil {
				t.Fatal(err)
			}
			for _, k := range list {
				if len(k.NetworksAttachments) > 0 && k.NodeID == ours.id {
					task = k
				}
			}
			return task.ID != ""
		})
		endpoint := gossip.EndpointID(task.ID, network)
		echo, err := others.Echo(records, endpoint)
		if err != nil {
			t.Fatal(err)
		}
		defer echo.Close()
		opened := time.Time{}
		until(t, "our node asks for the network's records", time.Now(), func() time.Time {
			if s := others.Syncs(); len(s) > 0 {
				opened = s[0].At
			}
			return opened
		})
		var heard [2]time.Time
		for i, of := range []int{1, crowdSize} {
			roottest.Eventually(t, "others hear of our task", func() bool { return others.Heard(endpoint) >= of })
			heard[i] = time.Now()
		}
		first := until(t, "a packet comes from our task", opened, func() time.Time { at, _ := echo.Pings(near); return at })
		ping := until(t, "a ping of our task is answered", opened, func() time.Time { _, at := echo.Pings(near); return at })
		named := until(t, "our task has found the last name", opened, func() time.Time { at, _ := echo.Pings(far); return at })
		until(t, "the last endpoint is reached", opened, func() time.Time { at, _ := echo.Pings(last); return at })
		ours.told()
		roottest.Eventually(t, "our node has asked all others", func() bool { return len(others.Syncs()) >= crowdSize })
		entered := others.Syncs()[crowdSize-1].At.Sub(opened)
		x.running("first", 1)
		run, _ := x.placed()
		program := began(t, run[0].pid)
		t.Logf("a new network of %d endpoints, after it was opened: program started %v, its first packet at the right node %v, its first ping answered %v, all names known %v; first other node knows it %v, all %v; in step with all of them %v (%d syncs); %v of processor", crowdSize*crowdEach,
			program.Sub(opened).Round(time.Millisecond), first, ping, named, heard[0].Sub(opened).Round(time.Millisecond), heard[1].Sub(opened).Round(time.Millisecond), entered.Round(time.Millisecond), len(others.Syncs()), (machine.ProcessCPU(pid) - used).Round(time.Millisecond))
		for _, n := range ours.overlays().Networks {
			if n.Name == "wide" && n.Peers < crowdSize*crowdEach {
				t.Errorf("%d interfaces of others are known", n.Peers)
			}
		}
		if wrong := echo.Wrong(); len(wrong) > 0 {
			t.Errorf("packets came where they do not belong: %q", wrong)
		}
		peak := pss(t, pid)

		link := nodetest.Plug(t, "swarm0", "library", "10.99.0.240/24")
		library := startMember(t, link.NetNS())
		library.do(order{Op: "new", New: networkdb.Options{Name: "library", Advertise: netip.MustParseAddr("10.99.0.240"), Keys: keys}})
		library.do(order{Op: "join", Join: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(dockerdAddr(0)), gossip.DefaultPort)}})
		if err := others.Meet(netip.MustParseAddr("10.99.0.240")); err != nil {
			t.Fatal(err)
		}
		roottest.Eventually(t, "the library's member knows the others", func() bool { return len(library.do(order{Op: "members"}).Members) == crowdSize+2 })
		entering := time.Now()
		library.do(order{Op: "enter", Network: network})
		t.Logf("a member by the library alone: entered after %v, %v of processor", time.Since(entering).Round(time.Millisecond), machine.ProcessCPU(library.cmd.Process.Pid).Round(time.Millisecond))
		passes(t, 10*time.Second)
		rest := idle(t, pid, library.cmd.Process.Pid)
		t.Logf("idle on the network: %.2f %% of a core, %.1f MiB (%.1f MiB when it was entered, %.1f KiB for an endpoint); the library alone %.2f %%, %.1f MiB; kernel %+.1f MiB",
			rest[0], pss(t, pid), peak, (pss(t, pid)-before)*1024/crowdSize/crowdEach, rest[1], pss(t, library.cmd.Process.Pid), slabs(t)-kernel)
		if ping > crowdUsable || named > crowdUsable {
			t.Errorf("a new network is usable after more than %v", crowdUsable)
		}
		if rest[0] > crowdIdle {
			t.Errorf("it takes more than %.0f %% of a core", crowdIdle)
		}
	})
}
