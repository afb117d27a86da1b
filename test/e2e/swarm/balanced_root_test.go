package swarm

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
)

// outside is the namespace of the test's end of the bridge, where no node is.
var outside = networktest.Own()

// healthy is served with a task that gets connections as soon as it takes them, and ends at once on SIGTERM, as most
// servers do: the node lets it serve while others may still send it some. Where there is IPVS everything is emulated,
// and messages between nodes take longer than that: there it ends three seconds later.
func healthy() string {
	linger := 0
	if hasIPVS() {
		linger = 3
	}
	return strings.NewReplacer("exec httpd -f -p 80 -h /www", fmt.Sprintf(`httpd -f -p 80 -h /www & trap "sleep %d; exit 0" TERM; wait`, linger), "300ms\n", `5s
    healthcheck: {test: [CMD, wget, -q, -O, /dev/null, "http://127.0.0.1/"], interval: 5s, timeout: 30s, retries: 20}
`).Replace(served)
}

// store is a stack of a service with a published port, and of one that asks it on each node.
func (x *mixed) store() string {
	return fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %[1]s
%[3]s    networks: [back]
    ports: ["8080:80"]
    deploy: {replicas: 4}
  asks:
    image: %[1]s
%[2]s    networks: [back]
    deploy: {mode: global}
networks:
  back: {driver: overlay}
`, x.ref, served, healthy())
}

// of are the ids of a service's tasks.
func of(service string, run []placed) (ids []string) {
	for _, p := range run {
		if p.service == service {
			ids = append(ids, p.id)
		}
	}
	return ids
}

// addrs are where the nodes are that can balance.
func (x *mixed) addrs() (all []string) {
	for n := range x.dockers {
		if hasIPVS() {
			all = append(all, dockerdAddr(n))
		}
	}
	for n := range x.ours {
		all = append(all, oursAddr(n))
	}
	return all
}

// balanced waits until a task on each node reaches all tasks of the service of store by its address,
// and everybody does at the published port of each node, from outside and from the node itself.
func (x *mixed) balanced(when string, run []placed) {
	x.t.Helper()
	web := of("shop_web", run)
	vip := vipOf(run, "shop_web", "shop_back")
	for _, p := range run {
		if p.service == "shop_asks" && p.balances() {
			x.answersFrom(when+": the service's address in "+p.String(), p.ns(), vip.String(), web)
		}
	}
	for _, addr := range x.addrs() {
		x.answersFrom(when+": the port at "+addr, outside, addr+":8080", web)
	}
	for n, l := range x.ours {
		x.answersFrom(fmt.Sprintf("%s: the port in ours%d", when, n), &networktest.Namespace{Path: l.link.NetNS()}, "127.0.0.1:8080", web)
	}
}

// balances says whether the address of a service leads somewhere on a task's node.
func (p placed) balances() bool { return hasIPVS() || strings.HasPrefix(p.node, "ours") }

// vipOf is the address of a service on a network.
func vipOf(run []placed, service, network string) (vip netip.Addr) {
	for _, p := range run {
		if p.service == service {
			vip = p.vips[network]
		}
	}
	return vip
}

// asksAll begins to ask the service of store in all ways but from tasks on one node.
func (x *mixed) asksAll(run []placed, but string) (all []*gets) {
	x.t.Helper()
	vip := vipOf(run, "shop_web", "shop_back")
	for _, p := range run {
		if p.service == "shop_asks" && p.balances() && p.node != but {
			all = append(all, keepAsking(x.t, p.String(), p.ns(), vip.String()))
		}
	}
	for _, addr := range x.addrs() {
		all = append(all, keepAsking(x.t, "somebody outside", outside, addr+":8080"))
	}
	return all
}

// answered ends them: each was answered each time.
func answered(t *testing.T, when string, all []*gets) {
	t.Helper()
	total := 0
	for _, g := range all {
		n, wrong := g.end()
		if total += n; len(wrong) > 0 {
			t.Errorf("%s: %s: %d of %d not answered: %s", when, g.what, len(wrong), n, strings.Join(wrong[:min(5, len(wrong))], "; "))
		}
	}
	t.Logf("%s: %d requests", when, total)
	if total == 0 {
		t.Errorf("%s: nothing was asked", when)
	}
}

// TestServicesOverDockerds: a service with tasks of dockerd's and ours answers with all of them, by its
// address on dockerd's node and on ours, and at the port of each node. Our tasks answer on the network
// of published ports at nothing else. While the service shrinks and grows, and while each node is
// emptied, no request fails. With IPVS, requests also go through dockerd's balancing.
func TestServicesOverDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		x := newMixed(t, 1, 1)
		x.patient()
		x.deploy("shop", x.store())
		run := x.settled(map[string]int{"shop_web": 4, "shop_asks": 2})
		x.balanced("deployed", run)

		for _, p := range run {
			if p.service != "shop_web" || p.node != "ours0" {
				continue
			}
			if got := x.balances("ingress_sbox"); hasIPVS() && !strings.Contains(got, hexAddr(p.addrs["ingress"])+":") {
				t.Errorf("dockerd's IPVS does not lead to %s at %s:\n%s", p, p.addrs["ingress"], got)
			}
			// From a client on that network: dockerd's own namespace for it.
			at := p.addrs["ingress"].String()
			if got, err := getFrom(x.sandbox("ingress_sbox"), at+":8080", calm); got != p.id {
				t.Errorf("at the published port, %s answers %q, %v", p, got, err)
			}
			if got, err := getFrom(x.sandbox("ingress_sbox"), at, impatience); err == nil {
				t.Errorf("at another port than the published one, %s answers %q", p, got)
			}
		}

		all := x.asksAll(run, "")
		x.docker("service", "scale", "--detach", "shop_web=1")
		run = x.settled(map[string]int{"shop_web": 1, "shop_asks": 2})
		x.balanced("shrunk", run)
		x.docker("service", "scale", "--detach", "shop_web=4")
		run = x.settled(map[string]int{"shop_web": 4, "shop_asks": 2})
		x.balanced("grown", run)
		answered(t, "while it shrinks and grows", all)

		// While a node is emptied, the other one's tasks run on.
		empty := func(name, id string, replicas int) {
			all := x.asksAll(run, name)
			x.docker("node", "update", "--availability", "drain", id)
			run = x.settled(map[string]int{"shop_web": replicas, "shop_asks": 1})
			x.balanced(name+" is empty", run)
			answered(t, "while "+name+" is emptied", all)
		}
		empty("ours0", x.ours[0].id, 4)
		x.docker("node", "update", "--availability", "active", x.ours[0].id)
		x.docker("service", "scale", "--detach", "shop_web=6")
		run = x.settled(map[string]int{"shop_web": 6, "shop_asks": 2})
		x.balanced("with both nodes again", run)
		empty("dockerd0", x.id, 6)
		x.docker("stack", "rm", "shop")
		for _, l := range x.ours {
			l.none()
			l.node.Check()
		}
	})
}
