// Package typed parses flags for volumes and ports.
package typed

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// Mount parses [SOURCE:]TARGET[:OPTION,…], where SOURCE is a path or VOLUME[/PATH]. A relative
// path begins with a dot, and is resolved here.
func Mount(s string) (*longshorev1.Mount, error) {
	wrong := fmt.Errorf("--volume %q is not [SOURCE:]TARGET[:ro]", s)
	part := strings.Split(s, ":")
	m := &longshorev1.Mount{}
	switch {
	case len(part) == 1 || len(part) == 2 && !strings.HasPrefix(part[1], "/"):
		part = append([]string{""}, part...)
		m.Anonymous = true
	case len(part) > 3:
		return nil, wrong
	}
	m.Source, m.Target = part[0], part[1]
	if len(part) == 3 {
		for o := range strings.SplitSeq(part[2], ",") {
			if err := mountOption(m, o); err != nil {
				return nil, fmt.Errorf("--volume %q: %w", s, err)
			}
		}
	}
	if m.GetTarget() == "" || m.GetSource() == "" && !m.GetAnonymous() || !strings.HasPrefix(m.GetTarget(), "/") {
		return nil, wrong
	}
	return m, resolveSource(m)
}

// resolveSource makes a relative path absolute, and takes a volume's name and the path in it apart.
func resolveSource(m *longshorev1.Mount) error {
	switch {
	case m.GetSource() == "." || m.GetSource() == ".." || strings.HasPrefix(m.GetSource(), "./") || strings.HasPrefix(m.GetSource(), "../"):
		abs, err := filepath.Abs(m.GetSource())
		if err != nil {
			return err
		}
		m.Source = abs
	case !strings.HasPrefix(m.GetSource(), "/"):
		m.Source, m.SubPath, _ = strings.Cut(m.GetSource(), "/")
	}
	return nil
}

// mountOption puts one option of --volume into m.
func mountOption(m *longshorev1.Mount, option string) error {
	switch option {
	case "ro":
		m.ReadOnly = true
	case "rw":
	case "nocopy":
		m.NoCopy = true
	case "private", "rprivate", "slave", "rslave", "shared", "rshared":
		m.Propagation = option
	case "z", "Z":
		m.Relabel = option
	case "cached", "delegated", "consistent": // ignore hints for other systems
	default:
		return fmt.Errorf("option %q is none of ro, rw, nocopy, z, Z, private, rprivate, slave, rslave, shared, rshared", option)
	}
	return nil
}

// Ports parses [[IP:][HOST]:]CONTAINER[/PROTO]. HOST and CONTAINER may be ranges of one length. With one CONTAINER port, the
// agent chooses a port of HOST's range. An IPv6 address is in brackets.
func Ports(s string) ([]*longshorev1.Port, error) {
	wrong := fmt.Errorf("--publish %q is not [[ip:][host]:]container[/tcp|udp|sctp]", s)
	rest, proto, _ := strings.Cut(s, "/")
	if proto == "" {
		proto = "tcp"
	}
	i := strings.LastIndexByte(rest, ':')
	first, last, err := portRange(rest[i+1:])
	if err != nil {
		return nil, wrong
	}
	ip, hostText := "", rest[:max(i, 0)]
	if j := strings.LastIndexByte(hostText, ':'); j >= 0 {
		ip, hostText = strings.Trim(hostText[:j], "[]"), hostText[j+1:]
	}
	var host, hostLast uint32 // 0: chosen by the agent
	if hostText != "" && hostText != "0" {
		from, to, err := portRange(hostText)
		if err != nil || to-from != last-first && last != first {
			return nil, wrong
		}
		if host = from; to-from != last-first {
			hostLast = to
		}
	}
	var ports []*longshorev1.Port
	for n := first; n <= last; n++ {
		p := &longshorev1.Port{Protocol: proto, HostIp: ip, Container: n, HostLast: hostLast}
		if host != 0 {
			p.Host = host + n - first
		}
		ports = append(ports, p)
	}
	return ports, nil
}

// portRange parses N or N-M.
func portRange(s string) (first, last uint32, err error) {
	from, to, ok := strings.Cut(s, "-")
	if !ok {
		to = from
	}
	a, err := strconv.ParseUint(from, 10, 16)
	if err != nil {
		return 0, 0, err
	}
	b, err := strconv.ParseUint(to, 10, 16)
	if err == nil && (a == 0 || b < a) {
		err = fmt.Errorf("%q is not a range of ports", s)
	}
	return uint32(a), uint32(b), err
}
