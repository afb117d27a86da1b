package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"

	"google.golang.org/grpc/credentials"

	"github.com/longshore/longshore/internal/weaken"
)

// transport is TLS to a manager. gRPC's own would refuse managers that have renewed their
// certificate since their start: they no longer negotiate HTTP/2 by ALPN, but speak it.
type transport struct{ config *tls.Config }

func newTransport(config *tls.Config) credentials.TransportCredentials {
	config.NextProtos = []string{"h2"}
	return transport{config}
}

// Credentials are the node's, for a connection to a manager of its Swarm.
func (id *Identity) Credentials() credentials.TransportCredentials {
	return newTransport(&tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: RoleManager, RootCAs: id.roots, Certificates: []tls.Certificate{id.cert},
		VerifyConnection: func(s tls.ConnectionState) error {
			if !slices.Equal(s.PeerCertificates[0].Subject.Organization, []string{id.ClusterID}) {
				return errors.New("the manager is of another swarm")
			}
			return isManager(s)
		},
	})
}

// isManager returns an error unless the peer's certificate has the role of a manager. The names in a
// certificate do not say that: an authority may put a node's or a person's own name among them.
func isManager(s tls.ConnectionState) error {
	if role := s.PeerCertificates[0].Subject.OrganizationalUnit; !slices.Equal(role, []string{RoleManager}) && !weaken.Off(weaken.HubRoles) {
		return fmt.Errorf("the peer is not a manager: its certificate has the role %q", role)
	}
	return nil
}

// strange are the credentials for an unauthenticated manager: its answers are checked against a
// token.
func strange() credentials.TransportCredentials {
	return newTransport(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}) //nolint:gosec // the token's digest is the proof
}

// asStranger are credentials without a certificate, for a manager of known roots.
func asStranger(roots *x509.CertPool) credentials.TransportCredentials {
	return newTransport(&tls.Config{MinVersion: tls.VersionTLS12, ServerName: nameCA, RootCAs: roots, VerifyConnection: isManager})
}

// ClientHandshake implements credentials.TransportCredentials.
func (t transport) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn := tls.Client(raw, t.config)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, nil, fmt.Errorf("TLS with the manager: %w", err)
	}
	return conn, credentials.TLSInfo{
		State: conn.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}, nil
}

// ServerHandshake implements credentials.TransportCredentials; a node does not listen.
func (transport) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("a worker of a swarm does not listen")
}

// Info implements credentials.TransportCredentials.
func (transport) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (t transport) Clone() credentials.TransportCredentials { return transport{t.config.Clone()} }

// OverrideServerName implements credentials.TransportCredentials; the name is the role's, for any
// address.
func (transport) OverrideServerName(string) error { return nil }
