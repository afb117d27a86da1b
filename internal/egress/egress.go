// Package egress has the grammar of egress lists. A list has the permitted destinations of a sandbox's connections.
//
// A list is a sequence of entries:
//
//	api.example.com            a name, all of its ports
//	api.example.com:443        a port of it; also 80,443 and 8000-8100
//	*.packages.example:443     all names below a name, not the name itself
//	db.corp.example@private    a name that may have private addresses
//	10.1.0.0/16:5432           addresses; [fd00:1::/32]:443 with IPv6 and a port
//	192.0.2.7:53/udp           one protocol: tcp, udp, sctp or icmp
//	internet:443               every public address, and every name
//	cluster                    the sandbox's own networks, and those that the node's configuration calls cluster
//	none                       nothing; it must stand alone
//	verify=sni                 connections to names are checked for the name that they ask for; see VerifySNI
//
// The package is pure: it knows neither sandboxes nor the kernel. Start at Parse.
package egress

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Entries that are no destination.
const (
	None     = "none"
	Internet = "internet"
	Cluster  = "cluster"
	// Learn, as the only entry, permits everything and records it, to make a list of the records.
	Learn = "learn"
	// VerifySNI is no destination. It permits connections over TCP to the addresses of names at ports 443 and 80 only if they
	// begin with TLS or HTTP for one of the address's names, and closes QUIC (UDP at port 443) but for entries with udp.
	VerifySNI = "verify=sni"
)

// The bounds of a list.
const (
	MaxEntries  = 10_000
	MaxServices = 64
	maxPorts    = 16 // ranges of one entry
)

// The IP protocols that an entry can name.
const (
	TCP  uint8 = 6
	UDP  uint8 = 17
	SCTP uint8 = 132
	// ICMP is that of both families: echo requests.
	ICMP uint8 = 1
)

var protocols = map[string]uint8{"tcp": TCP, "udp": UDP, "sctp": SCTP, "icmp": ICMP}

// Ports is a range of ports.
type Ports struct{ First, Last uint16 }

func (r Ports) overlaps(o Ports) bool { return r.First <= o.Last && o.First <= r.Last }

// dnsPorts are those of DNS, DNS over TLS and QUIC, multicast DNS and LLMNR.
var dnsPorts = []Ports{{53, 53}, {853, 853}, {5353, 5353}, {5355, 5355}}

// DNSPorts returns the ports of name servers. An entry without ports does not open them: it must name them.
func DNSPorts() []Ports { return slices.Clone(dnsPorts) }

// Service is a protocol with ports. The zero value is TCP and UDP with all ports, and echo requests.
type Service struct {
	Proto uint8   // 0: TCP and UDP; with no ports also ICMP
	Ports []Ports // sorted, without overlaps; empty: all
}

// Equal reports whether two services are the same.
func (s Service) Equal(o Service) bool { return s.Proto == o.Proto && slices.Equal(s.Ports, o.Ports) }

// Has reports whether connections of a protocol to a port are of the service.
func (s Service) Has(proto uint8, port uint16) bool {
	switch {
	case proto == ICMP:
		return s.Proto == ICMP || s.Proto == 0 && len(s.Ports) == 0
	case s.Proto != proto && (s.Proto != 0 || proto != TCP && proto != UDP):
		return false
	}
	return len(s.Ports) == 0 || slices.ContainsFunc(s.Ports, func(r Ports) bool { return r.First <= port && port <= r.Last })
}

// covers reports whether o is a part of s.
func (s Service) covers(o Service) bool {
	if s.Proto != o.Proto && (s.Proto != 0 || o.Proto != TCP && o.Proto != UDP && (o.Proto != ICMP || len(s.Ports) > 0)) {
		return false
	}
	if len(s.Ports) == 0 {
		return !slices.ContainsFunc(o.Ports, func(r Ports) bool { return slices.ContainsFunc(dnsPorts, r.overlaps) })
	}
	within := func(r Ports) bool {
		return slices.ContainsFunc(s.Ports, func(a Ports) bool { return a.First <= r.First && r.Last <= a.Last })
	}
	return len(o.Ports) > 0 && !slices.ContainsFunc(o.Ports, func(r Ports) bool { return !within(r) })
}

