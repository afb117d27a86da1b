package ca

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Caller is the caller by its certificate.
type Caller struct {
	Node, Role, Cluster string
	// Addr is the address that it calls from, without the port.
	Addr string
	// Expired says that its certificate's time is over: it may renew it and do nothing else.
	Expired bool
	// Issued is when its certificate was issued, NotAfter when its time is over.
	Issued, NotAfter time.Time

	roots []string // the public keys of its certificate's roots
	conn  net.Conn
}

// Cut closes the connection that it calls by.
func (c Caller) Cut() { _ = c.conn.Close() }

// Same reports whether both call by one connection.
func (c Caller) Same(other Caller) bool { return c.conn == other.conn }

// authInfo is the handshake's result for a connection.
type authInfo struct {
	credentials.CommonAuthInfo
	caller *Caller // nil without a certificate
}

// AuthType implements credentials.AuthInfo.
func (authInfo) AuthType() string { return "tls" }

// transport is TLS of a hub. gRPC's own would refuse nodes that have renewed their certificate
// since their start: they no longer negotiate HTTP/2 by ALPN, but speak it. A certificate is
// verified here and not by the handshake, which would refuse an expired one.
type transport struct {
	a     *Authority
	grace time.Duration
	open  *connections
	// member returns an error for a caller that is no node and no hub of the fleet.
	member func(Caller) error
}

var _ credentials.TransportCredentials = transport{}

// handshakeTimeout bounds a peer's handshake.
const handshakeTimeout = 20 * time.Second

// Credentials are the hub's. A client's certificate is accepted for renewal, and for nothing
// else, for a time after its own time is over.
func (s *Service) Credentials() credentials.TransportCredentials {
	return transport{s.Authority, s.RenewGrace, &connections{of: map[string]*ofNode{}}, s.member}
}

// ClientCredentials are a hub's credentials for calls of another hub.
func (a *Authority) ClientCredentials() credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: a.trust.Load().pool, ServerName: RoleManager,
		VerifyConnection: func(s tls.ConnectionState) error {
			if !slices.Equal(s.PeerCertificates[0].Subject.Organization, []string{a.Cluster}) {
				return errors.New("the hub belongs to another fleet")
			}
			return IsHub(s)
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.certificate() },
	})
}

// ServerHandshake implements credentials.TransportCredentials.
func (t transport) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	var caller *Caller
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequestClientCert, ClientCAs: t.a.trust.Load().pool, SessionTicketsDisabled: true, NextProtos: []string{"h2"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return t.a.certificate() },
		VerifyConnection: func(s tls.ConnectionState) (err error) {
			caller, err = t.verify(s.PeerCertificates, time.Now())
			return err
		},
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), handshakeTimeout, errors.New("the TLS handshake took too long"))
	defer cancel()
	conn := tls.Server(raw, config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, nil, err
	}
	info := authInfo{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, caller}
	if caller == nil {
		return &stranger{conn, maxStranger}, info, nil
	}
	caller.Addr, caller.conn = host(raw.RemoteAddr()), raw
	if t.member(*caller) != nil { // its calls are refused, and it has no more than a stranger has
		return &stranger{conn, maxStranger}, info, nil
	}
	if slot, ok := raw.RemoteAddr().(interface{ Authenticate() }); ok {
		slot.Authenticate()
	}
	let := &lapsing{conn, func() bool { return t.member(*caller) == nil }, maxStranger}
	return t.open.begin(caller.Node, let, raw), info, nil
}

func host(addr net.Addr) string {
	h, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return h
}

