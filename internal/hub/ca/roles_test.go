package ca_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// TestNoOperatorPassesForAHub: certificates as earlier versions gave them to operators with the
// names of roles are a hub's to no client: not to a node, not to a node that joins, not to another
// hub and not to an operator. That of a hub is, by the same server.
func TestNoOperatorPassesForAHub(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	key, _ := hubtest.Request(t)
	authority := h.CA.Authority
	hubs, err := ca.IssueAs(authority, authority.Hub, ca.RoleManager, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	shake := func(creds credentials.TransportCredentials) func(addr string) error {
		return func(addr string) error {
			conn, err := new(net.Dialer).DialContext(hubtest.Within(t), "tcp", addr)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			_, _, err = creds.ClientHandshake(hubtest.Within(t), "swarm-manager", conn)
			return err
		}
	}
	operators := func(addr string) error {
		c, err := api.NewRemote(api.Remote{URL: "https://" + addr, Roots: authority.Roots(), Token: "none"})
		if err != nil {
			return err
		}
		return c.Call(hubtest.Within(t), http.MethodGet, "/v1/nodes", nil, &struct{}{})
	}
	for _, c := range []struct {
		client string
		name   string // the dialed name
		call   func(addr string) error
	}{
		{"a node", "swarm-manager", shake(n.Credentials())},
		{"another hub", "swarm-manager", shake(authority.ClientCredentials())},
		{"an operator", "longshore-hub", operators},
	} {
		operator, err := ca.IssueOldOperator(authority, c.name, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.call(serve(t, key, operator)); err == nil || !strings.Contains(err.Error(), "certificate has the role") {
			t.Errorf("%s dials an operator of the name %s: %v", c.client, c.name, err)
		}
		if c.client == "an operator" { // its control is that it reaches this hub
			if err := c.call(strings.TrimPrefix(h.Remote, "https://")); err == nil || !strings.Contains(err.Error(), "belongs to no operator") {
				t.Errorf("an operator dials a hub: %v", err)
			}
			continue
		}
		others, err := ca.IssueOf(authority, "another", authority.Hub, ca.RoleManager, key.Public())
		if err != nil {
			t.Fatal(err)
		}
		if err := c.call(serve(t, key, others)); err == nil || !strings.Contains(err.Error(), "another fleet") && !strings.Contains(err.Error(), "another swarm") {
			t.Errorf("%s dials a hub of another fleet with the same root: %v", c.client, err)
		}
		if err := c.call(serve(t, key, hubs)); err != nil {
			t.Errorf("%s dials a hub: %v", c.client, err)
		}
	}
}

// serve answers TLS handshakes with a certificate.
func serve(t *testing.T, key any, chain []byte) (addr string) {
	t.Helper()
	pair := hubtest.Pair(t, key, chain)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return l.Addr().String()
}

// TestAnOperatorWithTheIdOfANode cannot close the node's connections: they are counted by name, and
// those of an operator do not count. Those of the node itself do.
func TestAnOperatorWithTheIdOfANode(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	key, _ := hubtest.Request(t)
	operator, err := ca.IssueOldOperator(h.CA.Authority, n.NodeID, key.Public())
	if err != nil {
		t.Fatal(err)
	}
	beat := func(n *hubtest.Node) error {
		_, err := n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id})
		return err
	}
	for range 12 {
		if err := beat(h.Dial(hubtest.WithCertificate(t, key, operator), nil)); err == nil || !strings.Contains(err.Error(), "not part of OUs") {
			t.Fatalf("a call of the operator: %v", err)
		}
	}
	if state := n.Conn.GetState(); state != connectivity.Ready {
		t.Fatalf("the node's connection is %s after those of an operator", state)
	}
	for range 12 {
		if err := beat(h.Dial(n.Credentials(), n.Identity)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(hubtest.Within(t))
	defer cancel()
	if n.Conn.GetState() == connectivity.Ready && !n.Conn.WaitForStateChange(ctx, connectivity.Ready) {
		t.Error("the node's own connections closed none")
	}
}

// TestRemovalReachesTheHandshake: a node that was removed, and an operator, have a connection of a
// stranger: it ends after the bytes that a stranger may send.
func TestRemovalReachesTheHandshake(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	stays, leaves := h.Join(), h.Join()
	if err := h.CA.Remove(hubtest.Within(t), leaves.NodeID); err != nil {
		t.Fatal(err)
	}
	sends := func(n *hubtest.Node) (refused error) {
		large := &swarmv1.HeartbeatRequest{SessionId: strings.Repeat("x", 60<<10)}
		for range 10 {
			if _, refused = n.Dispatcher.Heartbeat(hubtest.Within(t), large); status.Code(refused) == codes.Unavailable {
				return refused
			}
		}
		return refused
	}
	if err := sends(leaves); status.Code(err) != codes.Unavailable {
		t.Errorf("a node that was removed sends as much as it likes: %v", err)
	}
	if err := sends(stays); status.Code(err) != codes.NotFound {
		t.Errorf("a node: %v", err)
	}
}

// TestReservedNames: roles, names of the hub and ids are reserved, in capital letters too.
func TestReservedNames(t *testing.T) {
	for name, want := range map[string]bool{
		"swarm-manager": true, "SWARM-CA": true, "Longshore-Hub": true, "longshore-operator": true, ca.NewID(): true,
		"anna": false, "swarm": false, "swarms-manager": false, "ci.longshore-hub": false,
	} {
		if ca.Reserved(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
}
