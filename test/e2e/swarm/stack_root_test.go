package swarm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/test/nodetest"
)

// served is a program that answers at port 80 with its task's id.
const served = `    environment: {TASK: "{{.Task.ID}}"}
    command: [sh, -c, 'mkdir /www; echo $$TASK >/www/index.html; exec httpd -f -p 80 -h /www']
    stop_grace_period: 300ms
`

// shop is a common stack: two networks, with one service on both, and a published port.
func (x *mixed) shop() string {
	return fmt.Sprintf(`version: "3.8"
services:
  web:
    image: %[1]s
%[2]s    networks: [front, back]
    ports: ["8080:80"]
    deploy: {replicas: 4}
  data:
    image: %[1]s
%[2]s    networks: {back: {aliases: [store]}}
    deploy: {mode: global}
  edge:
    image: %[1]s
%[2]s    networks: [front]
    deploy: {replicas: 2}
networks:
  front: {driver: overlay}
  back: {driver: overlay, attachable: true}
`, x.ref, served)
}

// deploy deploys a stack.
func (x *mixed) deploy(name, file string) {
	x.t.Helper()
	x.write(name+".yml", file)
	x.docker("stack", "deploy", "--resolve-image", "never", "-c", x.home+"/"+name+".yml", name)
}

// shoreNS is where the test is itself: on the bridge, as any client.
func shoreNS() *networktest.Namespace { return networktest.Own() }

// published waits until each of our nodes answers at a published port by all tasks of a service: from
// outside and on loopback.
func (x *mixed) published(port int, service string, run []placed) {
	x.t.Helper()
	var ids []string
	for _, p := range run {
		if p.service == service {
			ids = append(ids, p.id)
		}
	}
	for n, l := range x.ours {
		host := fmt.Sprintf("%s:%d", oursAddr(n), port)
		x.answersFrom("a published port", shoreNS(), host, ids)
		x.answersFrom("a published port on loopback", &networktest.Namespace{Path: l.link.NetNS()}, fmt.Sprintf("127.0.0.1:%d", port), ids)
	}
}

// traces are the links and the rules of our nodes' machines.
func (x *mixed) traces() map[string][]string {
	x.t.Helper()
	all := map[string][]string{}
	for n, l := range x.ours {
		for _, what := range []string{"ip -o link show", "nft list ruleset", "ip -4 -o address show"} {
			for _, line := range nodetest.Lines(x.t, "nsenter", append([]string{"--net=" + l.link.NetNS()}, strings.Fields(what)...)...) {
				name := fmt.Sprintf("ours%d: %s", n, what)
				all[name] = append(all[name], passing.ReplaceAllString(line, ""))
			}
		}
	}
	return all
}

// passing matches the parts of traces that differ without a change.
var passing = regexp.MustCompile(`^\d+: |# handle \d+|counter packets \d+ bytes \d+|expires \S+|@\S+|link-netns\S* \S+`)

// emptied waits until our nodes have nothing more than before.
func (x *mixed) emptied(before map[string][]string) {
	x.t.Helper()
	for _, l := range x.ours {
		l.none()
	}
	x.every("nothing is left", func() (wrong []string) {
		for what, has := range x.traces() {
			if more := nodetest.More(has, before[what]); len(more) > 0 {
				wrong = append(wrong, fmt.Sprintf("%s: %q more", what, more))
			}
		}
		return wrong
	})
	for _, l := range x.ours {
		l.node.Check()
	}
}

// TestAStackOverMixedNodes: a common stack runs on two dockerds and two nodes of ours. Each of its tasks
// reaches each other one, by every name and address, and no node holds anything else; also while it is
// scaled again and again, when a node is drained, and when the stack is deployed a second time. Its port
// answers at our nodes.
func TestAStackOverMixedNodes(t *testing.T) {
	beside(t, func(t *testing.T) {
		began := time.Now()
		x := newMixed(t, 2, 2)
		t.Logf("all nodes are ready after %.1f s", time.Since(began).Seconds())
		networks := []string{"shop_front", "shop_back"}
		count := map[string]int{"shop_web": 4, "shop_data": 4, "shop_edge": 2}
		x.deploy("shop", x.shop())
		run := x.settled(count)
		t.Logf("all tasks run after %.1f s", time.Since(began).Seconds())
		x.agree("deployed", run, networks...)
		x.published(8080, "shop_web", run)
		x.docker("stack", "rm", "shop")
		for _, l := range x.ours {
			l.none()
		}
		x.every("the networks are gone", func() []string {
			return strings.Fields(x.docker("network", "ls", "--quiet", "--filter", "label=com.docker.stack.namespace=shop"))
		})
		var before map[string][]string
		x.every("our nodes are at rest", func() []string {
			last := before
			before = x.traces()
			if !maps.EqualFunc(last, before, slices.Equal) {
				return []string{fmt.Sprint(before)}
			}
			nodetest.Pause(300)
			return nil
		})

		// The same again.
		x.deploy("shop", x.shop())
		run = x.settled(count)
		x.agree("deployed again", run, networks...)
		const times = 20
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 0))
		for n := range times {
			count["shop_web"], count["shop_edge"] = 1+rnd.IntN(8), 1+rnd.IntN(5)
			x.docker("service", "scale", "--detach", fmt.Sprintf("shop_web=%d", count["shop_web"]), fmt.Sprintf("shop_edge=%d", count["shop_edge"]))
			run = x.settled(count)
			x.agree(fmt.Sprintf("scaled %d times, to %v", n+1, count), run, networks...)
		}
		x.published(8080, "shop_web", run)
		for _, id := range []string{x.ours[0].id, x.dockers[1].id} {
			x.docker("node", "update", "--availability", "drain", id)
			count["shop_data"] = 3
			run = x.settled(count)
			x.agree(x.names[id]+" is drained", run, networks...)
			x.docker("node", "update", "--availability", "active", id)
			count["shop_data"] = 4
			run = x.settled(count)
			x.agree(x.names[id]+" is active again", run, networks...)
		}
		x.published(8080, "shop_web", run)
		x.docker("stack", "rm", "shop")
		x.emptied(before)
	})
}
