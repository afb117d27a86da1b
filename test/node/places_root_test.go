package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// place is a node with an image, for tests of networks that users have defined.
type place struct {
	volumes
	t *testing.T
}

func startPlace(t *testing.T) place { return place{startVolumes(t), t} }

func (p place) do(args ...string) string {
	p.t.Helper()
	return p.must(p.t, args...)
}

// in runs a shell's command in a container.
func (p place) in(name, command string) (string, error) {
	out, err := p.CLI("exec", name, "/bin/sh", "-c", command)
	return strings.TrimSpace(out), err
}

// reaches asks until one container has the web page of another one by this name.
func (p place) reaches(from, name, page string) {
	p.t.Helper()
	var got string
	var err error
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s reaches %s: %q, %v", from, name, got, err)
		}
	}()
	nodetest.Eventually(p.t, from+" reaches "+name, func() bool {
		got, err = p.in(from, "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "+name+" 80 | tail -n 1")
		return err == nil && got == page
	})
}

// unknown says that a container does not find a name.
func (p place) unknown(from, name string) {
	p.t.Helper()
	var got string
	defer func() {
		if p.t.Failed() {
			p.t.Logf("%s finds %s: %q", from, name, got)
		}
	}()
	// A name server that was killed may not be back yet: that is no answer.
	nodetest.Eventually(p.t, from+" has an answer about "+name, func() bool {
		got, _ = p.in(from, "nslookup "+name+" 2>&1") // it fails when there is no such name
		return strings.Contains(got, "can't find "+name) || strings.Contains(got, "Name:")
	})
	if strings.Contains(got, "Name:") {
		p.t.Errorf("%s finds %s: %q", from, name, got)
	}
}

// nameServer is the process that answers names.
func (p place) nameServer() int {
	p.t.Helper()
	pids := nodetest.Processes("longshore-names", "")
	if len(pids) != 1 {
		p.t.Fatalf("%d name servers", len(pids))
	}
	return pids[0]
}

// web is a program that serves its name.
func web(dir string) []string {
	return []string{"/bin/sh", "-c", "test -e " + dir + "/index.html || hostname > " + dir + "/index.html; exec httpd -f -p 80 -h " + dir}
}

