package swarm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// benchEnv says how many rounds of each bench of overlay networks there are.
const benchEnv = "LONGSHORE_BENCH_ROUNDS"

// figures are the measurements of each node, by the figure's name.
type figures struct {
	t      *testing.T
	rounds int
	names  []string // in their order
	all    map[string]map[string][]float64
}

// newFigures begins a bench, or skips it.
func newFigures(t *testing.T) *figures {
	t.Helper()
	rounds, err := strconv.Atoi(os.Getenv(benchEnv))
	if err != nil {
		t.Skipf("make bench-overlay runs it (%s= how many rounds)", benchEnv)
	}
	return &figures{t: t, rounds: rounds, all: map[string]map[string][]float64{}}
}

func (f *figures) add(node, name string, v float64) {
	if f.all[name] == nil {
		f.names, f.all[name] = append(f.names, name), map[string][]float64{}
	}
	f.all[name][node] = append(f.all[name][node], v)
}

// print prints a line for each figure of two kinds of nodes: medians with the least and the most, and their ratio.
func (f *figures) print(ours, theirs string) {
	f.t.Helper()
	text := fmt.Sprintf("%-84s %26s %26s %7s\n", "median (least to most)", ours, theirs, "ratio")
	for _, name := range f.names {
		if f.all[name][ours] == nil && f.all[name][theirs] == nil {
			continue
		}
		line := []any{name}
		var mid []float64
		for _, node := range []string{ours, theirs} {
			l := slices.Sorted(slices.Values(f.all[name][node]))
			if len(l) == 0 {
				line = append(line, "")
				continue
			}
			mid = append(mid, l[len(l)/2])
			line = append(line, fmt.Sprintf("%.1f (%.1f to %.1f)", l[len(l)/2], l[0], l[len(l)-1]))
		}
		ratio := ""
		if len(mid) == 2 && mid[1] > 0 {
			ratio = fmt.Sprintf("%.2f", mid[0]/mid[1])
		}
		text += fmt.Sprintf("%-84s %26s %26s %7s\n", append(line, ratio)...)
	}
	f.t.Logf("%d rounds\n%s", f.rounds, text)
}

