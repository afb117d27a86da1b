package roottest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// HostEnv names the kind of host that a test sees in its namespaces: "hardened" or "loosened". Without
// it, the kernel's defaults hold for the network, and the rest is as the test was started. See
// Inheriting for the umask and the limits.
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
	limits  map[string]limit // by prlimit's options
	rules   string           // of nft
}

type limit struct {
	kind       int
	soft, hard uint64
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
			limits: map[string]limit{
				"nofile": {unix.RLIMIT_NOFILE, 1024, 4096}, "nproc": {unix.RLIMIT_NPROC, 256, 256},
				"core": {unix.RLIMIT_CORE, 0, 0}, "memlock": {unix.RLIMIT_MEMLOCK, 64 << 10, 64 << 10},
			},
			rules: `table inet filter {
	chain input {
		type filter hook input priority 0; policy drop;
		iif lo accept
		ct state established,related accept
		meta l4proto { icmp, ipv6-icmp } accept
		meta l4proto { tcp, udp } th dport { 22, 4789, 7946, 8000-8999 } accept
		tcp dport { 2377, 4000, 32768-60999 } accept # servers that tests start
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
			limits: map[string]limit{
				"nofile": {unix.RLIMIT_NOFILE, 1 << 20, 1 << 20}, "nproc": {unix.RLIMIT_NPROC, none, none},
				"core": {unix.RLIMIT_CORE, none, none}, "memlock": {unix.RLIMIT_MEMLOCK, none, none}, "stack": {unix.RLIMIT_STACK, none, none},
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

// Inheriting returns a command that runs args with the umask and the limits of the host that HostEnv
// names, which programs inherit. A test's own process keeps its umask and limits: it does what an
// agent does after it has set both.
func Inheriting(args ...string) []string {
	h, ok := hosts()[os.Getenv(HostEnv)]
	if !ok || os.Getenv(childEnv) == "" {
		return args
	}
	// A service of root raises hard limits again. Where it has no capability for it, as in some
	// machines of tests, only the soft ones are set.
	raises, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)
	set := []string{"prlimit"}
	for name, limit := range h.limits {
		var now unix.Rlimit
		if unix.Getrlimit(limit.kind, &now) != nil {
			continue
		}
		soft, hard := min(limit.soft, now.Max), min(limit.hard, now.Max)
		if raises == 0 || err != nil {
			hard = now.Max
		}
		set = append(set, fmt.Sprintf("--%s=%s:%s", name, limitText(soft), limitText(hard)))
	}
	return slices.Concat([]string{"/bin/sh", "-c", fmt.Sprintf(`umask %04o; exec "$@"`, h.umask), "sh"}, set, args)
}

func limitText(n uint64) string {
	if n == unix.RLIM_INFINITY {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
