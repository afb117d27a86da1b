package dns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/core"
)

func TestUpstream(t *testing.T) {
	stub := "# by systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch lan\n"
	for _, tc := range []struct {
		name  string
		files []string
		want  core.DNS
	}{
		{"plain", []string{"nameserver 10.1.1.1\nnameserver 10.1.1.2\nsearch a b\n"}, core.DNS{Servers: []string{"10.1.1.1", "10.1.1.2"}, Searches: []string{"a", "b"}}},
		{"stub and the real one", []string{stub, "nameserver 192.0.2.1\nsearch other\n"}, core.DNS{Servers: []string{"192.0.2.1"}, Searches: []string{"lan"}, Options: []string{"edns0"}}},
		{"stub, nothing, NetworkManager", []string{stub, "", "nameserver 2001:db8::1\n"}, core.DNS{Servers: []string{"2001:db8::1"}, Searches: []string{"lan"}, Options: []string{"edns0"}}},
		{"stub alone", []string{stub, "nameserver ::1\n"}, core.DNS{Searches: []string{"lan"}, Options: []string{"edns0"}}},
		{"one of two", []string{"nameserver 127.0.0.1\nnameserver 10.0.0.1\n", "nameserver 10.9.9.9\n"}, core.DNS{Servers: []string{"10.0.0.1"}}},
		{"no file", nil, core.DNS{}},
		{"unspecified with a zone", []string{"nameserver ::%eth0\n", "nameserver 10.1.1.1\n"}, core.DNS{Servers: []string{"10.1.1.1"}}},
		{"cannot be written", []string{"nameserver fe80::1%#\n", "nameserver 10.1.1.1\n"}, core.DNS{Servers: []string{"10.1.1.1"}}},
		{"mapped loopback", []string{"nameserver ::ffff:127.0.0.53\n"}, core.DNS{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var files [][]byte
			for _, f := range tc.files {
				files = append(files, []byte(f))
			}
			got := Upstream(files...)
			if len(got.Servers) == 0 {
				got.Servers = nil
			}
			if len(got.Options) == 0 {
				got.Options = nil
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParse(t *testing.T) {
	got := Parse([]byte("; comment\ndomain first\nsearch x y\nnameserver 1.1.1.1\noptions ndots:5\noptions  timeout:1 rotate\nbogus\nnameserver\n"))
	want := core.DNS{Servers: []string{"1.1.1.1"}, Searches: []string{"x", "y"}, Options: []string{"ndots:5", "timeout:1", "rotate"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestResolve(t *testing.T) {
	host := core.DNS{Servers: []string{"h"}, Searches: []string{"hs"}}
	driver := core.DNS{Servers: []string{"d"}}
	for _, tc := range []struct {
		name                string
		asked, driver, want core.DNS
	}{
		{"nothing said", core.DNS{}, core.DNS{}, host},
		{"the network says", core.DNS{}, driver, driver},
		{"asked", core.DNS{Servers: []string{"a"}, Options: []string{"o"}}, driver, core.DNS{Servers: []string{"a"}, Options: []string{"o"}}},
		{"asked for a search list only", core.DNS{Searches: []string{"s"}}, core.DNS{}, core.DNS{Servers: []string{"h"}, Searches: []string{"s"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Resolve(tc.asked, tc.driver, host)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestRender(t *testing.T) {
	sb := core.Sandbox{
		Config: core.SandboxConfig{
			Hostname: "web", Domainname: "example.org",
			Network: core.NetworkConfig{Hosts: map[string][]string{"10.0.0.9": {"db", "db2 db3"}}},
		},
		Network: core.NetworkStatus{Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}},
	}
	f := Render(sb, Host{Resolv: core.DNS{Servers: []string{"10.1.1.1"}}})
	for _, want := range []string{"127.0.0.1\tlocalhost\n", "10.0.0.2\tweb.example.org web\n", "fd00::2\tweb.example.org web\n", "10.0.0.9\tdb\n10.0.0.9\tdb2 db3\n"} {
		if !strings.Contains(string(f.Hosts), want) {
			t.Errorf("hosts lacks %q:\n%s", want, f.Hosts)
		}
	}
	if string(f.Hostname) != "web\n" || string(f.ResolvConf) != "nameserver 10.1.1.1\n" {
		t.Errorf("hostname %q, resolv.conf %q", f.Hostname, f.ResolvConf)
	}
}

// TestTheOwnNameOfATask leads to its addresses for other tasks, and not to the first interface, of
// the network of published ports, nor to the bridge of the node.
func TestTheOwnNameOfATask(t *testing.T) {
	on := func(network, addr string, open ...core.Port) core.Attachment {
		return core.Attachment{Network: network, Addrs: []netip.Prefix{netip.MustParsePrefix(addr)}, Open: open}
	}
	ingress, out := on("overlay:in", "10.0.0.5/24", core.Port{Host: 8080, Container: 80}), on("default", "10.88.0.2/16")
	back, front := on("overlay:back", "10.0.1.9/24"), on("overlay:front", "10.0.2.9/24")
	for _, tc := range []struct {
		on   []core.Attachment
		want string
	}{
		{[]core.Attachment{ingress, back, front, out}, "10.0.1.9\tweb\n10.0.2.9\tweb\n"},
		{[]core.Attachment{back, out}, "10.0.1.9\tweb\n"},
		{[]core.Attachment{ingress, out}, "10.88.0.2\tweb\n"},
		{[]core.Attachment{ingress}, "10.0.0.5\tweb\n"},
		{[]core.Attachment{out, on("app", "10.89.0.2/24")}, "10.88.0.2\tweb\n10.89.0.2\tweb\n"},
	} {
		sb := core.Sandbox{Config: core.SandboxConfig{Hostname: "web"}}
		for _, a := range tc.on {
			sb.Network.Interfaces = append(sb.Network.Interfaces, a)
			sb.Network.Addrs = append(sb.Network.Addrs, a.Addrs[0].Addr())
		}
		if got := strings.TrimPrefix(string(Render(sb, Host{}).Hosts), hostsHead); got != tc.want {
			t.Errorf("hosts of %v: %q, want %q", sb.Network.Addrs, got, tc.want)
		}
	}
}

// TestAsk: a name server of ours asks the host's loopback when the host does, and for no sandbox
// that names it.
func TestAsk(t *testing.T) {
	alone := Host{Local: local([]byte("nameserver 127.0.0.1\nnameserver ::1\nnameserver 0.0.0.0\nnameserver x\n"))}
	both := Host{Resolv: core.DNS{Servers: []string{"10.0.0.1"}}, Local: []string{"127.0.0.53"}}
	for _, tc := range []struct {
		asked core.DNS
		host  Host
		want  []string
	}{
		{core.DNS{}, alone, []string{"127.0.0.1", "::1"}},
		{core.DNS{Searches: []string{"lan"}}, alone, []string{"127.0.0.1", "::1"}},
		{core.DNS{}, both, []string{"10.0.0.1"}},
		{core.DNS{Servers: []string{"127.0.0.1", "10.9.9.9", "::ffff:127.0.0.1", "::"}}, both, []string{"10.9.9.9"}},
		{core.DNS{Servers: []string{"127.0.0.1"}}, alone, []string{}},
	} {
		if diff := cmp.Diff(tc.want, Ask(tc.asked, core.DNS{}, tc.host)); diff != "" {
			t.Errorf("%v: %s", tc.asked, diff)
		}
	}
}

func TestRenderInTheHostsNetwork(t *testing.T) {
	sb := core.Sandbox{Config: core.SandboxConfig{
		Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Host}, UTS: core.Namespace{Mode: core.Host}},
		Network:    core.NetworkConfig{Hosts: map[string][]string{"10.0.0.9": {"db"}}},
	}}
	f := Render(sb, Host{Name: "node", Hosts: []byte("127.0.0.1 localhost node")})
	if want := "127.0.0.1 localhost node\n10.0.0.9\tdb\n"; string(f.Hosts) != want {
		t.Errorf("hosts %q, want %q", f.Hosts, want)
	}
	if string(f.Hostname) != "node\n" {
		t.Errorf("hostname %q", f.Hostname)
	}
}

// FuzzParse parses a file of the host, and again the result.
func FuzzParse(f *testing.F) {
	f.Add([]byte("nameserver 127.0.0.53\noptions edns0\nsearch a b\n"))
	f.Add([]byte("nameserver\x00\r\n\tsearch\v"))
	f.Add([]byte("nameserver ::%eth0\nnameserver fe80::1%#\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		up := Upstream(content)
		out := ResolvConf(up)
		for _, s := range Parse(out).Servers {
			if isLoopback(s) {
				t.Errorf("loopback server %q got through", s)
			}
		}
		if again := ResolvConf(Parse(out)); string(again) != string(out) {
			t.Errorf("written %q, read and written %q", out, again)
		}
	})
}

// FuzzHosts: no text of a caller may add a line.
func FuzzHosts(f *testing.F) {
	f.Add("web", "example.org", "10.0.0.9", "db")
	f.Add("we\nb", "#", "10.0.0.9\n127.0.0.1", "evil\n8.8.8.8 x")
	f.Fuzz(func(t *testing.T, name, domain, addr, alias string) {
		out := Hosts(name, domain, []netip.Addr{netip.MustParseAddr("10.0.0.2")}, map[string][]string{addr: {alias}})
		if n := strings.Count(string(out), "\n") - strings.Count(hostsHead, "\n"); n > 2 {
			t.Errorf("%d lines: %q", n, out)
		}
	})
}