// turns calls fn for the two workers of a mixed Swarm, each time in the other order.
func turns(round int, fn func(node string)) {
	nodes := []string{"ours0", "dockerd1"}
	fn(nodes[round%2])
	fn(nodes[1-round%2])
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// TestBenchFirstPacket prints how long it takes until a new task is reached, and reaches another one: on a node of
// ours beside a dockerd, both workers of one manager, the other task on the manager's node. Everything is
// counted from the moment when the manager has made the task.
func TestBenchFirstPacket(t *testing.T) {
	f := newFigures(t)
	roottest.Run(t, func(t *testing.T) {
		f.t = t
		x := newMixed(t, 2, 1)
		for _, network := range []string{"new", "old"} {
			x.docker("network", "create", "--driver", "overlay", network)
		}
		x.create("prober", x.ref, "--network", "new", "--network", "old", "--constraint", "node.labels.where==dockerd0", "--", "sleep", "100000")
		x.create("keep", x.ref, "--network", "old", "--mode", "global", "--constraint", "node.labels.where!=dockerd0", "--", "sleep", "100000")
		prober := tasksOf(x.settled(map[string]int{"prober": 1, "keep": 2}), "prober")[0]
		cases := []struct{ network, what string }{{"old", "where others are on the network"}, {"new", "the first one on the network"}}
		for round := range f.rounds + 1 {
			turns(round, func(node string) {
				for _, c := range cases {
					m := x.meet(prober, node, c.network)
					if round == 0 { // which fetches the image
						continue
					}
					for _, at := range m {
						f.add(node, c.what+": "+at.what, milliseconds(at.after))
					}
				}
			})
		}
		for round := range f.rounds {
			turns(round, func(node string) {
				f.add(node, "replaced, no other on the network: reached by another", milliseconds(x.replace(prober, node)))
			})
		}
		f.print("ours0", "dockerd1")
	})
}

// moment is when something was first so, since the manager has made the task.
type moment struct {
	what  string
	after time.Duration
}

// meet starts a task on a node that asks the prober from its first moment on, while the prober asks it, and then
// removes it.
func (x *mixed) meet(prober placed, node, network string) []moment {
	t := x.t
	t.Helper()
	nodetest.Pause(1500) // until the last task's state is gone everywhere
	server := listenIn(t, prober.ns(), ":81")
	program := fmt.Sprintf(">/began; (until wget -q -O /dev/null http://tasks.prober:81/name; do :; done) & until wget -q -O /dev/null http://%s:81/address; do :; done; wait; exec sleep 100000", prober.addrs[network])
	x.create("fresh", x.ref, "--network", network, "--constraint", "node.labels.where=="+node, "--stop-signal", "KILL", "--", "sh", "-c", program)
	task, addr := x.addressed("fresh", "")
	byEcho, byLookup := ask(t, prober.ns(), addr), askName(t, prober.ns(), "tasks.fresh.")
	answered, named := <-byEcho, <-byLookup
	byName, byAddress := server.asked(t, "/name"), server.asked(t, "/address")
	var began time.Time
	roottest.Eventually(t, "the task's program has begun", func() bool {
		run, _ := x.placed()
		for _, p := range tasksOf(run, "fresh") {
			if st, err := os.Stat(fmt.Sprintf("/proc/%d/root/began", p.pid)); err == nil {
				began = st.ModTime()
			}
		}
		return !began.IsZero()
	})
	server.stop()
	x.docker("service", "rm", "fresh")
	x.without(task.ServiceID)
	since := func(at time.Time) time.Duration { return at.Sub(task.CreatedAt) }
	return []moment{
		{"its program begins, ms", since(began)},
		{"it reaches an address", since(byAddress)},
		{"it reaches a name", since(byName)},
		{"its address answers", since(answered)},
		{"its name is known", since(named)},
		{"it reaches an address, from its program's beginning", byAddress.Sub(began)},
		{"it reaches a name, from its program's beginning", byName.Sub(began)},
		{"its address answers, from its program's beginning", answered.Sub(began)},
		{"its name is known, from its program's beginning", named.Sub(began)},
	}
}

// replace replaces the one task of a service on a node, ending it first, and returns the time from the manager's
// creation of the new one to its answer to the prober.
func (x *mixed) replace(prober placed, node string) time.Duration {
	x.t.Helper()
	x.create("fresh", x.ref, "--network", "new", "--constraint", "node.labels.where=="+node, "--stop-signal", "KILL", "--", "sleep", "100000")
	old, first := x.addressed("fresh", "")
	<-ask(x.t, prober.ns(), first)
	x.settled(map[string]int{"prober": 1, "keep": 2, "fresh": 1})
	x.docker("service", "update", "--detach", "--force", "fresh")
	task, addr := x.addressed("fresh", old.ID)
	took := (<-ask(x.t, prober.ns(), addr)).Sub(task.CreatedAt)
	x.docker("service", "rm", "fresh")
	x.without(task.ServiceID)
	nodetest.Pause(1500)
	return took
}

// addressed waits until the manager has made a service's task, another than the one before, and given it an address.
func (x *mixed) addressed(service, before string) (task apiTask, addr netip.Addr) {
	x.t.Helper()
	roottest.Eventually(x.t, "the new task has an address", func() bool {
		var all []apiTask
		if err := x.Get(x.t.Context(), "/tasks"+dockerd.Filter("service", service), &all); err != nil {
			x.t.Fatal(err)
		}
		for _, task = range all {
			addr = netip.Addr{}
			for _, on := range task.NetworksAttachments {
				for _, a := range on.Addresses {
					addr = netip.MustParsePrefix(a).Addr()
				}
			}
			if task.ID != before && addr.IsValid() {
				return true
			}
		}
		return false
	})
	return task, addr
}

// without waits until the manager has forgotten all tasks of a service.
func (x *mixed) without(service string) {
	x.t.Helper()
	roottest.Eventually(x.t, "no task of the service is left", func() bool {
		var all []apiTask
		if err := x.Get(x.t.Context(), "/tasks", &all); err != nil {
			x.t.Fatal(err)
		}
		return !slices.ContainsFunc(all, func(k apiTask) bool { return k.ServiceID == service })
	})
}

// often is the interval of repeated questions.
const often = 3 // milliseconds

// ask sends echo requests to an address from inside of a namespace, and returns the time of the first answer.
// It uses the future hardware address, as if resolved: the kernel would resolve an absent address only once a
// second.
func ask(t *testing.T, ns *networktest.Namespace, to netip.Addr) <-chan time.Time {
	t.Helper()
	var conn net.PacketConn
	ns.Do(t, func() (err error) {
		if conn, err = new(net.ListenConfig).ListenPacket(t.Context(), "ip4:icmp", "0.0.0.0"); err != nil {
			return err
		}
		routes, err := netlink.RouteGet(to.AsSlice())
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: routes[0].LinkIndex, State: netlink.NUD_PERMANENT, IP: to.AsSlice(), HardwareAddr: append(net.HardwareAddr{2, 0x42}, to.AsSlice()...)})
	})
	return first(t, conn, &net.IPAddr{IP: to.AsSlice()}, func(seq uint16) []byte { return echo(7, seq) }, func(b []byte) bool { return len(b) >= 8 && b[0] == 0 })
}