// verify returns the owner of a certificate. nil, nil without one.
func (t transport) verify(certs []*x509.Certificate, now time.Time) (*Caller, error) {
	if len(certs) == 0 {
		return nil, nil
	}
	leaf, between := certs[0], x509.NewCertPool()
	for _, c := range certs[1:] {
		between.AddCert(c)
	}
	at := now
	expired := now.After(leaf.NotAfter)
	if expired {
		if now.Sub(leaf.NotAfter) > t.grace {
			return nil, fmt.Errorf("the certificate has expired at %s", leaf.NotAfter.Format(time.RFC3339))
		}
		at = leaf.NotAfter
	}
	chains, err := leaf.Verify(x509.VerifyOptions{Roots: t.a.trust.Load().pool, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return nil, err
	}
	s := leaf.Subject
	if s.CommonName == "" || len(s.OrganizationalUnit) != 1 || len(s.Organization) != 1 {
		return nil, errors.New("the certificate does not name its owner")
	}
	return &Caller{Node: s.CommonName, Role: s.OrganizationalUnit[0], Cluster: s.Organization[0], Expired: expired, Issued: leaf.NotBefore.Add(backdate), NotAfter: leaf.NotAfter, roots: rootsOf(chains)}, nil
}

// rootsOf returns the public keys of a certificate's roots.
func rootsOf(chains [][]*x509.Certificate) (keys []string) {
	for _, chain := range chains {
		keys = append(keys, string(chain[len(chain)-1].RawSubjectPublicKeyInfo))
	}
	return keys
}

// ClientHandshake implements credentials.TransportCredentials; a hub dials with ClientCredentials.
func (transport) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("a hub does not dial")
}

// Info implements credentials.TransportCredentials.
func (transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (t transport) Clone() credentials.TransportCredentials { return t }

// OverrideServerName implements credentials.TransportCredentials.
func (transport) OverrideServerName(string) error { return nil }

// callerOf returns the caller; nil without a certificate.
func callerOf(ctx context.Context) *Caller {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, _ := p.AuthInfo.(authInfo)
	return info.caller
}

func denied(format string, args ...any) error {
	return status.Errorf(codes.PermissionDenied, "Permission denied: "+format, args...)
}

// Authorize returns the caller if it has one of the roles. PermissionDenied otherwise.
func (s *Service) Authorize(ctx context.Context, roles ...string) (Caller, error) {
	caller, err := s.known(ctx, roles...)
	if err == nil && caller.Expired {
		return Caller{}, denied("the certificate of node %s has expired at %s: the node must renew it", caller.Node, caller.NotAfter.Format(time.RFC3339))
	}
	return caller, err
}

// known is Authorize, and accepts expired certificates too.
func (s *Service) known(ctx context.Context, roles ...string) (Caller, error) {
	c := callerOf(ctx)
	switch {
	case c == nil:
		return Caller{}, denied("unauthorized peer role: rpc error: code = PermissionDenied desc = no client certificates in request")
	case forwarded(ctx):
		// A manager of a Swarm may call for a node. A hub has no such managers.
		return Caller{}, denied("unauthorized forwarder role: rpc error: code = PermissionDenied desc = this hub takes no forwarded requests")
	case !slices.Contains(roles, c.Role):
		return Caller{}, denied("unauthorized peer role: rpc error: code = PermissionDenied desc = remote certificate not part of OUs: %s", roles)
	}
	return *c, s.Allowed(*c)
}

// member returns an error unless a caller is a node or a hub that is let in.
func (s *Service) member(c Caller) error {
	if c.Role != RoleWorker && c.Role != RoleManager {
		return denied("unauthorized peer role: rpc error: code = PermissionDenied desc = %q is no role of a node", c.Role)
	}
	return s.Allowed(c)
}

// Allowed checks an earlier authorization again: the node may have been removed.
func (s *Service) Allowed(c Caller) error {
	switch {
	case c.Cluster != s.Authority.Cluster:
		return denied("unauthorized peer role: rpc error: code = PermissionDenied desc = remote certificate not part of organization: %s", s.Authority.Cluster)
	case !slices.ContainsFunc(c.roots, func(key string) bool { return s.Authority.trust.Load().keys[key] }):
		return denied("unauthorized peer role: rpc error: code = PermissionDenied desc = the certificate of node %s is of a root that was exchanged", c.Node)
	case s.Inventory.Revoked(c.Node, time.Now()):
		return denied("unauthorized peer role: rpc error: code = PermissionDenied desc = node %s was removed from swarm", c.Node)
	}
	return s.admits(c)
}

// forwarded reports whether a request says that it comes from someone else.
func forwarded(ctx context.Context) bool {
	for _, key := range []string{"forwarded_cert", "forwarded_cert_cn", "forwarded_cert_ou", "forwarded_cert_org", "remote_addr"} {
		if len(metadata.ValueFromIncomingContext(ctx, key)) > 0 {
			return true
		}
	}
	return false
}