// TestThreeContainersOnANetwork: a web server, a cache and a database find each other by name, have
// their data in volumes, live on when the agent is killed, and nothing stays of them.
func TestThreeContainersOnANetwork(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := startPlace(t)
		p.do("run", "--rm", "-v", "first:/data", p.image, "/bin/true") // a first container's remains are no leak
		p.do("volume", "rm", "first")
		before := p.Baseline(t)
		p.do("network", "create", "app")
		for _, name := range []string{"web", "cache", "db"} {
			args := []string{"run", "-d", "--name", name, "--network", "app", "--network-alias", "the-" + name, "-v", name + "-data:/data", p.image}
			p.do(append(args, web("/data")...)...)
		}
		all := func() {
			t.Helper()
			for _, from := range []string{"web", "cache", "db"} {
				for _, to := range []string{"web", "cache", "db"} {
					p.reaches(from, to, to)
				}
				p.reaches(from, "the-db", "db")
				p.reaches(from, "CACHE.app", "cache")
			}
		}
		all()
		// A connection that stays.
		p.do("exec", "-d", "db", "/bin/sh", "-c", "sleep 1000 | nc -l -p 5432 > /data/stream")
		// The listener, which takes one connection, may not listen yet.
		p.do("exec", "-d", "web", "/bin/sh", "-c", "until while echo line; do sleep 0.1; done | nc db 5432; do sleep 0.1; done")
		lines := func() int {
			out, _ := p.in("db", "wc -l < /data/stream")
			n, _ := strconv.Atoi(out)
			return n
		}
		nodetest.Eventually(t, "the connection carries data", func() bool { return lines() > 0 })
		server := p.nameServer()

		// A program that asks while there is no agent.
		p.do("exec", "-d", "web", "/bin/sh", "-c", "until test -e /data/dead; do sleep 0.1; done; nslookup cache > /data/found; touch /data/asked")
		p.Kill()
		data := func(name string) string { return filepath.Join(p.Root, "volumes/cli/web-data/_data", name) }
		if err := os.WriteFile(data("dead"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "somebody has asked", func() bool {
			_, err := os.Stat(data("asked"))
			return err == nil
		})
		if b, err := os.ReadFile(data("found")); err != nil || !strings.Contains(string(b), "Name:\tcache\nAddress: ") {
			t.Errorf("without an agent, cache is %q, %v", b, err)
		}
		p.Up()
		all()
		if now := p.nameServer(); now != server {
			t.Errorf("the name server is %d, was %d", now, server)
		}
		had := lines()
		nodetest.Eventually(t, "the connection carries data after the agent's death", func() bool { return lines() > had })

		// The name server dies, too: a new query waits for the next agent.
		p.do("exec", "-d", "web", "/bin/sh", "-c", "until test -e /data/both; do sleep 0.1; done; touch /data/asking; "+
			"printf '\\000\\027\\007\\007\\001\\000\\000\\001\\000\\000\\000\\000\\000\\000\\005cache\\000\\000\\001\\000\\001' | nc -w 100 127.0.0.11 53 > /data/answer; touch /data/answered")
		p.Kill()
		if err := syscall.Kill(server, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		nodetest.Eventually(t, "the name server has gone", func() bool { return len(nodetest.Processes("longshore-names", "")) == 0 })
		if err := os.WriteFile(data("both"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		there := func(name string) func() bool {
			return func() bool {
				_, err := os.Stat(data(name))
				return err == nil
			}
		}
		nodetest.Eventually(t, "somebody asks", there("asking"))
		p.Up()
		nodetest.Eventually(t, "who has asked has an answer", there("answered"))
		if b, err := os.ReadFile(data("answer")); err != nil || len(b) < 12 || b[5]&15 != 0 || b[9] != 1 { // no error, one address
			t.Errorf("the answer to who asked while agent and name server were dead is %x, %v", b, err)
		}
		all()

		if err := syscall.Kill(p.nameServer(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		all()
		p.do("stop", "-t", "0", "cache")
		p.unknown("web", "cache")
		p.do("start", "cache")
		p.reaches("web", "cache", "cache")
		p.do("rename", "cache", "store")
		p.reaches("web", "store", "cache")
		p.unknown("web", "cache")
		p.do("rename", "store", "cache")
		clean(t, p.Node)
		if out, err := p.CLI("network", "rm", "app"); err == nil {
			t.Errorf("a network in use was removed: %s", out)
		}
		p.do("rm", "-f", "web", "cache", "db")
		p.do("run", "--rm", "-v", "db-data:/data", p.image, "/bin/sh", "-c", "test $(cat /data/index.html) = db")
		p.do("volume", "rm", "web-data", "cache-data", "db-data")
		p.do("network", "rm", "app")
		clean(t, p.Node)
		nodetest.Eventually(t, "the name server has ended", func() bool { return len(nodetest.Processes("longshore-names", "")) == 0 })
		var diff string
		nodetest.Eventually(t, "nothing stays", func() bool {
			diff = p.Holdings(t).Lasting().Since(before.Lasting())
			return diff == ""
		})
	})
}

// TestNetworksExchangeNothing: containers of two networks, of the agent's own and of an internal one
// do not reach each other, by name or by address, but for a published port; a requested address is
// used; and an internal network has no way out.
func TestNetworksExchangeNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := startPlace(t)
		p.do("network", "create", "--subnet", "10.77.0.0/24", "--gateway", "10.77.0.254", "--subnet", "fd77::/64", "one")
		p.do("network", "create", "--subnet", "10.78.0.0/24", "two")
		p.do("network", "create", "--subnet", "10.79.0.0/24", "--internal", "inside")
		run := func(name string, args ...string) {
			t.Helper()
			p.do(slices.Concat([]string{"run", "-d", "--name", name}, args, []string{p.image, "/bin/sh", "-c", "mkdir /srv; cd /srv; hostname > index.html; exec httpd -f -p 80"})...)
		}
		run("a", "--network", "one", "--ip", "10.77.0.7", "-p", "18077:80", "--add-host", "node:host-gateway")
		run("b", "--network", "one", "--ip", "10.77.0.1")
		run("c", "--network", "two", "--ip", "10.78.0.7")
		run("d", "--network", "inside", "--ip", "10.79.0.7")
		run("e", "--network", "inside", "--ip", "10.79.0.8")
		run("f")
		p.reaches("b", "10.77.0.7", "a")
		p.reaches("a", "b", "b")
		p.reaches("d", "e", "e")
		six, err := p.in("b", "grep fd77: /etc/hosts")
		if err != nil {
			t.Fatal(err)
		}
		if got, err := p.in("a", "nslookup b | grep "+strings.Fields(six)[0]+"; printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 "+strings.Fields(six)[0]+" 80 | tail -n 1"); err != nil || !strings.HasSuffix(got, "\nb") {
			t.Errorf("by IPv6: %q, %v", got, err)
		}
		addr := p.do("inspect", "f")
		_, addr, _ = strings.Cut(addr, "\"addrs\": [\n")
		f := strings.Trim(strings.SplitN(addr, "\n", 2)[0], "\", ")
		for from, all := range map[string][]string{
			"a": {"10.78.0.7", "10.79.0.7", f}, "c": {"10.77.0.7", "10.79.0.7", f}, "d": {"10.77.0.7", "10.78.0.7", f}, "f": {"10.77.0.7", "10.78.0.7", "10.79.0.7"},
		} {
			for _, to := range all {
				if got, err := p.in(from, "ping -c 1 -W 1 "+to); err == nil {
					t.Errorf("%s reaches %s: %s", from, to, got)
				}
			}
		}
		for from, name := range map[string]string{"a": "c", "c": "a", "d": "b"} {
			p.unknown(from, name)
		}
		if got, _ := p.in("a", "grep -w node /etc/hosts"); got != "10.77.0.254\tnode\nfd77::1\tnode" {
			t.Errorf("host-gateway is %q", got)
		}
		if got, err := p.in("d", "ip route"); err != nil || strings.Contains(got, "default") {
			t.Errorf("the internal network's routes: %s, %v", got, err)
		}
		// A published port is for all that reach the node.
		if got, err := p.in("c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 10.78.0.1 18077 | tail -n 1"); err != nil || got != "a" {
			t.Errorf("the published port: %q, %v", got, err)
		}
		for _, wrong := range [][]string{
			{"network", "create", "one"},
			{"network", "create", "host"},
			{"network", "create", "a/b"},
			{"network", "create", "--subnet", "10.77.0.0/16", "wide"},
			{"network", "create", "--subnet", "10.90.0.0/31", "small"},
			{"network", "create", "--subnet", "10.90.0.0/24", "--gateway", "10.91.0.1", "out"},
			{"network", "rm", "one"},
			{"network", "rm", "none-such"},
			{"run", "--rm", "--network", "none-such", p.image, "/bin/true"},
			{"run", "--rm", "--network", "one", "--ip", "10.77.0.7", p.image, "/bin/true"},
			{"run", "--rm", "--network", "one", "--ip", "10.77.0.254", p.image, "/bin/true"},
			{"run", "--rm", "--network", "two", "--ip", "10.77.0.9", p.image, "/bin/true"},
			{"run", "--rm", "--network", "inside", "-p", "18079:80", p.image, "/bin/true"},
		} {
			if out, err := p.CLI(wrong...); err == nil {
				t.Errorf("%v: %s", wrong, out)
			}
		}
		clean(t, p.Node)
		p.do("rm", "-f", "a", "b", "c", "d", "e", "f")
		if got := p.do("network", "prune"); got != "inside\none\ntwo\n" {
			t.Errorf("pruned: %q", got)
		}
		clean(t, p.Node)
		if got := nodetest.Lines(t, "ip", "-o", "link", "show", "type", "bridge"); len(got) != 1 {
			t.Errorf("bridges: %v", got)
		}
		if got := strings.Join(nodetest.Lines(t, "nft", "list", "tables"), " "); strings.Contains(got, "lsu-") {
			t.Errorf("tables: %v", got)
		}
	})
}

// TestAContainerOnSeveralNetworks: a container is put on networks and taken off them while it runs
// and while it is stopped; names, addresses, published ports and the way out follow, and the agent's
// death changes nothing of it.
func TestAContainerOnSeveralNetworks(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := startPlace(t)
		p.do("run", "--rm", p.image, "/bin/true") // makes the agent's own bridge and its rules, which stay
		before := p.Baseline(t)
		p.do("network", "create", "--subnet", "10.77.0.0/24", "front")
		p.do("network", "create", "--subnet", "10.78.0.0/24", "--internal", "back")
		run := func(name string, args ...string) {
			args = append([]string{"run", "-d", "--name", name, "--mount", "type=tmpfs,destination=/www"}, args...)
			p.do(append(append(args, p.image), web("/www")...)...)
		}
		run("db", "--network", "name=back,alias=sql,ip=10.78.0.7")
		run("app", "--network", "back", "--network", "name=front,alias=site,ip=10.77.0.9", "-p", "18077:80")
		run("web") // on the agent's own network, where nobody has a name
		p.reaches("app", "sql", "db")
		p.reaches("db", "app", "app")
		p.unknown("db", "site")
		p.do("network", "connect", "--alias", "door", "front", "web")
		p.reaches("web", "site", "app")
		p.reaches("app", "door", "web")
		p.unknown("web", "sql")
		way := func(name string) string {
			out, _ := p.in(name, "ip route | sed -n 's/^default .* dev //p'")
			return out
		}
		if got := way("app"); got != "eth1" {
			t.Errorf("the way out of app: %q", got)
		}
		var docs []struct {
			HostConfig      struct{ NetworkMode string }
			NetworkSettings struct {
				Networks map[string]struct {
					IPAddress string
					Aliases   []string
				}
			}
		}
		if err := json.Unmarshal([]byte(p.do("inspect", "app")), &docs); err != nil || len(docs) != 1 {
			t.Fatalf("inspect: %v", err)
		}
		if n := docs[0].NetworkSettings.Networks; len(n) != 2 || n["front"].IPAddress != "10.77.0.9" || !slices.Equal(n["front"].Aliases, []string{"site"}) || n["back"].IPAddress == "" {
			t.Errorf("networks of app: %+v", n)
		}
		if mode := docs[0].HostConfig.NetworkMode; mode != "front" && mode != "back" {
			t.Errorf("the network mode of app is %q", mode)
		}
		if got := p.do("ps", "--filter", "network=back", "--filter", "name=app", "--format", "{{.Networks}}"); !strings.Contains(got, "front") || !strings.Contains(got, "back") {
			t.Errorf("ps by the network of app: %q", got)
		}
		if got := p.do("ps", "-q", "--filter", "network=builtin"); got != "" {
			t.Errorf("ps by the mode of the agent's network: %q", got)
		}
		p.Kill()
		p.Up()
		p.reaches("app", "sql", "db")
		p.reaches("web", "site", "app")
		for _, wrong := range [][]string{
			{"network", "connect", "front", "web"},
			{"network", "connect", "none-such", "web"},
			{"network", "connect", "--ip", "10.78.0.7", "back", "web"},
			{"network", "connect", "host", "web"},
			{"network", "disconnect", "back", "web"},
			{"network", "rm", "back"},
			{"run", "--rm", "--network", "front", "--network", "front", p.image, "/bin/true"},
			{"run", "--rm", "--network", "host", "--network", "front", p.image, "/bin/true"},
		} {
			if out, err := p.CLI(wrong...); err == nil {
				t.Errorf("%v: %s", wrong, out)
			} else if slices.Contains(wrong, "--ip") && !strings.Contains(out+err.Error(), "container db") {
				t.Errorf("%v does not say who has the address: %s, %v", wrong, out, err)
			}
		}
		// A stopped container joins a network at its next start, and keeps its address.
		p.do("stop", "-t", "0", "app")
		p.do("network", "connect", "default", "app")
		p.do("start", "app")
		p.reaches("web", "10.77.0.9", "app")
		p.do("network", "disconnect", "front", "app")
		if got := way("app"); got != "eth2" {
			t.Errorf("the way out of app without front: %q", got)
		}
		p.unknown("web", "site")
		p.reaches("app", "sql", "db")
		// Off the last one, and on again.
		p.do("network", "disconnect", "back", "db")
		p.do("network", "connect", "back", "db")
		p.reaches("app", "db", "db")
		clean(t, p.Node)
		p.do("rm", "-f", "db", "app", "web")
		p.do("network", "prune")
		clean(t, p.Node)
		var diff string
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(diff)
			}
		})
		nodetest.Eventually(t, "nothing stays", func() bool {
			diff = p.Holdings(t).Lasting().Since(before.Lasting())
			return diff == ""
		})
	})
}
