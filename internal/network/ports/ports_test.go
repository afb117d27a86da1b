package ports

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

func claim(t *testing.T, s string) Claim {
	t.Helper()
	proto, at, _ := strings.Cut(s, " ")
	if host, ok := strings.CutPrefix(at, "*:"); ok {
		at = "0.0.0.0:" + host
		return Claim{Proto: proto, Port: netip.MustParseAddrPort(at).Port()}
	}
	ap := netip.MustParseAddrPort(at)
	return Claim{Proto: proto, IP: ap.Addr(), Port: ap.Port()}
}

func TestTake(t *testing.T) {
	for _, tc := range []struct {
		have, want string
		ok         bool
	}{
		{"tcp *:80", "tcp *:80", false},
		{"tcp *:80", "udp *:80", true},
		{"tcp *:80", "tcp *:81", true},
		{"tcp *:80", "tcp 127.0.0.1:80", false},
		{"tcp 127.0.0.1:80", "tcp *:80", false},
		{"tcp 127.0.0.1:80", "tcp 127.0.0.2:80", true},
		{"tcp 127.0.0.1:80", "tcp 127.0.0.1:80", false},
		{"tcp 0.0.0.0:80", "tcp 127.0.0.1:80", false},
		{"tcp 0.0.0.0:80", "tcp [::]:80", true},
		{"tcp [::1]:80", "tcp [::]:80", false},
		{"tcp [::1]:80", "tcp 0.0.0.0:80", true},
		{"sctp *:80", "sctp [::1]:80", false},
	} {
		var c Claims
		if err := c.Take("one", []Claim{claim(t, tc.have)}); err != nil {
			t.Fatal(err)
		}
		err := c.Take("two", []Claim{claim(t, tc.want)})
		if tc.ok != (err == nil) {
			t.Errorf("%s beside %s: %v", tc.want, tc.have, err)
		}
		if err != nil && (!errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "sandbox one")) {
			t.Errorf("%s beside %s: %v", tc.want, tc.have, err)
		}
		if err := c.Take("one", []Claim{claim(t, tc.have)}); err != nil {
			t.Errorf("its own again: %v", err)
		}
		c.Drop("one")
		c.Drop("two")
		if len(c.all) != 0 {
			t.Errorf("left: %v", c.all)
		}
	}
}

func TestTakeAllOrNone(t *testing.T) {
	var c Claims
	if err := c.Take("one", []Claim{claim(t, "tcp *:80")}); err != nil {
		t.Fatal(err)
	}
	if err := c.Take("two", []Claim{claim(t, "tcp *:81"), claim(t, "tcp *:80")}); err == nil {
		t.Fatal("took a port of another")
	}
	if err := c.Take("three", []Claim{claim(t, "tcp *:81")}); err != nil {
		t.Errorf("a failed claim left something: %v", err)
	}
	if err := c.Take("four", []Claim{claim(t, "tcp *:90"), claim(t, "tcp 127.0.0.1:90")}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("one port twice: %v", err)
	} else if of := (*core.PortError)(nil); !errors.As(err, &of) || of.Host != 90 || of.Process {
		t.Errorf("the error of one port twice does not name it: %#v", err)
	}
}

func TestProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(l.Addr().String())
	for _, ip := range []netip.Addr{at.Addr(), {}, netip.IPv4Unspecified()} {
		err := Probe(Claim{Proto: "tcp", IP: ip, Port: at.Port()})
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ports.test (pid ") {
			t.Errorf("probe %v where this test listens: %v", ip, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Probe(Claim{Proto: "tcp", IP: at.Addr(), Port: at.Port()}); err != nil {
		t.Errorf("probe a free port: %v", err)
	}
	if err := Probe(Claim{Proto: "tcp", IP: netip.MustParseAddr("198.51.100.7"), Port: 1}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("probe a foreign address: %v", err)
	}
	if err := Probe(Claim{Proto: "ipx", Port: 1}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("probe an unknown protocol: %v", err)
	}
}

func TestChoose(t *testing.T) {
	var c Claims
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	taken := netip.MustParseAddrPort(l.Addr().String()).Port()
	want, pool := Claim{Proto: "tcp"}, Pool{First: taken - 1, Last: taken, reserved: map[uint16]bool{}}
	if _, err := c.Choose("one", want, Pool{First: taken, Last: taken}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("a process has it: %v", err)
	}
	// The neighbour may be somebody's too, on a machine with other programs.
	if got, err := c.Choose("one", want, pool); err == nil {
		if got.Port != taken-1 {
			t.Errorf("chosen %s", got)
		}
		if err := c.Take("two", []Claim{got}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a port that was chosen for another: %v", err)
		}
		if _, err := c.Choose("one", want, pool); !errdefs.IsResourceExhausted(err) {
			t.Errorf("its own twice: %v", err)
		}
		c.Drop("one")
		pool.reserved[taken-1] = true
		if _, err := c.Choose("one", want, pool); !errdefs.IsResourceExhausted(err) {
			t.Errorf("a reserved one: %v", err)
		}
	}
	if _, err := c.Choose("one", Claim{Proto: "icmp"}, pool); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an unknown protocol: %v", err)
	}
	if _, err := c.Choose("one", Claim{Proto: "udp", IP: netip.MustParseAddr("198.51.100.7")}, pool); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a foreign address: %v", err)
	}
	if len(c.all) != 0 {
		t.Errorf("left: %v", c.all)
	}
}