func (s Service) String() string {
	var b strings.Builder
	for i, r := range s.Ports {
		b.WriteString(map[bool]string{true: ":", false: ","}[i == 0])
		b.WriteString(strconv.Itoa(int(r.First)))
		if r.Last != r.First {
			b.WriteString("-" + strconv.Itoa(int(r.Last)))
		}
	}
	for name, p := range protocols {
		if p == s.Proto {
			b.WriteString("/" + name)
		}
	}
	return b.String()
}

// Entry is one entry of a list. Exactly one of Name, Net and Preset is set.
type Entry struct {
	Name     string // in lower case, without a final dot; of "*.example.com" it is "example.com"
	Wildcard bool   // the names below Name
	Private  bool   // its addresses may be private
	Net      netip.Prefix
	Preset   string // Internet or Cluster
	Service  Service
}

func (e Entry) String() string {
	service := e.Service.String()
	switch {
	case e.Preset != "":
		return e.Preset + service
	case e.Name == "":
		text := e.Net.String()
		if e.Net.IsSingleIP() {
			text = e.Net.Addr().String()
		}
		if e.Net.Addr().Is6() && strings.HasPrefix(service, ":") {
			text = "[" + text + "]"
		}
		return text + service
	}
	text := e.Name
	if e.Wildcard {
		text = "*." + text
	}
	if e.Private {
		text += "@private"
	}
	return text + service
}

// List is a parsed list. The zero value permits nothing.
type List struct {
	Entries []Entry
	// Services are the different ones of the entries, in the order of their first entries.
	Services []Service
	Verify   bool             // VerifySNI
	exact    map[string][]int // entries by Name
	below    map[string][]int // entries with Wildcard by Name
	internet []int
}

// Parse parses entries. The error names the first entry that is not valid, and the reason.
func Parse(entries []string) (*List, error) {
	l := &List{exact: map[string][]int{}, below: map[string][]int{}}
	if len(entries) > MaxEntries {
		return nil, fmt.Errorf("egress: %d entries are more than %d", len(entries), MaxEntries)
	}
	for _, text := range entries {
		if text == None {
			if len(entries) > 1 {
				return nil, fmt.Errorf("egress: %q must stand alone", None)
			}
			return l, nil
		}
		if text == VerifySNI {
			l.Verify = true
			continue
		}
		e, err := parseEntry(text)
		if err != nil {
			return nil, fmt.Errorf("egress entry %q: %w", text, err)
		}
		l.add(e)
	}
	switch {
	case len(l.Entries) == 0:
		return nil, fmt.Errorf("egress: the list is empty; write %q to permit nothing", None)
	case len(l.Services) > MaxServices:
		return nil, fmt.Errorf("egress: %d different ports and protocols are more than %d; join entries", len(l.Services), MaxServices)
	}
	return l, nil
}

func (l *List) add(e Entry) {
	if slices.ContainsFunc(l.sameKey(e), func(i int) bool { return l.Entries[i].String() == e.String() }) {
		return
	}
	i := len(l.Entries)
	l.Entries = append(l.Entries, e)
	if !slices.ContainsFunc(l.Services, e.Service.Equal) {
		l.Services = append(l.Services, e.Service)
	}
	switch {
	case e.Preset == Internet:
		l.internet = append(l.internet, i)
	case e.Wildcard:
		l.below[e.Name] = append(l.below[e.Name], i)
	case e.Name != "":
		l.exact[e.Name] = append(l.exact[e.Name], i)
	}
}

// sameKey returns the entries among which one like e may be.
func (l *List) sameKey(e Entry) []int {
	switch {
	case e.Wildcard:
		return l.below[e.Name]
	case e.Name != "":
		return l.exact[e.Name]
	}
	return nil
}

func parseEntry(text string) (e Entry, err error) {
	host, service := text, ""
	if rest, proto, ok := cutProto(text); ok {
		host, e.Service.Proto = rest, proto
	}
	switch {
	case strings.HasPrefix(host, "["):
		inner, after, ok := strings.Cut(host[1:], "]")
		if !ok || after != "" && after[0] != ':' {
			return e, fmt.Errorf("an address of IPv6 with a port is written [address]:port")
		}
		host, service = inner, after
	case strings.Count(host, ":") == 1:
		i := strings.IndexByte(host, ':')
		host, service = host[:i], host[i:]
	}
	if service != "" {
		if e.Service.Ports, err = parsePorts(service[1:]); err != nil {
			return e, err
		}
		if e.Service.Proto == ICMP {
			return e, fmt.Errorf("icmp has no ports")
		}
	}
	if host == Internet || host == Cluster {
		e.Preset = host
		return e, nil
	}
	if host == None {
		return e, fmt.Errorf("%q has no ports", None)
	}
	if net, ok, err := parseNet(host); ok || err != nil {
		e.Net = net
		return e, err
	}
	return parseName(e, host)
}

