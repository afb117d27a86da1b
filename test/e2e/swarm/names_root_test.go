package swarm

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/networktest"
)

// elsewhere starts a name server on the machine of the first dockerd. Its answers name it.
func (x *mixed) elsewhere() (addr string) {
	t := x.t
	t.Helper()
	var conn net.PacketConn
	machine := networktest.Namespace{Path: x.dockers[0].link.NetNS()}
	if err := machine.Try(func() (err error) {
		conn, err = net.ListenPacket("udp", net.JoinHostPort(dockerdAddr(0), "53")) //nolint:noctx // it ends with the test
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			h := dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Class: dnsmessage.ClassINET}
			answer := dnsmessage.Message{
				Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions,
				Answers: []dnsmessage.Resource{{Header: h, Body: &dnsmessage.TXTResource{TXT: []string{"elsewhere"}}}},
			}
			if b, err := answer.Pack(); err == nil {
				_, _ = conn.WriteTo(b, from)
			}
		}
	}()
	return dockerdAddr(0)
}

// hears asks a task's name server one question over UDP, and returns the answer in a line: its code and
// its data, sorted.
func (p placed) hears(name string, kind dnsmessage.Type) string {
	n, err := dnsmessage.NewName(name + ".")
	if err != nil {
		return err.Error()
	}
	q := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}}}
	b, err := q.Pack()
	if err != nil {
		return err.Error()
	}
	var conn *net.UDPConn
	if err := p.ns().Try(func() (err error) {
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(names.Address(), 53)))
		return err
	}); err != nil {
		return err.Error()
	}
	defer func() { _ = conn.Close() }()
	buf := make([]byte, 1<<16)
	if err := conn.SetDeadline(time.Now().Add(impatience)); err != nil {
		return err.Error()
	}
	if _, err = conn.Write(b); err != nil {
		return err.Error()
	}
	size, err := conn.Read(buf)
	if err != nil {
		return err.Error()
	}
	var m dnsmessage.Message
	if err := m.Unpack(buf[:size]); err != nil {
		return err.Error()
	}
	var list []string
	for _, a := range m.Answers {
		switch b := a.Body.(type) {
		case *dnsmessage.AResource:
			list = append(list, netip.AddrFrom4(b.A).String())
		case *dnsmessage.PTRResource:
			list = append(list, b.PTR.String())
		case *dnsmessage.TXTResource:
			list = append(list, b.TXT...)
		default:
			list = append(list, fmt.Sprintf("%T", b))
		}
	}
	slices.Sort(list)
	return strings.TrimSpace(strings.TrimPrefix(m.RCode.String(), "RCode") + " " + strings.Join(list, " "))
}

// reverse returns the name of an address in reverse lookups.
func reverse(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("%d.%d.%d.%d.in-addr.arpa", b[3], b[2], b[1], b[0])
}

