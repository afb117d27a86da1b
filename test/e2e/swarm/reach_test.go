package swarm

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
)

// placed is a task that runs, as the manager has it.
type placed struct {
	id, service, name string // others find it by the name
	node              string // one of mixed.names
	pid               int
	addrs             map[string]netip.Addr // by the networks' names
	vips              map[string]netip.Addr // its service's
}

func (p placed) String() string { return p.name + " at " + p.node }

// ns is the namespace of its program.
func (p placed) ns() *networktest.Namespace {
	return &networktest.Namespace{Path: fmt.Sprintf("/proc/%d/ns/net", p.pid)}
}

// sees says whether two tasks have a network in common.
func (p placed) sees(q placed) bool {
	for network := range q.addrs {
		if network != "ingress" && p.addrs[network].IsValid() {
			return true
		}
	}
	return false
}

// apiNode, apiNetwork, apiService and apiTask are the parts of the manager's answers that tests use.
type apiNode struct {
	ID   string
	Spec struct{ Availability string }
}

type apiNetwork struct {
	ID   string
	Spec struct{ Name string }
}

type apiService struct {
	ID   string
	Spec struct {
		Name string
		Mode struct{ Global *struct{} }
	}
	Endpoint struct {
		VirtualIPs []struct{ NetworkID, Addr string }
	}
	UpdateStatus struct{ State string }
}

type apiTask struct {
	ID, ServiceID, NodeID, DesiredState string
	Slot                                int
	CreatedAt                           time.Time
	Status                              struct {
		State, Err      string
		ContainerStatus struct{ PID int }
	}
	NetworksAttachments []struct {
		Network   apiNetwork
		Addresses []string
	}
}

// placed are the tasks that are to run, and those of them that do not yet. One on a node that is
// drained is about to be replaced.
func (x *mixed) placed() (run []placed, wait []string) {
	x.t.Helper()
	var services []apiService
	var tasks []apiTask
	var nodes []apiNode
	for path, answer := range map[string]any{"/services": &services, "/nodes": &nodes, "/tasks" + dockerd.Filter("desired-state", "running"): &tasks} {
		if err := x.Get(x.t.Context(), path, answer); err != nil {
			x.t.Fatal(err)
		}
	}
	by := map[string]apiService{}
	for _, s := range services {
		if by[s.ID] = s; s.UpdateStatus.State == "updating" {
			wait = append(wait, s.Spec.Name+" is updated")
		}
	}
	drained := map[string]bool{}
	for _, n := range nodes {
		drained[n.ID] = n.Spec.Availability == "drain"
	}
	for _, k := range tasks {
		s, ok := by[k.ServiceID]
		slot := fmt.Sprint(k.Slot)
		if ok && s.Spec.Mode.Global != nil {
			slot = k.NodeID
		}
		p := placed{
			id: k.ID, service: s.Spec.Name, name: s.Spec.Name + "." + slot + "." + k.ID, node: x.names[k.NodeID], pid: k.Status.ContainerStatus.PID,
			addrs: map[string]netip.Addr{}, vips: map[string]netip.Addr{},
		}
		if !ok { // a container of somebody's on an attachable network
			continue
		}
		networks := map[string]string{}
		for _, on := range k.NetworksAttachments {
			networks[on.Network.ID] = on.Network.Spec.Name
			for _, a := range on.Addresses {
				p.addrs[on.Network.Spec.Name] = netip.MustParsePrefix(a).Addr()
			}
		}
		for _, v := range s.Endpoint.VirtualIPs {
			if name := networks[v.NetworkID]; name != "" && v.Addr != "" {
				p.vips[name] = netip.MustParsePrefix(v.Addr).Addr()
			}
		}
		if k.Status.State != "running" || p.pid == 0 || drained[k.NodeID] {
			wait = append(wait, fmt.Sprintf("%s is %s %s", p, k.Status.State, k.Status.Err))
			continue
		}
		run = append(run, p)
	}
	slices.SortFunc(run, func(a, b placed) int { return strings.Compare(a.name, b.name) })
	return run, wait
}

// failed logs which tasks did not run, and why.
func (x *mixed) failed() {
	x.t.Helper()
	var all []apiTask
	if err := x.Get(x.t.Context(), "/tasks", &all); err != nil {
		x.t.Log(err)
	}
	for _, k := range all {
		if k.Status.Err != "" {
			x.t.Logf("task %s at %s is %s: %s", k.ID, x.names[k.NodeID], k.Status.State, k.Status.Err)
		}
	}
	x.t.Log(x.docker("node", "ls"))
}