// askName asks the name server of a namespace for a name, and tells when it first had an address.
func askName(t *testing.T, ns *networktest.Namespace, name string) <-chan time.Time {
	t.Helper()
	var conn net.PacketConn
	ns.Do(t, func() (err error) {
		conn, err = new(net.ListenConfig).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
		return err
	})
	asked := dnsmessage.Question{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	question := func(id uint16) []byte {
		m := dnsmessage.Message{Header: dnsmessage.Header{ID: id, RecursionDesired: true}, Questions: []dnsmessage.Question{asked}}
		b, err := m.Pack()
		if err != nil {
			t.Error(err)
		}
		return b
	}
	return first(t, conn, net.UDPAddrFromAddrPort(netip.AddrPortFrom(names.Address(), 53)), question, func(b []byte) bool {
		var m dnsmessage.Message
		return m.Unpack(b) == nil && len(m.Answers) > 0
	})
}

// first sends questions often, until the first answer that counts, and tells when that came.
func first(t *testing.T, conn net.PacketConn, to net.Addr, question func(uint16) []byte, counts func([]byte) bool) <-chan time.Time {
	answered := make(chan time.Time, 1)
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		for n := uint16(0); ; n++ {
			if _, err := conn.WriteTo(question(n), to); errors.Is(err, net.ErrClosed) {
				return
			}
			nodetest.Pause(often)
		}
	}()
	go func() {
		buf := make([]byte, 1500)
		for {
			n, _, err := conn.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && counts(buf[:n]) {
				answered <- time.Now()
				_ = conn.Close()
				return
			}
		}
	}()
	return answered
}

// service answers each line at a port of a namespace with one, and notes when a path was first asked for.
type service struct {
	l net.Listener

	mu    sync.Mutex // guards first
	first map[string]time.Time
}

// listenIn serves a port inside of a namespace, until the end of the test or stop.
func listenIn(t *testing.T, ns *networktest.Namespace, port string) *service {
	t.Helper()
	s := &service{first: map[string]time.Time{}}
	ns.Do(t, func() (err error) {
		s.l, err = new(net.ListenConfig).Listen(t.Context(), "tcp4", port)
		return err
	})
	t.Cleanup(s.stop)
	go func() {
		for {
			conn, err := s.l.Accept()
			if err != nil {
				return
			}
			go s.answer(conn)
		}
	}()
	return s
}

func (s *service) stop() { _ = s.l.Close() }

// answer answers lines until the client is gone; empty ones, which end a request of HTTP, end the connection.
func (s *service) answer(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		method, path, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch method {
		case "echo":
			if _, err := conn.Write([]byte("echo\n")); err != nil {
				return
			}
		case "GET":
			path, _, _ = strings.Cut(path, " ")
			s.note(path)
		case "":
			_, _ = conn.Write([]byte("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"))
			return
		}
	}
}

func (s *service) note(path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.first[path].IsZero() {
		s.first[path] = time.Now()
	}
}

// asked waits for a request of a path, and returns the time of the first.
func (s *service) asked(t *testing.T, path string) (at time.Time) {
	t.Helper()
	roottest.Eventually(t, path+" is asked for", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		at = s.first[path]
		return !at.IsZero()
	})
	return at
}

// TestBenchOverlayMemory prints the memory that an overlay network costs, on a node of ours beside a dockerd: the
// growth of all processes that serve the node, without its tasks, when it is on more networks. Each round is a new
// Swarm, because used memory is not released at once.
func TestBenchOverlayMemory(t *testing.T) {
	f := newFigures(t)
	roottest.Run(t, func(t *testing.T) {
		f.t = t
		for _, each := range []bool{true, false} {
			for round := range min(f.rounds, 3) {
				t.Run(fmt.Sprintf("%t %d", each, round), func(t *testing.T) {
					t.Cleanup(func() { unplug(t) })
					x := newMixed(t, 2, 1)
					turns(round, func(node string) { x.memoryOfOverlays(f, node, each) })
				})
			}
		}
		f.print("ours0", "dockerd1")
	})
}

