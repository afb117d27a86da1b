package roottest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// HostEnv names the kind of host that a test sees in its namespaces: "hardened" or "loosened". Without
// it, the kernel's defaults hold for the network, and the rest is as the test was started. See Inherit
// for the umask and the limits.
const HostEnv = "LONGSHORE_TEST_HOST"

const (
	hardened = "hardened"
	loosened = "loosened"
)

// host has the settings of a machine that administrators change and that all of its processes
// inherit.
type host struct {
	sysctls map[string]string // below /proc/sys; * stands for all and default
	umask   int
	limits  map[int]unix.Rlimit
	rules   string // of nft
}

// hosts returns the kinds of hosts by name.
func hosts() map[string]host {
	const none = unix.RLIM_INFINITY
	return map[string]host{
		hardened: {
			sysctls: map[string]string{
				"net/ipv4/ip_forward":                       "0",
				"net/ipv4/conf/*/rp_filter":                 "1",
				"net/ipv4/conf/*/accept_redirects":          "0",
				"net/ipv4/conf/*/secure_redirects":          "0",
				"net/ipv4/conf/*/send_redirects":            "0",
				"net/ipv4/conf/*/accept_source_route":       "0",
				"net/ipv4/conf/*/log_martians":              "1",
				"net/ipv4/conf/*/arp_ignore":                "2",
				"net/ipv4/conf/*/arp_announce":              "2",
				"net/ipv4/conf/*/arp_filter":                "1",
				"net/ipv4/conf/*/shared_media":              "0",
				"net/ipv4/icmp_echo_ignore_all":             "1",
				"net/ipv4/tcp_timestamps":                   "0",
				"net/ipv4/ip_unprivileged_port_start":       "1024",
				"net/ipv4/ping_group_range":                 "1\t0",
				"net/ipv6/conf/*/accept_ra":                 "0",
				"net/ipv6/conf/*/accept_redirects":          "0",
				"net/ipv6/conf/*/autoconf":                  "0",
				"net/ipv6/conf/*/router_solicitations":      "0",
				"net/ipv6/conf/*/forwarding":                "0",
				"net/ipv6/conf/default/disable_ipv6":        "1",
				"net/bridge/bridge-nf-call-iptables":        "1",
				"net/bridge/bridge-nf-call-ip6tables":       "1",
				"net/netfilter/nf_conntrack_tcp_loose":      "0",
				"net/netfilter/nf_conntrack_tcp_be_liberal": "0",
			},
			umask: 0o077,
			limits: map[int]unix.Rlimit{
				unix.RLIMIT_NOFILE: {Cur: 1024, Max: 4096}, unix.RLIMIT_NPROC: {Cur: 256, Max: 256},
				unix.RLIMIT_CORE: {}, unix.RLIMIT_MEMLOCK: {Cur: 64 << 10, Max: 64 << 10},
			},
			rules: `table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		iif lo accept
		ct state established,related accept
		meta l4proto { icmp, ipv6-icmp } accept
		meta l4proto { tcp, udp } th dport { 22, 4789, 7946, 8000-8999 } accept
	}
	chain forward {
		type filter hook forward priority 0; policy drop;
		ct state established,related accept
	}
}`,
		},
		loosened: {
			sysctls: map[string]string{
				"net/ipv4/ip_forward":                 "1",
				"net/ipv4/conf/*/forwarding":          "1",
				"net/ipv4/conf/*/rp_filter":           "2",
				"net/ipv4/conf/*/accept_redirects":    "1",
				"net/ipv4/conf/*/send_redirects":      "1",
				"net/ipv4/conf/*/accept_source_route": "1",
				"net/ipv4/conf/*/accept_local":        "1",
				"net/ipv4/conf/*/route_localnet":      "1",
				"net/ipv4/conf/*/proxy_arp":           "1",
				"net/ipv4/conf/*/arp_accept":          "1",
				"net/ipv4/conf/*/arp_ignore":          "0",
				"net/ipv4/conf/*/arp_announce":        "0",
				"net/ipv4/ip_nonlocal_bind":           "1",
				"net/ipv4/ip_unprivileged_port_start": "0",
				"net/ipv4/ping_group_range":           "0\t2147483647",
				"net/ipv6/conf/*/forwarding":          "1",
				"net/ipv6/conf/*/accept_ra":           "2",
				"net/ipv6/conf/*/accept_redirects":    "1",
				"net/ipv6/conf/*/proxy_ndp":           "1",
				"net/ipv6/ip_nonlocal_bind":           "1",
				"net/bridge/bridge-nf-call-iptables":  "0",
				"net/bridge/bridge-nf-call-ip6tables": "0",
			},
			umask: 0,
			limits: map[int]unix.Rlimit{
				unix.RLIMIT_NOFILE: {Cur: 1 << 20, Max: 1 << 20}, unix.RLIMIT_NPROC: {Cur: none, Max: none},
				unix.RLIMIT_CORE: {Cur: none, Max: none}, unix.RLIMIT_MEMLOCK: {Cur: none, Max: none}, unix.RLIMIT_STACK: {Cur: none, Max: none},
			},
			rules: `table inet filter {
	chain input { type filter hook input priority 0; policy accept; }
	chain forward { type filter hook forward priority 0; policy accept; }
}`,
		},
	}
}

// Hardened reports whether the test's machine is a hardened host, with a firewall that forwards
// only accepted packets.
func Hardened() bool { return os.Getenv(HostEnv) == hardened }

// become makes the test's machine the kind of host that HostEnv names.
func become(t *testing.T) {
	t.Helper()
	kind := os.Getenv(HostEnv)
	if kind == "" {
		return
	}
	h, ok := hosts()[kind]
	if !ok {
		t.Fatalf("%s=%s is no kind of host", HostEnv, kind)
	}
	if err := h.set(t); err != nil {
		t.Fatalf("become a %s host: %v", kind, err)
	}
}

func (h host) set(t *testing.T) error {
	t.Helper()
	for name, value := range h.sysctls {
		paths := []string{name}
		if before, after, ok := strings.Cut(name, "*"); ok {
			paths = []string{before + "all" + after, before + "default" + after}
		}
		for _, path := range paths {
			// Not every kernel has each of them; bridge's need its module.
			if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	nft := exec.CommandContext(t.Context(), "nft", "-f", "-")
	nft.Stdin = strings.NewReader(h.rules)
	if out, err := nft.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// Inherit gives this process the umask and the limits of the host that HostEnv names. Tests that start
// our programs call it, since programs inherit both. Other tests do not: the code under test runs in
// their own process, after an agent has set both.
func Inherit(t *testing.T) {
	t.Helper()
	h, ok := hosts()[os.Getenv(HostEnv)]
	if !ok || os.Getenv(childEnv) == "" {
		return
	}
	for kind, limit := range h.limits {
		var now unix.Rlimit
		if err := unix.Getrlimit(kind, &now); err != nil {
			t.Fatalf("get limit %d: %v", kind, err)
		}
		limit.Cur, limit.Max = min(limit.Cur, now.Max), min(limit.Max, now.Max) // not even root may raise it everywhere
		if err := unix.Setrlimit(kind, &limit); err != nil {
			t.Fatalf("set limit %d: %v", kind, err)
		}
	}
	unix.Umask(h.umask)
}
