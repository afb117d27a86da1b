// Package ports records which sandbox has which port of the host, and finds out whether a process
// of the host already listens there.
//
// It knows neither rules nor links. Start at Claims.
package ports

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Number returns the kernel's protocol number for a Port.Proto; "" is tcp. Errors are
// InvalidArgument.
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

// String returns a claim in the form that people write.
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

// clash reports whether c and o would receive the same packets.
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

// Claims records the ports of all sandboxes. The zero value is empty and ready to use; it is safe
// for concurrent use.
type Claims struct {
	// Holder keeps the sockets of ports while there is no agent; nil: nobody does.
	Holder core.Holder
	Logger *slog.Logger // nil: no log

	mu  sync.Mutex // guards all, turn, sockets, held, stale
	all map[number]map[Claim]core.ID
	// sockets are those of sandboxes' ports.
	sockets map[Claim]*os.File
	held    map[core.ID]int // the number of names in the holder
	stale   []string        // names that the holder has not dropped
	// turn counts the choices, from a random start, so that a freed port is chosen again as late as
	// possible.
	turn int
}

// number is the key under which claims are found.
type number struct {
	proto string
	port  uint16
}

func (c Claim) number() number { return number{c.Proto, c.Port} }

// Take claims ports for a sandbox, all or none of them. FailedPrecondition names the sandbox that
// already has one. Claims that the sandbox already has are allowed.
func (c *Claims) Take(id core.ID, claims []Claim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, want := range claims {
		for have, holder := range c.all[want.number()] {
			if holder != id && want.clash(have) {
				return taken(want, false, fmt.Errorf("claim host port %s: taken by %s: %w", want, holds(holder), errdefs.ErrFailedPrecondition))
			}
		}
		for _, other := range claims[:i] {
			if want.clash(other) {
				return taken(want, false, fmt.Errorf("claim host port %s: requested twice: %w", want, errdefs.ErrInvalidArgument))
			}
		}
	}
	for _, want := range claims {
		c.put(id, want)
	}
	return nil
}

func taken(c Claim, process bool, err error) error {
	return &core.PortError{HostIP: c.IP, Host: c.Port, Process: process, Err: err}
}

// Published holds the ports that are published on every node, and are no sandbox's.
const Published core.ID = "published"

// holds describes the holder of a port.
func holds(id core.ID) string {
	if id == Published {
		return "services that publish it on every node"
	}
	return "sandbox " + string(id)
}

// put records a claim. Preconditions: mu is held.
func (c *Claims) put(id core.ID, want Claim) {
	if c.all == nil {
		c.all = map[number]map[Claim]core.ID{}
	}
	n := want.number()
	if c.all[n] == nil {
		c.all[n] = map[Claim]core.ID{}
	}
	c.all[n][want] = id
}

// Choose claims a port of the pool for a sandbox: one without a claim, this sandbox's included, and
// without a listening process of the host. ResourceExhausted if there is none; InvalidArgument if
// the protocol or the address is not valid.
func (c *Claims) Choose(id core.ID, want Claim, from Pool) (Claim, error) {
	for range from.size() {
		var ok bool
		if want.Port, ok = c.next(from); !ok || !c.free(id, want) {
			continue
		}
		f, err := occupy(want)
		if err == nil {
			c.keep(want, f)
			return want, nil
		}
		c.drop(want)
		if !errors.Is(err, unix.EADDRINUSE) {
			return Claim{}, probed(want, err)
		}
	}
	want.Port = 0
	return Claim{}, fmt.Errorf("claim host port %s: none of %s is free: %w", want, from, errdefs.ErrResourceExhausted)
}

// First claims the first free port from that of want to last, and binds it. Errors are those of Choose.
func (c *Claims) First(id core.ID, want Claim, last uint16) (Claim, error) {
	all := Pool{First: want.Port, Last: last}
	for n := uint32(all.First); n <= uint32(last); n++ {
		want.Port = uint16(n)
		if !c.free(id, want) {
			continue
		}
		f, err := occupy(want)
		if err == nil {
			c.keep(want, f)
			return want, nil
		}
		c.drop(want)
		if !errors.Is(err, unix.EADDRINUSE) {
			return Claim{}, probed(want, err)
		}
	}
	want.Port = all.First
	return Claim{}, taken(Claim{IP: want.IP, Port: last}, false, fmt.Errorf("claim host port %s-%d: none of them is free: %w", want, last, errdefs.ErrResourceExhausted))
}

// free claims a port if nobody has it, the sandbox included.
func (c *Claims) free(id core.ID, want Claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for have := range c.all[want.number()] {
		if want.clash(have) {
			return false
		}
	}
	c.put(id, want)
	return true
}

// next returns the next port in turn; ok is false if it is reserved.
func (c *Claims) next(from Pool) (port uint16, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn == 0 {
		c.turn = 1 + rand.IntN(from.size()) //nolint:gosec // no secret
	}
	port = from.First + uint16(c.turn%from.size())
	c.turn++
	return port, !from.reserved[port]
}

// drop releases one claim.
func (c *Claims) drop(claim Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := claim.number()
	delete(c.all[n], claim)
	c.closeSocket(claim)
	if len(c.all[n]) == 0 {
		delete(c.all, n)
	}
}

// Give releases one port, if id has it.
func (c *Claims) Give(id core.ID, claim Claim) {
	c.mu.Lock()
	has := c.all[claim.number()][claim] == id
	c.mu.Unlock()
	if has {
		c.drop(claim)
	}
}

// Drop releases the ports of a sandbox. It is idempotent.
func (c *Claims) Drop(id core.ID) {
	c.dropClaims(id)
	c.unhold(id)
}

// closeSocket closes the socket of a claim. Preconditions: mu is held.
func (c *Claims) closeSocket(claim Claim) {
	if f := c.sockets[claim]; f != nil {
		_ = f.Close()
		delete(c.sockets, claim)
	}
}

func (c *Claims) dropClaims(id core.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, claims := range c.all {
		for claim, holder := range claims {
			if holder == id {
				delete(claims, claim)
				c.closeSocket(claim)
			}
		}
		if len(claims) == 0 {
			delete(c.all, n)
		}
	}
}
