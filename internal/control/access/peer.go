package access

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/guest/vsock"
)

// Credentials are gRPC transport credentials without a handshake: the kernel reports the client's
// process of a unix socket, and the client's machine of a vsock.
type Credentials struct{}

// peerInfo identifies the process that calls.
type peerInfo struct {
	credentials.CommonAuthInfo
	uid  uint32
	pid  int32
	host bool // the process runs on this machine's host, and has neither uid nor pid here
}

// Peer describes the process to people.
func (i peerInfo) Peer() string {
	if i.host {
		return "the host"
	}
	return fmt.Sprintf("uid %d, pid %d", i.uid, i.pid)
}

// AuthType names the kind of authentication.
func (peerInfo) AuthType() string { return "unix-peer" }

// ClientHandshake does nothing: clients do not check the server.
func (Credentials) ClientHandshake(_ context.Context, _ string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, peerInfo{}, nil
}

// ServerHandshake asks the kernel for the peer of c. It refuses connections that are neither
// unix sockets nor the host's: a container can open a vsock to its own machine.
func (Credentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if from, ok := c.RemoteAddr().(vsock.Addr); ok {
		if from.CID != vsock.Host {
			return nil, nil, fmt.Errorf("identify the peer: %s is not the host", from)
		}
		info := peerInfo{host: true}
		info.SecurityLevel = credentials.PrivacyAndIntegrity // it never leaves the host
		return c, info, nil
	}
	u, ok := c.(syscall.Conn)
	if !ok || c.RemoteAddr().Network() != "unix" {
		return nil, nil, errors.New("identify the peer: not a unix socket")
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil, nil, fmt.Errorf("identify the peer: %w", err)
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return nil, nil, fmt.Errorf("identify the peer: %w", err)
	}
	info := peerInfo{uid: cred.Uid, pid: cred.Pid}
	info.SecurityLevel = credentials.PrivacyAndIntegrity // it never leaves the kernel
	return c, info, nil
}

// Info describes the credentials to gRPC.
func (Credentials) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

// Clone returns a copy; there is nothing to copy.
func (c Credentials) Clone() credentials.TransportCredentials { return c }

// OverrideServerName is for TLS only.
func (Credentials) OverrideServerName(string) error { return nil }

// StopRequest returns a record of the caller for the autopsy and the event log. call names the command.
func StopRequest(ctx context.Context, call string) core.StopRequest {
	return core.StopRequest{Owner: core.OwnerCLI, Call: call, At: time.Now(), User: Client(ctx)}
}

// Client describes the client of a call to people: its process, and the user that it has named by Via.
func Client(ctx context.Context) (name string) {
	if p, ok := peer.FromContext(ctx); ok {
		if info, ok := p.AuthInfo.(peerInfo); ok {
			name = info.Peer()
		}
	}
	if via := via(ctx); via != "" {
		name += ", for " + via
	}
	return name
}

// Via is the metadata key of a user's name. The web page sends it with its calls. The name is a claim of the calling program; the
// kernel reports the identity of that program.
const Via = "longshore-via"

// maxVia bounds a client's name, in bytes.
const maxVia = 128

// via returns the name of the client that a call is made for, "" for a call without one.
func via(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	values := md.Get(Via)
	if len(values) == 0 {
		return ""
	}
	name := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, values[0])
	return name[:min(len(name), maxVia)]
}
