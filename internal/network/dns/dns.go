// Package dns makes the resolv.conf, hosts and hostname of a sandbox. All of it is pure but Read,
// which reads the host's files.
//
// A loopback name server of the host (127.0.0.53 of systemd-resolved, a dnsmasq) can be reached only on
// the host, so it is never given to a sandbox. The servers it forwards to replace it; if they cannot be
// found, the file has no server and a comment that says so. A name server of ours, which is on the host,
// may ask it (Ask).
//
// Start at Render.
package dns

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// Files are a sandbox's three files.
type Files struct{ ResolvConf, Hosts, Hostname []byte }

// Host is the host's own settings.
type Host struct {
	Resolv core.DNS // without loopback servers
	Local  []string // the loopback servers
	Hosts  []byte   // its /etc/hosts
	Name   string   // its host name
}

// resolvFiles are tried in order until one has a server that is not loopback: the host's own file,
// then the files of systemd-resolved and NetworkManager that list the real servers behind their
// loopback servers.
var resolvFiles = [...]string{
	"/etc/resolv.conf",
	"/run/systemd/resolve/resolv.conf",
	"/run/NetworkManager/no-stub-resolv.conf",
	"/run/NetworkManager/resolv.conf",
}

// Read reads the host's files. Files that cannot be read count as empty.
func Read() Host {
	var contents [][]byte
	for _, name := range resolvFiles {
		data, _ := os.ReadFile(name)
		contents = append(contents, data)
	}
	hosts, _ := os.ReadFile("/etc/hosts")
	name, _ := os.Hostname()
	return Host{Resolv: Upstream(contents...), Local: local(contents[0]), Hosts: hosts, Name: name}
}

// Upstream takes the contents of resolv.conf files, the host's own first. It returns the settings
// of the first file, with the servers of the first file that has any that are not loopback.
func Upstream(contents ...[]byte) core.DNS {
	var up core.DNS
	for i, c := range contents {
		d := Parse(c)
		if i == 0 {
			up = d
		}
		if up.Servers = slices.DeleteFunc(d.Servers, isLoopback); len(up.Servers) > 0 {
			break
		}
	}
	// This option is about the loopback server.
	up.Options = slices.DeleteFunc(up.Options, func(o string) bool { return o == "trust-ad" })
	return up
}

// isLoopback reports whether a server answers only on its own host. Text that is not an address
// counts as such, and so does one that cannot be written, so that it is not passed on.
func isLoopback(server string) bool {
	a, err := netip.ParseAddr(server)
	a = a.Unmap().WithZone("") // ::%eth0 is unspecified too, which netip denies
	return err != nil || words([]string{server}) == "" || a.IsLoopback() || a.IsUnspecified()
}

// local returns the servers of a file that answer on the host alone.
func local(content []byte) (list []string) {
	for _, s := range Parse(content).Servers {
		if a, err := netip.ParseAddr(s); err == nil && a.Unmap().IsLoopback() {
			list = append(list, s)
		}
	}
	return list
}

// Ask returns the servers that a name server on the host asks for a sandbox: those of Resolve, and those
// that answer on the host alone where it has no others. A loopback server in the sandbox's own config is
// ignored, because its loopback is not the host's.
func Ask(asked, driver core.DNS, host Host) []string {
	servers := Resolve(asked, driver, host.Resolv).Servers
	switch {
	case len(asked.Servers) > 0:
		return slices.DeleteFunc(slices.Clone(servers), isLoopback)
	case len(servers) == 0:
		return host.Local
	}
	return servers
}

// Parse parses a resolv.conf as resolv.conf(5) says: the last search or domain line counts,
// options add up, unknown lines are skipped.
func Parse(content []byte) core.DNS {
	var d core.DNS
	for line := range strings.Lines(string(content)) {
		if i := strings.IndexAny(line, "#;"); i == 0 {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			d.Servers = append(d.Servers, f[1])
		case "search":
			d.Searches = slices.Clone(f[1:])
		case "domain":
			d.Searches = []string{f[1]}
		case "options":
			d.Options = append(d.Options, f[1:]...)
		}
	}
	return d
}

// Resolve returns the DNS settings of a sandbox: asked is its own config, driver the network's (a
// CNI result, or the agent's configuration). The first that has any setting counts; when it has no
// servers, they are those of the next.
func Resolve(asked, driver, host core.DNS) core.DNS {
	d := asked
	if empty(d) {
		d = driver
	}
	if empty(d) {
		return host
	}
	for _, next := range []core.DNS{driver, host} {
		if len(d.Servers) == 0 {
			d.Servers = next.Servers
		}
	}
	return d
}

// behind returns the DNS settings of a sandbox with its own name server, which forwards to the
// others. Names without a dot are those of its network first.
func behind(d core.DNS, resolver netip.Addr) core.DNS {
	d.Servers = []string{resolver.String()}
	if !slices.ContainsFunc(d.Options, func(o string) bool { return strings.HasPrefix(o, "ndots:") }) {
		d.Options = append(slices.Clone(d.Options), "ndots:0")
	}
	return d
}

func empty(d core.DNS) bool { return len(d.Servers)+len(d.Searches)+len(d.Options) == 0 }

