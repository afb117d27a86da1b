package egress

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// The servers of the tests' world. They have public addresses, in the network namespace of the test.
const (
	apiAddr   = "93.184.215.1"
	otherAddr = "93.184.215.2"
	cdnAddr   = "93.184.215.3"
)

func newWorld(t *testing.T) *networktest.World {
	t.Helper()
	w := networktest.NewWorld(t, apiAddr, otherAddr, cdnAddr, "169.254.169.254")
	w.Set("api.example.com", apiAddr)
	w.Set("other.example.com", otherAddr)
	w.Set("cdn.packages.example", "edge.cdn.example")
	w.Set("edge.cdn.example", cdnAddr)
	return w
}

// dns is the configuration of a node that asks the world's name server.
const dns = "[network.dns]\nservers = [\"" + networktest.WorldDNS + "\"]\n"

func must(t *testing.T, n *nodetest.Node, args ...string) string {
	t.Helper()
	out, err := n.CLI(args...)
	if err != nil {
		t.Fatalf("longshore %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(out)
}

// reach asserts whether a container reaches a server, by nc of busybox.
func reach(t *testing.T, n *nodetest.Node, container, host, port string, want bool) {
	t.Helper()
	out, err := n.CLI("exec", container, "nc", "-w", "5", host, port)
	if got := err == nil && out != ""; got != want {
		t.Errorf("%s to %s:%s: %t, want %t: %q %v", container, host, port, got, want, out, err)
	}
}

func TestAContainerReachesItsListOnly(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		newWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: dns})
		image := n.Busybox(t)
		run := func(name string, args ...string) {
			must(t, n, append(append([]string{"run", "-d", "--name", name}, args...), image, "/bin/sleep", "1000")...)
		}
		run("open")
		run("some", "--egress", "api.example.com:443", "--egress", "*.packages.example", "--restart", "always")
		reach(t, n, "open", "other.example.com", "80", true)
		reach(t, n, "open", otherAddr, "80", true)
		reach(t, n, "open", "169.254.169.254", "80", false)
		run("cloud", "--egress", "169.254.169.254:80")
		reach(t, n, "cloud", "169.254.169.254", "80", true)

		all := func() {
			t.Helper()
			reach(t, n, "some", apiAddr, "80", false)
			reach(t, n, "some", "api.example.com", "443", true)
			reach(t, n, "some", "api.example.com", "80", false)
			reach(t, n, "some", "cdn.packages.example", "80", true)
			reach(t, n, "some", "other.example.com", "80", false)
			reach(t, n, "some", otherAddr, "80", false)
			reach(t, n, "some", "169.254.169.254", "80", false)
			reach(t, n, "some", networktest.WorldDNS, "53", false)
		}
		all()
		// A program understands the refusals.
		if out, err := n.CLI("exec", "some", "wget", "-qO-", "http://other.example.com/"); err == nil || !strings.Contains(out+err.Error(), "bad address") {
			t.Errorf("a refused name: %q %v", out, err)
		}
		if out, err := n.CLI("exec", "some", "wget", "-qO-", "http://"+otherAddr+"/"); err == nil || !strings.Contains(out+err.Error(), "Connection refused") {
			t.Errorf("a refused address: %q %v", out, err)
		}
		if out := must(t, n, "exec", "some", "grep", "CapBnd", "/proc/self/status"); strings.Contains(out, "a80425fb") {
			t.Errorf("a program with a list has CAP_NET_RAW: %s", out)
		}
		roottest.Eventually(t, "the log has the refusals", func() bool {
			log := must(t, n, "egress", "log", "some")
			return strings.Contains(log, "refused-name  other.example.com: not in the list") && strings.Contains(log, "opened  tcp api.example.com ("+apiAddr+":443)") && strings.Contains(log, "refused  tcp "+otherAddr+":80")
		})
		n.Check()

		// The rules and the answers are the same after a restart of the container and of each process of the node.
		must(t, n, "restart", "-t", "0", "some")
		all()
		n.Kill()
		n.Up()
		all()
		n.KillKeeper()
		n.KeeperBack()
		all()
		for _, pid := range n.Processes("names") {
			t.Log("name server", pid)
		}
		n.Check()

		if out := must(t, n, "why", "some"); !strings.Contains(out, otherAddr+":80") {
			t.Errorf("why does not show what was refused:\n%s", out)
		}

		if out := must(t, n, "logs", "--egress", "some"); !strings.Contains(out, "refused-name  other.example.com") {
			t.Errorf("logs --egress: %s", out)
		}
		// The log ends with the sandbox's network, and the autopsy keeps its last refusals.
		run("brief", "--egress", "api.example.com")
		reach(t, n, "brief", otherAddr, "443", false)
		reach(t, n, "brief", "other.example.com", "80", false)
		nodetest.Eventually(t, "the log has both refusals", func() bool {
			log := must(t, n, "egress", "log", "brief")
			return strings.Contains(log, otherAddr+":443") && strings.Contains(log, "other.example.com")
		})
		nodetest.Eventually(t, "events of the refusals", func() bool {
			return strings.Contains(must(t, n, "events", "--since", "0", "--no-follow"), "the egress list refused other.example.com")
		})
		must(t, n, "stop", "-t", "0", "brief")
		nodetest.Eventually(t, "the log has ended with the network", func() bool { return must(t, n, "egress", "log", "brief") == "" })
		if out := must(t, n, "why", "brief"); !strings.Contains(out, otherAddr+":443") || !strings.Contains(out, "other.example.com: not in the list") {
			t.Errorf("why after the end does not show what was refused:\n%s", out)
		}

		must(t, n, "egress", "set", "some", "other.example.com")
		reach(t, n, "some", "other.example.com", "80", true)
		reach(t, n, "some", "api.example.com", "443", false)
		if got := must(t, n, "egress", "show", "some"); got != "other.example.com" {
			t.Errorf("the list is %q", got)
		}
		n.PowerCut()
		n.Up()
		nodetest.Eventually(t, "the container runs again", func() bool { return must(t, n, "inspect", "-f", "{{.State.Status}}", "some") == "running" })
		reach(t, n, "some", "other.example.com", "80", true)
		reach(t, n, "some", "api.example.com", "443", false)
		run("bare")
		run("learner", "--egress", "learn")
		reach(t, n, "learner", "other.example.com", "80", true)
		reach(t, n, "learner", otherAddr, "443", true)
		roottest.Eventually(t, "the learned list", func() bool {
			return must(t, n, "egress", "learn", "learner") == "other.example.com:80,443/tcp"
		})

		for _, c := range []struct{ text, flags string }{
			{"none of the words", "--egress -x-.ex!ample"},
			{"a network of the sandbox's own", "--egress internet --network host"},
			{"CAP_NET_ADMIN", "--egress internet --cap-add NET_ADMIN"},
			{"CAP_", "--egress internet --privileged"},
			{"must stand alone", "--egress none --egress internet"},
			{"a whole top-level domain", "--egress *.com"},
			{"of another one, whose list counts", "--network container:some --label longshore.egress=internet"},
			{"cannot end in a number", "--egress 10.0.0"},
			{"in its form xn--", "--egress b\u00fccher.example"},
			{"is no port", "--egress a.example:99999"},
		} {
			out, err := n.CLI(append(append([]string{"create"}, strings.Fields(c.flags)...), image, "/bin/true")...)
			if err == nil || !strings.Contains(out+err.Error(), c.text) {
				t.Errorf("%s: %q %v, want %s", c.flags, out, err, c.text)
			}
		}
		if out, err := n.CLI("exec", "--privileged", "some", "/bin/true"); err == nil {
			t.Errorf("a privileged exec: %s", out)
		}
		if out, err := n.CLI("egress", "set", "bare", "internet"); err == nil || !strings.Contains(out+err.Error(), "created without one") {
			t.Errorf("a list for a container that was created without one: %q %v", out, err)
		}
		n.Check()
	})
}

