// Package ports keeps who has which port of the host, and finds out whether a
// process of the host listens there already.
//
// It knows no rules and no links. Start at Claims.
package ports

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Number turns a Port.Proto into the kernel's protocol number; "" is tcp.
// Errors are InvalidArgument.
func Number(proto string) (uint8, error) {
	switch proto {
	case "", "tcp":
		return unix.IPPROTO_TCP, nil
	case "udp":
		return unix.IPPROTO_UDP, nil
	case "sctp":
		return unix.IPPROTO_SCTP, nil
	default:
		return 0, fmt.Errorf("protocol %q is none of tcp, udp, sctp: %w", proto, errdefs.ErrInvalidArgument)
	}
}

// Claim is one port of the host.
type Claim struct {
	Proto string
	IP    netip.Addr // zero, 0.0.0.0 and :: are every address (of the family)
	Port  uint16
}

// String writes a claim as people do.
func (c Claim) String() string {
	host := "*"
	if c.IP.IsValid() {
		host = c.IP.String()
		if c.IP.Is6() {
			host = "[" + host + "]"
		}
	}
	return fmt.Sprintf("%s %s:%d", c.Proto, host, c.Port)
}

// clash reports whether c and o would take the same packets.
func (c Claim) clash(o Claim) bool {
	if c.Proto != o.Proto || c.Port != o.Port {
		return false
	}
	if !c.IP.IsValid() || !o.IP.IsValid() {
		return true
	}
	if c.IP.Is4() != o.IP.Is4() {
		return false
	}
	return c.IP == o.IP || c.IP.IsUnspecified() || o.IP.IsUnspecified()
}

// Claims remembers the ports of all sandboxes. The zero value is empty and
// ready; it is safe for concurrent use.
type Claims struct {
	mu  sync.Mutex // guards all
	all map[number]map[Claim]core.ID
}

// number is what claims are looked up by.
type number struct {
	proto string
	port  uint16
}

func (c Claim) number() number { return number{c.Proto, c.Port} }

// Take claims ports for a sandbox, all or none. FailedPrecondition names who
// has one already; taking again what the sandbox has is fine.
func (c *Claims) Take(id core.ID, claims []Claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, want := range claims {
		for have, holder := range c.all[want.number()] {
			if holder != id && want.clash(have) {
				return fmt.Errorf("claim host port %s: taken by sandbox %s: %w", want, holder, errdefs.ErrFailedPrecondition)
			}
		}
		for _, other := range claims[:i] {
			if want.clash(other) {
				return fmt.Errorf("claim host port %s: asked for twice: %w", want, errdefs.ErrInvalidArgument)
			}
		}
	}
	if c.all == nil {
		c.all = map[number]map[Claim]core.ID{}
	}
	for _, want := range claims {
		n := want.number()
		if c.all[n] == nil {
			c.all[n] = map[Claim]core.ID{}
		}
		c.all[n][want] = id
	}
	return nil
}

// Drop gives the ports of a sandbox back; it is idempotent.
func (c *Claims) Drop(id core.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, claims := range c.all {
		for claim, holder := range claims {
			if holder == id {
				delete(claims, claim)
			}
		}
		if len(claims) == 0 {
			delete(c.all, n)
		}
	}
}
