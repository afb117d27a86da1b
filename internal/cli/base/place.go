package base

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/longshore/longshore/internal/guest/vsock"
)

// The kinds of addresses of an agent.
const (
	byUnix   = "unix"
	byVsock  = "vsock"
	byHybrid = "hvsock"
)

// guestTimeout bounds the wait for a connection to the agent of a virtual machine: a machine that is off does not
// refuse it.
const guestTimeout = 10 * time.Second

// place is the address of the agent.
type place struct {
	kind      string
	path      string // of the socket, except with byVsock
	cid, port uint32 // of the guest, except with byUnix
}

// parseGuest reads the address of an agent inside of a virtual machine.
func parseGuest(s string) (place, error) {
	kind, rest, _ := strings.Cut(s, "://")
	if kind == byUnix && strings.HasPrefix(rest, "/") {
		return place{kind: byUnix, path: rest}, nil
	}
	at := strings.LastIndexByte(rest, ':')
	bad := &UsageError{Err: fmt.Errorf("--guest: %q is none of vsock://CID:PORT, hvsock:///PATH:PORT and unix:///PATH", s)}
	if at < 0 {
		return place{}, bad
	}
	port, err := strconv.ParseUint(rest[at+1:], 10, 32)
	if err != nil || port == 0 {
		return place{}, bad
	}
	p := place{kind: kind, path: rest[:at], port: uint32(port)}
	switch {
	case kind == byHybrid && strings.HasPrefix(p.path, "/"):
		return p, nil
	case kind == byVsock:
		cid, err := strconv.ParseUint(p.path, 10, 32)
		if err != nil {
			return place{}, bad
		}
		p.cid, p.path = uint32(cid), ""
		return p, nil
	}
	return place{}, bad
}

// String returns the place in the form of parseGuest. That of a unix socket is its path.
func (p place) String() string {
	switch p.kind {
	case byVsock:
		return fmt.Sprintf("%s://%d:%d", p.kind, p.cid, p.port)
	case byHybrid:
		return fmt.Sprintf("%s://%s:%d", p.kind, p.path, p.port)
	}
	return p.path
}

func (p place) dial(ctx context.Context) (net.Conn, error) {
	if p.kind == byUnix {
		return new(net.Dialer).DialContext(ctx, "unix", p.path)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, guestTimeout, fmt.Errorf("%w after %v", os.ErrDeadlineExceeded, guestTimeout))
	defer cancel()
	if p.kind == byHybrid {
		return vsock.DialHybrid(ctx, p.path, p.port)
	}
	return vsock.Dial(ctx, p.cid, p.port)
}

// place returns the address of the agent, from flags and environment.
func (a *App) place() (place, error) {
	guest := a.guest
	if guest == "" && a.socket == "" {
		guest = a.Getenv("LONGSHORE_GUEST")
	}
	switch {
	case guest == "":
		return place{kind: byUnix, path: a.socketPath()}, nil
	case a.socket != "":
		return place{}, &UsageError{Err: errors.New("--guest and --socket cannot be combined: they name two agents")}
	}
	return parseGuest(guest)
}

// unreachable returns the reason why the agent does not answer, or "" if it does.
func (a *App) unreachable() string {
	at, err := a.place()
	if err != nil {
		return OneLine(err.Error())
	}
	conn, err := at.dial(context.Background())
	switch {
	case err == nil:
		_ = conn.Close()
		return ""
	case at.kind != byUnix:
		return fmt.Sprintf("no agent answers at %s: %v; its machine needs the full build and the option agent.control_vport=%d", at, OneLine(err.Error()), at.port)
	case errors.Is(err, os.ErrPermission):
		return fmt.Sprintf("no permission for the agent's socket %s: run this as root, or set control.read_socket to read without being root", at)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Sprintf("the agent is not running (no answer at %s): start it with `longshore agent` or `systemctl start longshore`", at)
	}
	return fmt.Sprintf("reach the agent: %v", err)
}