// settled waits until all tasks that are to run do, and that these are so many of each service.
func (x *mixed) settled(want map[string]int) (run []placed) {
	x.t.Helper()
	var wait []string
	count, began := map[string]int{}, time.Now()
	defer func() {
		if x.t.Failed() {
			x.t.Logf("tasks %v run, wanted %v; others: %s", count, want, strings.Join(wait, "; "))
			x.failed()
			return
		}
		x.t.Logf("%v run: after %.1f s", want, time.Since(began).Seconds())
	}()
	roottest.Eventually(x.t, "all tasks run", func() bool {
		run, wait = x.placed()
		clear(count)
		for _, p := range run {
			count[p.service]++
		}
		return len(wait) == 0 && maps.Equal(count, want)
	})
	return run
}

// every waits until there is nothing wrong any more.
func (x *mixed) every(what string, wrong func() []string) {
	x.t.Helper()
	var last []string
	began := time.Now()
	defer func() {
		if x.t.Failed() {
			x.t.Logf("%s: %d wrong:\n%s", what, len(last), strings.Join(last[:min(20, len(last))], "\n"))
		} else {
			x.t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
		}
	}()
	roottest.Eventually(x.t, what, func() bool {
		last = wrong()
		return len(last) == 0
	})
}

// unreached says which tasks do not reach which others: by address, by name, by the names of all of
// a service's tasks and of the service; and from our nodes the service by its own address.
func unreached(run []placed) (wrong []string) {
	var mu sync.Mutex // guards wrong
	var all sync.WaitGroup
	for _, from := range run {
		all.Go(func() {
			found := from.misses(run)
			mu.Lock()
			defer mu.Unlock()
			wrong = append(wrong, found...)
		})
	}
	all.Wait()
	slices.Sort(wrong)
	return wrong
}

// perNetwork is a set of addresses on each of several networks.
type perNetwork map[string][]netip.Addr

func (n perNetwork) add(network string, addr netip.Addr) {
	if addr.IsValid() && !slices.Contains(n[network], addr) {
		n[network] = sorted(append(n[network], addr))
	}
}

func sorted(list []netip.Addr) []netip.Addr {
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// misses lists the failures of a task to reach others.
func (p placed) misses(run []placed) (wrong []string) {
	complain := func(format string, args ...any) { wrong = append(wrong, p.String()+": "+fmt.Sprintf(format, args...)) }
	tasks, vips, ids := map[string]perNetwork{}, map[string]perNetwork{}, map[string][]string{}
	for _, q := range run {
		if !p.sees(q) {
			continue
		}
		if tasks[q.service] == nil {
			tasks[q.service], vips[q.service] = perNetwork{}, perNetwork{}
		}
		own := perNetwork{}
		for network, addr := range q.addrs {
			if network == "ingress" || !p.addrs[network].IsValid() {
				continue
			}
			if got, err := p.get(addr.String()); got != q.id {
				complain("%s of %s answers %q, %v", addr, q, got, err)
			}
			own.add(network, addr)
			tasks[q.service].add(network, addr)
			vips[q.service].add(network, q.vips[network])
		}
		ids[q.service] = append(ids[q.service], q.id)
		p.expect(complain, q.name, own)
	}
	for service, addrs := range tasks {
		p.expect(complain, "tasks."+service, addrs)
		if len(vips[service]) == 0 {
			p.expect(complain, service, addrs)
			continue
		}
		p.expect(complain, service, vips[service])
		if !strings.HasPrefix(p.node, "ours") {
			continue // dockerd's own need IPVS, which the kernel of the tests may lack
		}
		for _, on := range vips[service] {
			if got, err := p.get(on[0].String()); !slices.Contains(ids[service], got) {
				complain("the service %s at %s answers %q, %v", service, on[0], got, err)
			}
		}
	}
	return wrong
}

// expect complains when a name has other addresses than these. A dockerd answers with those of one of the
// networks that both are on, a node of ours with those of all.
func (p placed) expect(complain func(string, ...any), name string, want perNetwork) {
	got, err := p.lookUp(name)
	var all []netip.Addr
	for _, on := range want {
		if all = append(all, on...); slices.Equal(sorted(got), on) {
			return
		}
	}
	if strings.HasPrefix(p.node, "ours") && slices.Equal(sorted(got), sorted(all)) {
		return
	}
	complain("%s has the addresses %v, %v; not %v", name, got, err, want)
}

// lookUp asks the name server of a task.
func (p placed) lookUp(name string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), impatience)
	defer cancel()
	ns := p.ns()
	r := net.Resolver{PreferGo: true, StrictErrors: true, Dial: func(ctx context.Context, network, _ string) (c net.Conn, err error) {
		err = ns.Try(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, "127.0.0.11:53")
			return err
		})
		return c, err
	}}
	return r.LookupNetIP(ctx, "ip4", name+".")
}