// cutProto divides an entry at its protocol. The slash of a range of addresses is followed by digits.
func cutProto(text string) (rest string, proto uint8, ok bool) {
	i := strings.LastIndexByte(text, '/')
	if i < 0 {
		return text, 0, false
	}
	proto, ok = protocols[text[i+1:]]
	return text[:i], proto, ok
}

func parsePorts(text string) (list []Ports, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, is := strings.Cut(part, "-")
		if !is {
			last = first
		}
		a, err1 := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || a == 0 || b < a {
			return nil, fmt.Errorf("%q is no port or range of ports, such as 443, 80,443 or 8000-8100", part)
		}
		list = append(list, Ports{uint16(a), uint16(b)})
	}
	slices.SortFunc(list, func(a, b Ports) int { return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last)) })
	joined := list[:1]
	for _, r := range list[1:] {
		if end := &joined[len(joined)-1]; int(r.First) <= int(end.Last)+1 {
			end.Last = max(end.Last, r.Last)
		} else {
			joined = append(joined, r)
		}
	}
	if len(joined) > maxPorts {
		return nil, fmt.Errorf("%d ranges of ports are more than %d", len(joined), maxPorts)
	}
	return joined, nil
}

// parseNet parses an address or a range; ok is false for a name.
func parseNet(host string) (p netip.Prefix, ok bool, err error) {
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return p, true, fmt.Errorf("an address with a zone cannot be in a list")
		}
		return normalNet(netip.PrefixFrom(a, a.BitLen()))
	}
	if !strings.Contains(host, "/") {
		return p, false, nil
	}
	if p, err = netip.ParsePrefix(host); err != nil {
		return p, true, fmt.Errorf("%q is neither a range of addresses nor a name with one of the protocols tcp, udp, sctp and icmp", host)
	}
	return normalNet(p)
}

// normalNet clears the bits of the host, and writes addresses of IPv4 that are mapped into IPv6 as such.
func normalNet(p netip.Prefix) (netip.Prefix, bool, error) {
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, true, fmt.Errorf("a range of mapped addresses must be written as one of IPv4")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), true, nil
}

func parseName(e Entry, host string) (Entry, error) {
	name, private := strings.CutSuffix(host, "@private")
	name = strings.TrimSuffix(strings.ToLower(name), ".")
	name, e.Wildcard = cutWildcard(name)
	e.Name, e.Private = name, private
	if !ValidName(name) {
		for _, r := range name {
			if r > 127 {
				return e, fmt.Errorf("write a name with other letters than a to z in its form xn--…")
			}
		}
		return e, fmt.Errorf("it is no name such as api.example.com or *.example.com, no address, no range and none of the words none, internet and cluster")
	}
	if i := strings.LastIndexByte(name, '.'); numeric(name[i+1:]) {
		return e, fmt.Errorf("a name cannot end in a number; an address is written in full")
	}
	if e.Wildcard && !strings.Contains(name, ".") {
		return e, fmt.Errorf("*.%s is a whole top-level domain; write %q to permit all of the internet", name, Internet)
	}
	return e, nil
}

func cutWildcard(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, "*.")
	return rest, ok
}

func numeric(s string) bool {
	if strings.HasPrefix(s, "0x") {
		return true
	}
	for _, r := range s {
		if r < '0' || r > '9' {
			return false
		}
	}
	return s != ""
}

// ValidName reports whether a name in lower case, without a final dot, has the form of a host name: at most 253 bytes,
// labels of 1 to 63 letters, digits, hyphens and underscores.
func ValidName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	label := 0
	for i := range len(name) {
		c := name[i]
		switch {
		case c == '.':
			if label == 0 {
				return false
			}
			label = 0
			continue
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
		if label++; label > 63 {
			return false
		}
	}
	return label > 0
}

// Match is the answer to the question whether a list has a name.
type Match struct {
	// Services has indices in List.Services; of Internet's entries none, because their addresses are permitted already.
	Services []int
	Private  bool // an entry with Private is among them
	Exact    bool // an entry without Wildcard is among them
}

