package identity_test

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
)

// TestManagersThatAreNone: a server without a manager's certificate of this Swarm learns nothing.
func TestManagersThatAreNone(t *testing.T) {
	a, other := swarmtest.NewAuthority(t), swarmtest.NewAuthority(t)
	sibling := a.As("another", a.Life) // the same root, another Swarm
	late := a.As(a.Cluster, -time.Minute)
	key, cert := keyPair(t, a, "n1", identity.RoleWorker)
	id, err := identity.New(key, cert, a.Roots())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		by   *swarmtest.Authority
		name string
		role string
		want string // "" is accepted
	}{
		"a manager":                      {a, "m1", identity.RoleManager, ""},
		"of another root":                {other, "m1", identity.RoleManager, "signed by unknown authority"},
		"of another swarm":               {sibling, "m1", identity.RoleManager, "of another swarm"},
		"a worker":                       {a, "m1", identity.RoleWorker, "swarm-manager"},
		"one that has expired":           {late, "m1", identity.RoleManager, "expired"},
		"an operator with that name":     {a, "swarm-manager", "longshore-operator", "is not a manager"},
		"a worker with a manager's name": {a, "Swarm-Manager", identity.RoleWorker, "is not a manager"},
		"without a certificate":          {nil, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, net.ErrClosed }}
			if c.by != nil {
				key, cert := keyPair(t, c.by, c.name, c.role)
				pair, err := tls.X509KeyPair(cert, key)
				if err != nil {
					t.Fatal(err)
				}
				config = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
			}
			l, err := tls.Listen("tcp", "127.0.0.1:0", config)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = l.Close() }()
			done := make(chan struct{})
			go func() {
				defer close(done)
				theirs, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = theirs.Read(make([]byte, 1)) // shakes hands first
				_ = theirs.Close()
			}()
			ours, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			conn, _, err := id.Credentials().ClientHandshake(ctx, "", ours)
			if conn != nil {
				_ = conn.Close()
			}
			_ = ours.Close()
			<-done
			switch {
			case c.by == nil && err == nil, c.want == "" && c.by != nil && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