// unplug removes newMixed's network devices.
func unplug(t *testing.T) {
	t.Helper()
	lines := []string{"link delete swarm0"}
	for _, netns := range []string{"dockerd0", "dockerd1", "ours0"} { // their links would disappear only some time after them
		lines = append(lines, "link delete to-"+netns, "netns delete "+netns)
	}
	for _, line := range lines {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "ip", strings.Fields(line)...).CombinedOutput(); err != nil {
			t.Errorf("ip %s: %v: %s", line, err, out)
		}
	}
}

// memoryOfOverlays puts more and more tasks on a node, each on an overlay of its own, or one on more and more overlays.
func (x *mixed) memoryOfOverlays(f *figures, node string, each bool) {
	const least, most = 1, 30
	what := "one task on all of them"
	if each {
		what = "each with a task"
	}
	begun := map[int]size{}
	for _, n := range []int{least, 10, most} {
		file := "version: \"3.8\"\nnetworks:\n"
		var all []string
		for i := range n {
			file += fmt.Sprintf("  n%d: {driver: overlay}\n", i)
			all = append(all, fmt.Sprintf("n%d", i))
		}
		file += "services:\n"
		tasks := map[string]int{}
		add := func(name string, networks []string) {
			file += fmt.Sprintf("  %s: {image: %q, command: [sleep, '100000'], stop_grace_period: 0s, networks: [%s], deploy: {placement: {constraints: [node.labels.where==%s]}}}\n", name, x.ref, strings.Join(networks, ","), node)
			tasks[node+"_"+name] = 1
		}
		if each {
			for i, network := range all {
				add(fmt.Sprintf("s%d", i), []string{network})
			}
		} else {
			add("s", all)
		}
		x.deploy(node, file)
		x.settled(tasks)
		begun[n] = x.size(node)
		if n > least {
			had, has, more := begun[least], begun[n], float64(n-least)
			label := fmt.Sprintf("%d overlays, %s: ", n, what)
			f.add(node, label+"PSS of an overlay, KiB", (has.pss-had.pss)/more)
			f.add(node, label+"private of an overlay, KiB", (has.private-had.private)/more)
			f.add(node, label+"kernel's of an overlay, KiB", (has.kernel-had.kernel)/more)
		} else {
			f.add(node, "1 overlay: private of all, KiB", begun[n].private)
		}
	}
	x.docker("stack", "rm", node)
	x.settled(map[string]int{})
}

// size is the memory of a node in KiB.
type size struct{ pss, private, kernel float64 }

// size is the least memory of a node's processes, without its tasks, within a few seconds: the memory of a
// burst is released in the seconds after it.
func (x *mixed) size(node string) size {
	counts := func(name, args string) bool {
		return strings.HasPrefix(name, "longshore") || strings.HasPrefix(args, "/proc/self/exe\x00")
	}
	for n, d := range x.dockers {
		if node == fmt.Sprintf("dockerd%d", n) {
			counts = func(_, args string) bool { return strings.Contains(args, d.home) } // dockerd, containerd, shims
		}
	}
	sum := func(all map[string]int64) (kib float64) {
		for _, n := range all {
			kib += float64(n) / 1024
		}
		return kib
	}
	least := size{pss: math.MaxFloat64, private: math.MaxFloat64, kernel: math.MaxFloat64}
	for same := 0; same < 5; same++ {
		nodetest.Pause(1000)
		now := size{pss: sum(machine.Memory(counts)), private: sum(machine.Private(counts)), kernel: kernelMemory(x.t)}
		if now.pss < least.pss*0.995 {
			same = 0
		}
		least = size{min(least.pss, now.pss), min(least.private, now.private), min(least.kernel, now.kernel)}
	}
	return least
}

// kernelMemory is the memory of the machine's kernel, in KiB, without reclaimable parts.
func kernelMemory(t *testing.T) (kib float64) {
	t.Helper()
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		if slices.Contains([]string{"SUnreclaim:", "Percpu:", "KernelStack:", "PageTables:"}, f[0]) {
			n, err := strconv.ParseFloat(f[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			kib += n
		}
	}
	return kib
}