// TestTheNamesOfDockerds: a task here has the same answers as one of dockerd's, about tasks of both,
// services with and without an address of their own, aliases, hostnames, containers' ids, a container of
// no service, addresses, and unknown names.
func TestTheNamesOfDockerds(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		x := newMixed(t, 1, 1)
		outside := x.elsewhere()
		for _, name := range []string{"back", "other"} {
			x.docker("network", "create", "--driver", "overlay", "--attachable", name)
		}
		create := func(name string, args ...string) {
			t.Helper()
			x.create(name, x.ref, slices.Concat(args, []string{"--dns", outside, "--mode", "global", "--", "sleep", "100000"})...)
		}
		create("Web", "--network", "name=back,alias=www,alias=a.b,alias=GREAT", "--hostname", "host-{{.Node.ID}}")
		create("rr", "--endpoint-mode", "dnsrr", "--network", "name=back,alias=both")
		create("hidden", "--network", "name=other")
		x.docker("pull", x.ref)
		x.docker("run", "--detach", "--name", "solo", "--network", "back", "--network-alias", "friend.of.mine", "--hostname", "solohost", x.ref, "sleep", "100000")
		run := x.settled(map[string]int{"Web": 2, "rr": 2, "hidden": 2})

		type question struct {
			name string
			kind dnsmessage.Type
		}
		var all []question
		ask := func(kind dnsmessage.Type, names ...string) {
			for _, name := range names {
				all = append(all, question{name, kind})
			}
		}
		here := map[string]placed{} // the askers, by the node
		known := []string{"Web", "rr", "www", "a.b", "great", "both", "solo", "solohost", "friend.of.mine"}
		for _, name := range []string{"Web", "rr", "www", "a.b", "both"} {
			known = append(known, "tasks."+name)
		}
		for _, p := range run {
			if p.service == "hidden" {
				ask(dnsmessage.TypeA, p.name, p.name+".other")
				ask(dnsmessage.TypePTR, reverse(p.addrs["other"]))
				continue
			}
			known = append(known, p.name)
			ask(dnsmessage.TypePTR, reverse(p.addrs["back"]))
			if p.service == "Web" {
				here[strings.TrimRight(p.node, "0123456789")] = p
			}
		}
		known = append(known, strings.Fields(x.docker("ps", "--quiet"))...)
		for id := range x.names {
			known = append(known, "host-"+id)
		}
		for _, name := range known {
			ask(dnsmessage.TypeA, name, strings.ToUpper(name), name+".back")
			ask(dnsmessage.TypeAAAA, name)
			ask(dnsmessage.TypeMX, name)
		}
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			ask(kind, "nobody", "nobody.back", "nobody.example.org", "tasks", "back", "hidden", "tasks.hidden", "hidden.other", "Web.other", "Web.back.back", "tasks.solo", "friend.of", "localhost")
		}
		ask(dnsmessage.TypePTR, "1.1.0.10.in-addr.arpa", "200.1.0.10.in-addr.arpa", "1.2.0.192.in-addr.arpa")
		ours, theirs := here["ours"], here["dockerd"]
		x.every(fmt.Sprintf("%d answers are dockerd's", len(all)), func() (wrong []string) {
			for _, q := range all {
				want, got := theirs.hears(q.name, q.kind), ours.hears(q.name, q.kind)
				if got != want {
					wrong = append(wrong, fmt.Sprintf("%s %s: %q, dockerd's is %q", q.kind, q.name, got, want))
				}
			}
			return wrong
		})
		// The equal answers are right, too.
		var both []string
		for _, p := range run {
			if p.service == "Web" {
				both = append(both, p.addrs["back"].String())
			}
		}
		slices.Sort(both)
		for name, want := range map[string]string{
			"web": "Success " + ours.vips["back"].String(), "tasks.www.back": "Success " + strings.Join(both, " "), theirs.name: "Success " + theirs.addrs["back"].String(),
			"hidden": "Success elsewhere", "nobody": "Success elsewhere",
		} {
			if got := ours.hears(name, dnsmessage.TypeA); got != want {
				t.Errorf("%s is %q, want %q", name, got, want)
			}
		}
		// A service's address has a name here; dockerd asks others.
		if got := ours.hears(reverse(ours.vips["back"]), dnsmessage.TypePTR); got != "Success Web.back." {
			t.Errorf("the service's address is called %q", got)
		}
		// Names follow.
		x.docker("service", "update", "--detach", "--network-rm", "back", "rr")
		x.every("nobody is called rr", func() (wrong []string) {
			for _, p := range []placed{ours, theirs} {
				for _, name := range []string{"rr", "tasks.rr", "both"} {
					if got := p.hears(name, dnsmessage.TypeA); got != "Success elsewhere" {
						wrong = append(wrong, fmt.Sprintf("%s: %s is %q", p, name, got))
					}
				}
			}
			return wrong
		})
		x.docker("rm", "--force", "solo")
		x.docker("service", "rm", "Web", "rr", "hidden")
	})
}