// impatience limits a question that is repeated, calm one that must not be lost.
const (
	impatience = 2 * time.Second
	calm       = 20 * time.Second
)

// get asks a web server from inside of a task: at port 80, where the host has no other.
func (p placed) get(host string) (string, error) { return getFrom(p.ns(), host, impatience) }

// getFrom asks a web server from inside of a namespace.
func getFrom(ns *networktest.Namespace, host string, timeout time.Duration) (string, error) {
	client := &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = ns.Try(func() error {
			c, err = new(net.Dialer).DialContext(ctx, network, addr)
			return err
		})
		return c, err
	}}}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+host+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

// misheld says where dockerds have other tasks or nodes on a network than there are: too many, too few
// or at other addresses. One that has no task on it does not know of others.
func (x *mixed) misheld(run []placed, networks ...string) (wrong []string) {
	x.t.Helper()
	for _, network := range networks {
		want, nodes := map[string][]string{}, map[string]bool{}
		for _, p := range run {
			if addr := p.addrs[network]; addr.IsValid() {
				want[p.service] = append(want[p.service], p.name+" "+addr.String())
				nodes[p.node] = true
			}
		}
		for n, d := range x.dockers {
			if !nodes[fmt.Sprintf("dockerd%d", n)] {
				continue
			}
			has := d.network(network)
			if len(has.Peers) != len(nodes) {
				wrong = append(wrong, fmt.Sprintf("dockerd%d has the nodes %v on %s, not %v", n, has.Peers, network, slices.Sorted(maps.Keys(nodes))))
			}
			for service := range has.Services {
				if want[service] == nil && len(has.Services[service].Tasks) > 0 {
					wrong = append(wrong, fmt.Sprintf("dockerd%d has tasks of %q on %s: %+v", n, service, network, has.Services[service].Tasks))
				}
			}
			for service, list := range want {
				var got []string
				for _, k := range has.Services[service].Tasks {
					got = append(got, k.Name+" "+k.EndpointIP)
				}
				slices.Sort(got)
				if slices.Sort(list); !slices.Equal(got, list) {
					wrong = append(wrong, fmt.Sprintf("dockerd%d has of %s on %s\n  %q, not\n  %q", n, service, network, got, list))
				}
			}
		}
	}
	return wrong
}

// misseen lists the errors in our nodes' views of their networks: of their own tasks, and of the others' interfaces:
// those of tasks, and one of each dockerd with a task there, for its balancing.
func (x *mixed) misseen(run []placed, networks ...string) (wrong []string) {
	x.t.Helper()
	for n, l := range x.ours {
		self, view := fmt.Sprintf("ours%d", n), l.overlays()
		for _, network := range networks {
			tasks, others, nodes := 0, 0, map[string]bool{}
			for _, p := range run {
				switch {
				case !p.addrs[network].IsValid():
				case p.node == self:
					tasks++
				default:
					others++
					nodes[p.node] = strings.HasPrefix(p.node, "dockerd")
				}
			}
			maps.DeleteFunc(nodes, func(_ string, dockerd bool) bool { return !dockerd })
			if tasks == 0 {
				others, nodes = 0, nil
			}
			told, has := 0, 0
			for _, on := range view.Networks {
				if on.Name == network {
					told, has = on.Tasks, on.Peers
				}
			}
			if told != tasks || has != others+len(nodes) {
				wrong = append(wrong, fmt.Sprintf("%s has %d tasks and %d others on %s, not %d and %d+%d", self, told, has, network, tasks, others, len(nodes)))
			}
		}
	}
	return wrong
}

// agree waits until every task reaches every other one, and all nodes hold the right records.
func (x *mixed) agree(what string, run []placed, networks ...string) {
	x.t.Helper()
	defer func() {
		if x.t.Failed() { // also when tasks are not reached: this names the nodes that do not know a task
			x.t.Logf("held or seen wrongly:\n%s", strings.Join(append(x.misheld(run, networks...), x.misseen(run, networks...)...), "\n"))
		}
	}()
	x.every(what+": all reach each other", func() []string { return unreached(run) })
	x.every(what+": all nodes hold what there is", func() []string {
		return append(x.misheld(run, networks...), x.misseen(run, networks...)...)
	})
}
