package network_test

import (
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestForwardChainsThatDrop adds the chains of dockerd, ufw, firewalld and administrators, before
// and after the bridge exists, and removes them again.
func TestForwardChainsThatDrop(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		for _, tc := range []struct {
			name string
			// up adds the chains that drop; again is the other program's reload of its rules.
			up, again []string
		}{
			{"iptables policy", []string{"iptables -P FORWARD DROP"}, []string{"iptables -F FORWARD"}},
			{"iptables drop", []string{"iptables -A FORWARD -j DROP"}, []string{"iptables -F FORWARD", "iptables -A FORWARD -j DROP"}},
			{"iptables drop first", []string{"iptables -A FORWARD -i up0 -p icmp -j ACCEPT"}, []string{"iptables -I FORWARD -j DROP"}},
			{"ip6tables reject", []string{"ip6tables -A FORWARD -j REJECT", "iptables -A FORWARD -j LOG", "iptables -A FORWARD -j REJECT --reject-with icmp-host-prohibited"}, []string{"iptables -F", "ip6tables -F", "iptables -P FORWARD DROP"}},
			{
				"a chain of its own",
				[]string{"iptables -N reject-all", "iptables -A reject-all -m comment --comment all -j REJECT", "iptables -P FORWARD DROP", "iptables -A FORWARD -j reject-all"},
				[]string{"iptables -F FORWARD", "iptables -A FORWARD -j reject-all"},
			},
			{
				"nft policy",
				[]string{"nft add table inet wall", "nft add chain inet wall through { type filter hook forward priority 10 ; policy drop ; }"},
				[]string{"nft flush chain inet wall through"},
			},
			{
				"nft reject behind others",
				[]string{
					"nft add table inet wall", "nft add chain inet wall through { type filter hook forward priority 10 ; }",
					"nft add rule inet wall through ct state invalid drop", "nft add rule inet wall through counter reject with icmpx admin-prohibited",
				},
				[]string{"nft delete table inet wall", "nft add table inet wall", "nft add chain inet wall through { type filter hook forward priority 10 ; }", "nft add rule inet wall through drop"},
			},
			{"the old filter", []string{"iptables-legacy -P FORWARD DROP"}, nil},
			{"the old filter, a rule", []string{"iptables-legacy -A FORWARD -j REJECT"}, nil},
		} {
			t.Run(tc.name, func(t *testing.T) {
				r := newRig(t, func(c *netconf.Config) { c.IPv6 = true })
				for _, line := range tc.up {
					networktest.Run(t, line)
				}
				one := r.setup(1, port("tcp", 8080, 80))
				one.ns.Serve(t, "tcp", 80)
				two := r.setup(2)
				reach := func() {
					t.Helper()
					wantAnswer(t, out.ns, "tcp", at(out.host4, 8080), out.addr4.String())
					wantAnswer(t, out.ns, "tcp", at(out.host6, 8080), out.addr6.String())
					wantAnswer(t, two.ns, "tcp", at(one.req.Last.Gateways[0], 8080), one.req.Last.Gateways[0].String())
				}
				reach()
				for _, line := range tc.again {
					networktest.Run(t, line)
				}
				if len(tc.again) > 0 {
					networktest.Await(t, networktest.RuleNews(), "the accepts", func() bool {
						return strings.Count(rules(t), `ifname "longshore0" counter accept`) >= 2
					})
				}
				reach()
				if info, err := r.net.Info(t.Context()); err != nil || info.Reason != "" {
					t.Errorf("info: %+v, %v", info, err)
				}
				networktest.Run(t, "iptables -S") // it can still read its table
				for _, b := range []box{one, two} {
					r.down(b)
					b.ns.Close()
				}
				// The next sandboxes get the same addresses.
				networktest.Await(t, networktest.LinkNews(), "links to go", func() bool { return !strings.Contains(links(t), " ls") })
				if err := r.net.Close(); err != nil {
					t.Fatal(err)
				}
				r.net = nil
				networktest.Run(t, "nft flush ruleset")
				networktest.Run(t, "iptables-legacy -F")
				networktest.Run(t, "iptables-legacy -P FORWARD ACCEPT")
			})
		}
	})
}

// TestForwardChainsThatMeanIt: a rule with a condition is somebody's decision.
func TestForwardChainsThatMeanIt(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, nil)
		networktest.Run(t, "iptables -P FORWARD DROP")
		networktest.Run(t, "iptables -A FORWARD -o up0 -p tcp --dport 25 -j REJECT --reject-with tcp-reset")
		one := r.setup(1)
		for _, p := range []uint16{25, 26} {
			out.ns.Serve(t, "tcp", p)
		}
		wantAnswer(t, one.ns, "tcp", at(out.addr4, 26), out.host4.String())
		if got, err := ask(one.ns, "tcp", at(out.addr4, 25)); err == nil {
			t.Errorf("the administrator's reject was overruled: %q", got)
		}
		if s := networktest.Run(t, "iptables -S FORWARD"); !strings.Contains(s, "-A FORWARD -i longshore0 -j ACCEPT\n-A FORWARD -o longshore0 -j ACCEPT\n") {
			t.Errorf("iptables does not show our rules as its own: %s", s)
		}
		// Rules that are no longer needed are removed.
		networktest.Run(t, "iptables -P FORWARD ACCEPT")
		networktest.Await(t, networktest.RuleNews(), "the accepts to go", func() bool {
			return !strings.Contains(networktest.Run(t, "iptables -S FORWARD"), "longshore0")
		})
	})
}

// TestForwardChainUnderLock: a table locked by its owner cannot be changed, and Trouble says so.
func TestForwardChainUnderLock(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		owner := exec.CommandContext(t.Context(), "nft", "-i")
		in, err := owner.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := owner.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(in, "add table inet locked { flags owner ; }\nadd chain inet locked through { type filter hook forward priority 0 ; policy drop ; }\n"); err != nil {
			t.Fatal(err)
		}
		networktest.Await(t, networktest.RuleNews(), "the locked chain", func() bool { return strings.Contains(rules(t), "policy drop") })
		r.setup(1)
		info, err := r.net.Info(t.Context())
		if err != nil || !info.Ready || !strings.Contains(info.Reason, "chain through of nftables table locked drops") || !strings.Contains(info.Reason, "longshore0") {
			t.Errorf("info %+v, %v", info, err)
		}
		if err := in.Close(); err != nil { // the table is removed with its owner
			t.Fatal(err)
		}
		if err := owner.Wait(); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.setup(2)
		if info, err := r.net.Info(t.Context()); err != nil || info.Reason != "" {
			t.Errorf("info %+v, %v", info, err)
		}
	})
}