func TestPool(t *testing.T) {
	for _, tc := range []struct{ local, reserved, want, free, not string }{
		{"32768\t60999\n", "\n", "61000-65535", "61000 65535", ""},
		{"32768\t60999\n", "61000-61002,65535\n", "61000-65535", "61003 65534", "61000 61002 65535"},
		{"1024\t65000\n", "2000\n", "1024-65000", "1024 2001", "2000"},
		{"9000\t64511\n", "", "64512-65535", "64512", ""},
	} {
		p, err := hostPool(tc.local, tc.reserved)
		if err != nil || p.String() != tc.want {
			t.Errorf("%q, %q: %s, %v", tc.local, tc.reserved, p, err)
		}
		for list, reserved := range map[string]bool{tc.free: false, tc.not: true} {
			for _, s := range strings.Fields(list) {
				n, _ := strconv.ParseUint(s, 10, 16)
				if p.reserved[uint16(n)] != reserved {
					t.Errorf("%q, %q: port %s is reserved: %v", tc.local, tc.reserved, s, !reserved)
				}
			}
		}
	}
	if _, err := hostPool("", ""); err == nil {
		t.Error("no range was taken")
	}
	if p, err := HostPool(); err != nil || p.size() < 1 {
		t.Errorf("this machine's: %s, %v", p, err)
	}
	for in, ok := range map[string]bool{"61000-65535": true, "80-80": true, "": false, "80": false, "0-9": false, "9-8": false, "1-70000": false, "a-b": false} {
		p, err := ParsePool(in)
		if ok != (err == nil) || ok && p.String() != in || !ok && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %s, %v", in, p, err)
		}
	}
}

func FuzzParseSocketLine(f *testing.F) {
	if lines, err := os.ReadFile("/proc/net/tcp"); err == nil {
		for line := range strings.Lines(string(lines)) {
			f.Add(line, true)
		}
	}
	f.Add("1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1", true)
	f.Fuzz(func(t *testing.T, line string, listening bool) {
		if _, inode, ok := parseSocketLine(line, listening); ok && (inode == "" || inode == "0") {
			t.Errorf("inode %q of %q", inode, line)
		}
	})
}

func TestParseSocketLine(t *testing.T) {
	port, inode, ok := parseSocketLine("   1: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1 0", true)
	if !ok || port != 8080 || inode != "4711" {
		t.Errorf("%d %s %v", port, inode, ok)
	}
	if _, _, ok := parseSocketLine("   1: 0100007F:1F90 0100007F:0050 01 00000000:00000000 00:00000000 00000000  0 0 4711 1 0", true); ok {
		t.Error("a connection counts as a listener")
	}
}

// TestPublishedPorts: a port that is published on every node is freed alone, and a refusal names
// its owner.
func TestPublishedPorts(t *testing.T) {
	var c Claims
	one, two := Claim{Proto: "tcp", Port: 80}, Claim{Proto: "tcp", Port: 81}
	if err := c.Take(Published, []Claim{one, two}); err != nil {
		t.Fatal(err)
	}
	c.Give("sandbox", one)
	if err := c.Take("sandbox", []Claim{one}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "services that publish it") {
		t.Errorf("a published port: %v", err)
	}
	c.Give(Published, one)
	if err := c.Take("sandbox", []Claim{one}); err != nil {
		t.Error(err)
	}
	if err := c.Take("sandbox", []Claim{two}); err == nil {
		t.Error("the other one was given back, too")
	}
}
