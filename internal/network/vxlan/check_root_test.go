package vxlan_test

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestWhatIsMissingIsTold: any part of a network that another program removes, or adds, is
// reported, and the next process restores the others' network.
func TestWhatIsMissingIsTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 2)
		n, far := nodes[0], nodes[1]
		n.open()
		far.open()
		x, y := n.task("10.0.1.10/24"), far.task("10.0.1.11/24")
		y.ns.Serve(t, "tcp", 80)
		n.knows(y)
		far.knows(x)
		if err := n.net.Check(); err != nil {
			t.Fatal(err)
		}
		port := strings.TrimSuffix(strings.Fields(n.inside("ip -o link show type veth"))[1], ":")
		port, _, _ = strings.Cut(port, "@")
		for _, tc := range []struct{ line, says string }{
			{"ip neigh del 10.0.1.11 dev vx0", "0 addresses"},
			{"bridge fdb del 02:42:0a:00:01:0b dev vx0 dst 192.0.2.2", "0 interfaces"},
			{"bridge fdb add 02:42:0a:00:01:77 dev vx0 dst 192.0.2.7", "2 interfaces"},
			{"ip link set vx0 down", "vx0"},
			{"ip link set vx0 nomaster", "vx0"},
			{"ip link del vx0", "vx0"},
			{"ip link set br0 down", "br0"},
			{"ip link del br0", "br0"},
			{"ip link set " + port + " down", port},
		} {
			n.inside(tc.line)
			if err := n.net.Check(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%s: %v, want %q in it", tc.line, err, tc.says)
			}
			if strings.Contains(tc.line, port) { // the task's end
				networktest.Run(t, "nsenter --net="+n.dir+"/app ip link set "+port+" up")
			}
			next, err := n.try(n.def())
			if err != nil {
				t.Fatal(err)
			}
			n.net = next
			n.knows(y)
			if err := next.Prune(); err != nil {
				t.Fatal(err)
			}
			if err := next.Check(); err != nil {
				t.Errorf("%s, and another process: %v", tc.line, err)
			}
			x.reaches(y, 80)
		}
	})
}
