package ports

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// A port that a sandbox has is bound by a socket, so that other programs of the host that want it get EADDRINUSE. The
// socket receives nothing: rules lead packets to the sandbox, and where they do not (::1), connections are refused. The
// holder keeps the sockets while there is no agent.

// holdPrefix starts the names of sockets in the holder. The sandbox and a number follow.
const holdPrefix = "ports/"

const (
	// perName is the number of sockets under a name, which core.Holder bounds.
	perName = 4
	// holderTime bounds a request to the holder.
	holderTime = 10 * time.Second
)

func heldName(id core.ID, i int) string { return fmt.Sprintf("%s%s/%d", holdPrefix, id, i) }

// Open binds ports that a sandbox has claimed. Errors are those of Probe. Ports that are bound already stay so.
func (c *Claims) Open(claims []Claim) error {
	c.dropStale()
	for _, claim := range claims {
		if c.open(claim) {
			continue
		}
		f, err := occupy(claim)
		if err != nil {
			return probed(claim, err)
		}
		c.keep(claim, f)
	}
	return nil
}

func (c *Claims) open(claim Claim) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sockets[claim] != nil
}

// keep records the socket of a claim.
func (c *Claims) keep(claim Claim, f *os.File) {
	if f == nil {
		return // the kernel does not have the protocol
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sockets == nil {
		c.sockets = map[Claim]*os.File{}
	}
	c.sockets[claim] = f
}

// socketsOf returns the sockets of a sandbox, by their claims.
func (c *Claims) socketsOf(id core.ID) (files []*os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var claims []Claim
	for _, all := range c.all {
		for claim, holder := range all {
			if holder == id && c.sockets[claim] != nil {
				claims = append(claims, claim)
			}
		}
	}
	slices.SortFunc(claims, func(a, b Claim) int { return strings.Compare(a.String(), b.String()) })
	for _, claim := range claims {
		files = append(files, c.sockets[claim])
	}
	return files
}

// Hold gives the sockets of a sandbox to the holder. Without it, the ports are free while there is no agent.
func (c *Claims) Hold(id core.ID) {
	files := c.socketsOf(id)
	if c.Holder == nil || len(files) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	i := 0
	for chunk := range slices.Chunk(files, perName) {
		if err := c.Holder.Hold(ctx, heldName(id, i), chunk); err != nil {
			c.log().Warn("the keeper does not keep the sockets of host ports: other programs get these ports while there is no agent", "sandbox", string(id), "error", err.Error())
			break
		}
		i++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held == nil {
		c.held = map[core.ID]int{}
	}
	c.held[id] = i
}

func (c *Claims) log() *slog.Logger {
	if c.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Logger
}

// Reopen takes the sockets of a live sandbox's claims from the holder after a start of the agent. It binds ports that the
// holder does not have. A port that another program has got meanwhile stays with both.
func (c *Claims) Reopen(id core.ID, claims []Claim) {
	if len(claims) == 0 || slices.ContainsFunc(claims, c.open) {
		return
	}
	files, names := c.receive(id)
	for _, f := range files {
		if at := slices.IndexFunc(claims, func(claim Claim) bool { return !c.open(claim) && isOf(f, claim) }); at >= 0 {
			c.keep(claims[at], f)
		} else {
			_ = f.Close()
		}
	}
	c.mu.Lock()
	if c.held == nil {
		c.held = map[core.ID]int{}
	}
	c.held[id] = names
	c.mu.Unlock()
	again := false
	for _, claim := range claims {
		if c.open(claim) {
			continue
		}
		f, err := occupy(claim)
		if err != nil {
			c.log().Warn("another program of the host has got a sandbox's port", "sandbox", string(id), "error", probed(claim, err).Error())
			continue
		}
		again = true
		c.keep(claim, f)
	}
	if again {
		c.Hold(id)
	}
}

// receive returns a sandbox's sockets in the holder, and the number of their names.
func (c *Claims) receive(id core.ID) (files []*os.File, names int) {
	if c.Holder == nil {
		return nil, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	for {
		some, err := c.Holder.Held(ctx, heldName(id, names))
		if err != nil {
			return files, names
		}
		files = append(files, some...)
		names++
	}
}

// isOf reports whether a socket is bound to a claim's port.
func isOf(f *os.File, claim Claim) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return false
	}
	var number int
	var at unix.Sockaddr
	err2 := raw.Control(func(fd uintptr) {
		if number, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL); err == nil {
			at, err = unix.Getsockname(int(fd))
		}
	})
	proto, err3 := Number(claim.Proto)
	if errors.Join(err, err2, err3) != nil || number != int(proto) {
		return false
	}
	var ap netip.AddrPort
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		ap = netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		ap = netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	return ap.Port() == claim.Port && (ap.Addr() == claim.IP || !claim.IP.IsValid() && ap.Addr().IsUnspecified())
}