// ResolvConf returns d as a file.
func ResolvConf(d core.DNS) []byte {
	var b, servers bytes.Buffer
	for _, s := range d.Servers {
		if w := words([]string{s}); w != "" {
			fmt.Fprintf(&servers, "nameserver %s\n", w)
		}
	}
	if servers.Len() == 0 {
		b.WriteString("# no name server: the host has none, or only one that answers on the host alone\n")
	}
	if s := words(d.Searches); s != "" {
		fmt.Fprintf(&b, "search %s\n", s)
	}
	b.Write(servers.Bytes())
	if o := words(d.Options); o != "" {
		fmt.Fprintf(&b, "options %s\n", o)
	}
	return b.Bytes()
}

// words joins words with blanks and drops those that could break the line.
func words(list []string) string {
	var ok []string
	for _, w := range list {
		if w = strings.TrimSpace(w); w != "" && !strings.ContainsFunc(w, notWord) {
			ok = append(ok, w)
		}
	}
	return strings.Join(ok, " ")
}

func notWord(r rune) bool { return r <= ' ' || r == 0x7f || r == '#' || r == ';' }

// hostsHead is the beginning of every hosts file.
const hostsHead = `127.0.0.1	localhost
::1	localhost ip6-localhost ip6-loopback
fe00::0	ip6-localnet
ff00::0	ip6-mcastprefix
ff02::1	ip6-allnodes
ff02::2	ip6-allrouters
`

// Hosts returns a hosts file: the sandbox's own names at its addresses (or at a loopback address
// when it has none), then extra, address to lines of names.
func Hosts(name, domain string, addrs []netip.Addr, extra map[string][]string) []byte {
	b := bytes.NewBufferString(hostsHead)
	names := []string{name}
	if domain != "" && name != "" && !strings.Contains(name, ".") {
		names = []string{name + "." + domain, name}
	}
	if w := words(names); w != "" {
		if len(addrs) == 0 {
			addrs = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 1, 1})}
		}
		for _, a := range addrs {
			fmt.Fprintf(b, "%s\t%s\n", a, w)
		}
	}
	writeExtra(b, extra)
	return b.Bytes()
}

// withGateway puts the node's address in the place of core.HostGateway.
func withGateway(hosts map[string][]string, gateways []netip.Addr) map[string][]string {
	names, ok := hosts[core.HostGateway]
	if !ok {
		return hosts
	}
	hosts = maps.Clone(hosts)
	delete(hosts, core.HostGateway)
	for _, g := range gateways {
		hosts[g.String()] = slices.Concat(hosts[g.String()], names)
	}
	return hosts
}

// writeExtra writes a line for each entry, as dockerd does: of several names in one line, the first would be
// the canonical name of all. An entry with spaces is a name and its aliases.
func writeExtra(b *bytes.Buffer, extra map[string][]string) {
	for _, a := range slices.Sorted(maps.Keys(extra)) {
		for _, entry := range extra[a] {
			if addr, w := words([]string{a}), words(strings.Fields(entry)); addr != "" && w != "" {
				fmt.Fprintf(b, "%s\t%s\n", addr, w)
			}
		}
	}
}

// ownAddresses returns the addresses at which others reach a sandbox by its own name. Those of an interface that is
// closed but for some ports are none, nor is, beside a network over several nodes, that of the node's
// bridge: programs tell others the first one that they find.
func ownAddresses(st core.NetworkStatus) []netip.Addr {
	closed := func(a core.Attachment) bool { return len(a.Open) > 0 }
	wide := func(a core.Attachment) bool { _, ok := core.OverlayName(a.Network); return ok && !closed(a) }
	out := closed
	if slices.ContainsFunc(st.Interfaces, wide) {
		out = func(a core.Attachment) bool { return !wide(a) }
	}
	without := slices.Clone(st.Addrs)
	for _, i := range st.Interfaces {
		if out(i) {
			without = slices.DeleteFunc(without, func(a netip.Addr) bool {
				return slices.ContainsFunc(i.Addrs, func(p netip.Prefix) bool { return p.Addr() == a })
			})
		}
	}
	if len(without) == 0 {
		return st.Addrs
	}
	return without
}

// Render returns the files of a sandbox. A sandbox in the host's network gets the host's hosts
// file. A sandbox without a name has its short ID as name.
func Render(sb core.Sandbox, host Host) Files {
	c := sb.Config
	name := c.Hostname
	inHost := c.Namespaces.Net.Mode == core.Host
	switch {
	case name != "":
	case c.Namespaces.UTS.Mode == core.Host:
		name = host.Name
	default:
		name = sb.ID.Short()
	}
	resolv := Resolve(c.Network.DNS, sb.Network.DNS, host.Resolv)
	if sb.Network.Resolver.IsValid() {
		resolv = behind(resolv, sb.Network.Resolver)
	}
	f := Files{ResolvConf: ResolvConf(resolv)}
	if w := words([]string{name}); w != "" {
		f.Hostname = []byte(w + "\n")
	}
	if inHost && len(host.Hosts) > 0 {
		b := bytes.NewBuffer(slices.Clone(host.Hosts))
		if !bytes.HasSuffix(host.Hosts, []byte("\n")) {
			b.WriteByte('\n')
		}
		writeExtra(b, c.Network.Hosts)
		f.Hosts = b.Bytes()
		return f
	}
	addrs := ownAddresses(sb.Network)
	if inHost {
		addrs = nil
	}
	f.Hosts = Hosts(name, c.Domainname, addrs, withGateway(c.Network.Hosts, sb.Network.Gateways))
	return f
}
