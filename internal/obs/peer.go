package obs

import (
	"context"
	"net/http"
	"strings"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/longshore/longshore/internal/connlimit"
)

// PeerOfHTTP returns the name in the client's certificate, its process, or its address.
func PeerOfHTTP(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return "certificate " + r.TLS.PeerCertificates[0].Subject.String()
	}
	if p := connlimit.PeerOf(r.Context()); p != "" {
		return p
	}
	return r.RemoteAddr
}

// RequestHeader is the header, and in small letters the key of gRPC's metadata, with a client's own ID of its call.
const RequestHeader = "X-Request-Id"

// requestOf returns the client's ID of a call; "" if it sent none.
func requestOf(ctx context.Context) string {
	if id := metadata.ValueFromIncomingContext(ctx, strings.ToLower(RequestHeader)); len(id) > 0 {
		return id[0]
	}
	return ""
}

// peerOf returns the process or the address of the client of a call.
func peerOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	type named interface{ Peer() string }
	for _, of := range []any{p.AuthInfo, p.Addr} {
		if n, ok := of.(named); ok && n.Peer() != "" {
			return n.Peer()
		}
	}
	return p.Addr.String()
}
