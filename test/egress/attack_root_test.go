package egress

import (
	"encoding/json"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// minimum is the number of attempts that a run must make, with those of TestTheFirstInstruction.
const minimum = 200

// starts is the number of containers of TestTheFirstInstruction.
const starts = 20

// TestAttempts makes each attempt in a container with a list and in one without, where it must reach its destination unless the
// probe says why not.
func TestAttempts(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		addrs := []string{apiAddr, cdnAddr, other4, other6, private, metadata, "fd00:ec2::254", "192.168.66.1", "100.64.66.1", "fd00:66::1", "198.18.66.1"}
		w := networktest.NewWorld(t, addrs...)
		w.Set("api.example.com", apiAddr)
		w.Set("cdn.packages.example", "edge.cdn.example")
		w.Set("edge.cdn.example", cdnAddr)
		for name, addr := range rebinds {
			w.Set(name, addr)
		}
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS + "[network]\nipv6 = true\n[egress]\nmetadata = \"open\"\n"})
		image, self := n.Busybox(t), testProgram(t)
		must(t, n, "run", "-d", "--name", "neighbour", "-v", self+":/probe:ro", image, "/probe", serveArg)
		nodetest.Eventually(t, "the neighbour serves", func() bool { out, _ := n.CLI("logs", "neighbour"); return strings.Contains(out, "serves") })
		to := targets{
			Gateway:   must(t, n, "run", "--rm", image, "/bin/sh", "-c", "ip route | sed -n 's/default via \\([0-9.]*\\).*/\\1/p'"),
			Neighbour: must(t, n, "inspect", "-f", "{{.NetworkSettings.IPAddress}}", "neighbour"),
		}
		for _, port := range ports { // the host's own address on the bridge
			for _, proto := range []string{"tcp", "udp"} {
				serveAt(t, proto, net.JoinHostPort(to.Gateway, port))
			}
		}
		arg, err := json.Marshal(to)
		if err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) (results map[string]string, asked []string) {
			t.Helper()
			w.Asked()
			out := must(t, n, append(append([]string{"run", "--rm", "-v", self + ":/probe:ro"}, args...), image, "/probe", probeArg, string(arg))...)
			if err := json.Unmarshal([]byte(out), &results); err != nil {
				t.Fatalf("%v: %q", err, out)
			}
			return results, w.Asked()
		}
		open, askedByOpen := run()
		listed, asked := run("--egress", "api.example.com:443", "--egress", "*.packages.example", "--egress", apiAddr+":80")
		made := 0
		for _, p := range probes(to) {
			made++
			got, control := listed[p.name], open[p.name]
			if p.asks != "" { // the question must not leave the node
				if slices.Contains(asked, p.asks) {
					t.Errorf("%s: the question has left the node: %s", p.name, got)
				}
				if !slices.Contains(askedByOpen, p.asks) && p.denied == "" {
					t.Errorf("%s: without a list the question does not leave the node either: %s", p.name, control)
				}
				continue
			}
			if got == "reached" {
				t.Errorf("%s has reached its destination", p.name)
			}
			if control != "reached" && p.denied == "" {
				t.Errorf("%s: without a list it is refused, too: %s", p.name, control)
			}
		}
		t.Logf("%d attempts", made)
		if made+starts < minimum {
			t.Errorf("%d attempts are less than %d", made, minimum-starts)
		}
		if t.Failed() {
			for _, name := range slices.Sorted(maps.Keys(listed)) {
				t.Logf("%-60s %-50s %s", name, listed[name], open[name])
			}
		}
		// The list itself works in the same container.
		if out, err := n.CLI("run", "--rm", "--egress", "api.example.com:443", image, "nc", "-w", "9", "api.example.com", "443"); err != nil || out == "" {
			t.Errorf("what the list permits: %q %v", out, err)
		}
		n.Check()
	})
}

// TestTheFirstInstruction starts containers that try to reach a server with their first instructions.
func TestTheFirstInstruction(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS})
		image, self := n.Busybox(t), testProgram(t)
		run := func(args ...string) error {
			_, err := n.CLI(append(append([]string{"run", "--rm", "-v", self + ":/probe:ro"}, args...), image, "/probe", childArg, other4+":80")...)
			return err
		}
		if err := run(); err != nil {
			t.Fatalf("without a list: %v", err)
		}
		for range starts {
			if err := run("--egress", "api.example.com"); err == nil {
				t.Error("a container has reached a server before its rules stood")
			}
		}
		n.Check()
	})
}

// testProgram is the path of a copy of this program, which every user may run.
func testProgram(t *testing.T) string {
	t.Helper()
	own, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "probe")
	if err := os.WriteFile(path, own, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func serveAt(t *testing.T, proto, at string) {
	t.Helper()
	if _, err := networktest.Serve(t, proto, netip.MustParseAddrPort(at)); err != nil {
		t.Fatalf("serve %s: %v", at, err)
	}
}