// Name reports whether the list has a name, which is in lower case and without a final dot.
func (l *List) Name(name string) (m Match, ok bool) {
	if !ValidName(name) {
		return m, false
	}
	add := func(list []int) {
		for _, i := range list {
			e := l.Entries[i]
			ok = true
			m.Private, m.Exact = m.Private || e.Private, m.Exact || !e.Wildcard
			if s := slices.IndexFunc(l.Services, e.Service.Equal); !slices.Contains(m.Services, s) {
				m.Services = append(m.Services, s)
			}
		}
	}
	add(l.exact[name])
	for rest := name; ; {
		_, parent, more := strings.Cut(rest, ".")
		if !more {
			break
		}
		add(l.below[parent])
		rest = parent
	}
	if len(l.internet) > 0 {
		ok, m.Exact = true, true
	}
	return m, ok
}

// Has reports whether the list has a name with a port of a protocol. Names that only Internet permits are not among them.
func (l *List) Has(name string, proto uint8, port uint16) bool {
	m, _ := l.Name(name)
	return slices.ContainsFunc(m.Services, func(i int) bool { return l.Services[i].Has(proto, port) })
}

// Verified reports whether VerifySNI is about connections to the port.
func Verified(port uint16) bool { return port == HTTPS || port == HTTP }

// The ports of VerifySNI.
const (
	HTTPS = 443
	HTTP  = 80
)

// Names reports whether the list has any name.
func (l *List) Names() bool { return len(l.exact)+len(l.below)+len(l.internet) > 0 }

// Strings returns the list's entries in their normal form.
func (l *List) Strings() []string {
	if len(l.Entries) == 0 {
		return []string{None}
	}
	out := make([]string, len(l.Entries), len(l.Entries)+1)
	for i, e := range l.Entries {
		out[i] = e.String()
	}
	if l.Verify {
		out = append(out, VerifySNI)
	}
	return out
}

// Within reports whether l permits nothing that outer forbids. Otherwise the error names the first entry that outer lacks.
func (l *List) Within(outer *List) error {
	if outer.Verify && !l.Verify && len(l.exact)+len(l.below) > 0 {
		return fmt.Errorf("egress entry %q of the node's list is missing", VerifySNI)
	}
	for _, e := range l.Entries {
		if !slices.ContainsFunc(outer.Entries, func(o Entry) bool { return o.covers(e) }) {
			return fmt.Errorf("egress entry %q is not part of the node's list %s", e, strings.Join(outer.Strings(), " "))
		}
	}
	return nil
}

// names reports whether e opens an address of metadata: its range must be no wider than a link's.
func (e Entry) names(m netip.Prefix) bool {
	return e.Net.IsValid() && e.Net.Contains(m.Addr()) && e.Net.Bits() >= m.Bits()/2
}

// Closed returns the addresses of metadata that no entry names.
func (l *List) Closed() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(metadata), func(m netip.Prefix) bool {
		return slices.ContainsFunc(l.Entries, func(e Entry) bool { return e.names(m) })
	})
}

// covers reports whether e permits all that o does.
func (e Entry) covers(o Entry) bool {
	if !e.Service.covers(o.Service) || slices.ContainsFunc(metadata, func(m netip.Prefix) bool { return o.names(m) && !e.names(m) }) {
		return false
	}
	switch {
	case e.Preset == Internet:
		return o.Preset == Internet || o.Name != "" && !o.Private || o.Net.IsValid() && Public(o.Net)
	case e.Preset == Cluster:
		return o.Preset == Cluster
	case e.Net.IsValid():
		return o.Net.IsValid() && e.Net.Bits() <= o.Net.Bits() && e.Net.Contains(o.Net.Addr())
	case o.Name == "" || o.Private && !e.Private:
		return false
	case e.Wildcard:
		return strings.HasSuffix(o.Name, "."+e.Name) || o.Wildcard && o.Name == e.Name
	}
	return !o.Wildcard && o.Name == e.Name
}

// Split divides a list that is written in one text: spaces separate its entries.
func Split(text string) []string { return strings.Fields(text) }

// ParseOrLearn is Parse for a list that may also be Learn.
func ParseOrLearn(entries []string) (l *List, learn bool, err error) {
	if len(entries) == 1 && entries[0] == Learn {
		return &List{}, true, nil
	}
	l, err = Parse(entries)
	return l, false, err
}