func TestANodesCeiling(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		newWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: dns + "[egress]\nceiling = [\"*.example.com\", \"*.packages.example:80\"]\nexempt = [\"free=yes\"]\n[egress.face.cli]\nceiling = [\"*.example.com\", \"*.packages.example:80\"]\ndefault = [\"api.example.com\"]\nexempt = [\"free=yes\"]\n"})
		image := n.Busybox(t)
		run := func(name string, args ...string) {
			must(t, n, append(append([]string{"run", "-d", "--name", name}, args...), image, "/bin/sleep", "1000")...)
		}
		run("normal")
		reach(t, n, "normal", "api.example.com", "80", true)
		reach(t, n, "normal", "other.example.com", "80", false)
		run("wide", "--egress", "other.example.com:80", "--egress", "cdn.packages.example:80")
		reach(t, n, "wide", "other.example.com", "80", true)
		reach(t, n, "wide", "cdn.packages.example", "80", true)
		run("free", "--label", "free=yes", "--network", "host")
		for _, list := range []string{"internet", "learn", "cdn.packages.example", "example.com", "93.184.215.0/24"} {
			if out, err := n.CLI("run", "--rm", "--egress", list, image, "/bin/true"); err == nil {
				t.Errorf("the list %s is above the node's ceiling: %s", list, out)
			}
		}
		if out, err := n.CLI("egress", "set", "normal", "internet"); err == nil {
			t.Errorf("a change to internet: %s", out)
		}
		if out, err := n.CLI("run", "--rm", "--network", "host", image, "/bin/true"); err == nil || !strings.Contains(out+err.Error(), "egress.exempt") {
			t.Errorf("the host's network under a ceiling: %q %v", out, err)
		}
		must(t, n, "egress", "set", "wide", "api.example.com:443")
		must(t, n, "egress", "set", "--node-default", "wide")
		if got := must(t, n, "egress", "show", "wide"); got != "api.example.com" {
			t.Errorf("the node's list is %q", got)
		}
		n.Check()
	})
}
