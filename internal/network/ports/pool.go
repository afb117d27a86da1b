package ports

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Pool is a range of host ports for Choose.
type Pool struct {
	First, Last uint16
	// reserved are ports within the range that are left to others.
	reserved map[uint16]bool
}

// String returns the range in the form of the configuration.
func (p Pool) String() string { return fmt.Sprintf("%d-%d", p.First, p.Last) }

// size is the number of ports, reserved ones included.
func (p Pool) size() int { return int(p.Last) - int(p.First) + 1 }

// ParsePool parses "FIRST-LAST". InvalidArgument.
func ParsePool(s string) (Pool, error) {
	first, last, ok := parseSpan(s, "-")
	if !ok || first == 0 {
		return Pool{}, fmt.Errorf("%q is not a range of ports such as 61000-65535: %w", s, errdefs.ErrInvalidArgument)
	}
	return Pool{First: first, Last: last}, nil
}

// parseSpan parses two ports with a separator between them, the first not above the last.
func parseSpan(s, sep string) (first, last uint16, ok bool) {
	a, b, found := strings.Cut(strings.TrimSpace(s), sep)
	one, err1 := strconv.ParseUint(strings.TrimSpace(a), 10, 16)
	two, err2 := strconv.ParseUint(strings.TrimSpace(b), 10, 16)
	return uint16(one), uint16(two), found && err1 == nil && err2 == nil && one <= two
}

// enough is how many ports above the local range make a pool.
const enough = 1024

// HostPool is the pool when the configuration names none: the ports above the kernel's own range
// (net.ipv4.ip_local_port_range), so that the kernel never assigns one of ours to a process of the
// host. When there are few above, the pool is the kernel's own range. Ports that the administrator
// has reserved (net.ipv4.ip_local_reserved_ports) are left out.
func HostPool() (Pool, error) {
	const dir = "/proc/sys/net/ipv4/"
	local, err := os.ReadFile(dir + "ip_local_port_range")
	if err != nil {
		return Pool{}, fmt.Errorf("read the range of local ports: %w", err)
	}
	reserved, err := os.ReadFile(dir + "ip_local_reserved_ports")
	if err != nil {
		return Pool{}, fmt.Errorf("read the reserved ports: %w", err)
	}
	return hostPool(string(local), string(reserved))
}

func hostPool(local, reserved string) (Pool, error) {
	const highest = 1<<16 - 1
	first, last, ok := parseSpan(strings.Join(strings.Fields(local), " "), " ")
	if !ok {
		return Pool{}, fmt.Errorf("the range of local ports is %q: %w", local, errdefs.ErrDataLoss)
	}
	p := Pool{First: max(first, 1), Last: last, reserved: map[uint16]bool{}}
	if highest-int(last) >= enough {
		p.First, p.Last = last+1, highest
	}
	for span := range strings.SplitSeq(strings.TrimSpace(reserved), ",") {
		if !strings.Contains(span, "-") {
			span += "-" + span
		}
		if first, last, ok := parseSpan(span, "-"); ok {
			for n := int(first); n <= int(last); n++ {
				p.reserved[uint16(n)] = true
			}
		}
	}
	return p, nil
}