// Sweep has the holder close the sockets of sandboxes that are not among the live ones.
func (c *Claims) Sweep(live map[core.ID]bool) {
	if c.Holder == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	names, err := c.Holder.Names(ctx)
	if err != nil {
		c.log().Warn("could not list the sockets of host ports that the keeper keeps", "error", err.Error())
		return
	}
	for _, name := range names {
		rest, ours := strings.CutPrefix(name, holdPrefix)
		id, _, _ := strings.Cut(rest, "/")
		if ours && !live[core.ID(id)] {
			c.forget(ctx, name)
		}
	}
}

// forget has the holder close the sockets of a name, now or before the next claim.
func (c *Claims) forget(ctx context.Context, name string) {
	if err := c.Holder.Drop(ctx, name); err != nil {
		c.log().WarnContext(ctx, "the keeper still keeps the sockets of host ports, which stay in use until it closes them", "error", err.Error())
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stale = append(c.stale, name)
	}
}

// dropStale tries again to have sockets closed that the holder should have closed.
func (c *Claims) dropStale() {
	c.mu.Lock()
	names := c.stale
	c.stale = nil
	c.mu.Unlock()
	if len(names) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	for _, name := range names {
		c.forget(ctx, name)
	}
}

// unhold closes the sockets of a sandbox in the holder.
func (c *Claims) unhold(id core.ID) {
	c.mu.Lock()
	n := c.held[id]
	delete(c.held, id)
	c.mu.Unlock()
	if n == 0 || c.Holder == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), holderTime)
	defer cancel()
	for i := range n {
		c.forget(ctx, heldName(id, i))
	}
}

// Close closes the agent's descriptors of all sockets. The holder's stay.
func (c *Claims) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, f := range c.sockets {
		errs = append(errs, f.Close())
	}
	c.sockets = nil
	return errors.Join(errs...)
}

// occupy binds a port for as long as the socket is open. It returns nil if the kernel does not have the protocol.
func occupy(c Claim) (*os.File, error) {
	fd, err := bound(c)
	switch {
	case unsupported(err):
		return nil, nil //nolint:nilnil // nobody can listen there
	case err != nil:
		return nil, err
	}
	f := os.NewFile(uintptr(fd), c.String())
	if f == nil {
		return nil, fs.ErrInvalid
	}
	return f, nil
}

// bound returns a socket that is bound to a port and does not listen. A socket of UDP for all addresses has those of IPv4
// only: a question to ::1 is then refused at once, and answered at 127.0.0.1.
func bound(c Claim) (int, error) {
	if c.Proto == "udp" && !c.IP.IsValid() {
		if err := bind(c); err != nil { // a socket of IPv6 may have it
			return -1, err
		}
		c.IP = netip.IPv4Unspecified()
	}
	fd, err := bindSocket(c)
	if err != nil || c.Proto == "udp" {
		return fd, err
	}
	// It stops listening and stays bound, and shares the port with no socket that is bound with SO_REUSEADDR.
	if c.Proto == "sctp" {
		err = unix.Listen(fd, 0)
	} else if err = unix.Shutdown(fd, unix.SHUT_RD); err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 0)
	}
	if err != nil {
		return -1, errors.Join(fmt.Errorf("stop listening: %w", err), unix.Close(fd))
	}
	return fd, nil
}
