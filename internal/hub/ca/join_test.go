package ca_test

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// TestWhatJoinsAndWhatDoesNot: the token decides, and a refused request leaves nothing.
func TestWhatJoinsAndWhatDoesNot(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	stranger := h.Dial(hubtest.Raw{}, nil)
	_, csr := hubtest.Request(t)
	token := h.CA.Authority.Token()
	other := hubtest.New(t).CA.Authority.Token()
	for name, c := range map[string]struct {
		csr   []byte
		token string
		text  string
	}{
		"no CSR":               {nil, token, "InvalidArgument"},
		"no token":             {csr, "", "A valid join token is necessary"},
		"another fleet's":      {csr, other, "A valid join token is necessary"},
		"a changed one":        {csr, token[:len(token)-1] + "_", "A valid join token is necessary"},
		"garbage":              {[]byte("garbage"), token, "CSR Decode failed"},
		"a CSR that is large":  {append(csr, make([]byte, 20<<10)...), token, "at most"},
		"two CSRs":             {append(csr, csr...), token, "CSR Decode failed"},
		"a certificate's form": {h.CA.Authority.Roots(), token, "CSR Decode failed"},
	} {
		_, err := stranger.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: c.csr, Token: c.token})
		hubtest.Wants(t, name, err, codes.InvalidArgument, c.text)
	}
	_, err := stranger.NodeCA.NodeCertificateStatus(hubtest.Within(t), &swarmv1.NodeCertificateStatusRequest{})
	hubtest.Wants(t, "the status of nobody", err, codes.InvalidArgument, "")
	_, err = stranger.NodeCA.NodeCertificateStatus(hubtest.Within(t), &swarmv1.NodeCertificateStatusRequest{NodeId: "unknown"})
	hubtest.Wants(t, "the status of an unknown node", err, codes.NotFound, "")
	if nodes := h.Inventory.Nodes(); len(nodes) > 0 {
		t.Errorf("nodes without a token: %v", nodes)
	}
	h.Join()
	// Another token ends the one before.
	next, err := h.CA.Authority.RotateToken(hubtest.Within(t))
	if err != nil || next == token {
		t.Fatalf("rotated to %q, %v", next, err)
	}
	_, err = stranger.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: token})
	hubtest.Wants(t, "the token of before", err, codes.InvalidArgument, "A valid join token is necessary")
	h.Join()
	h.Restart()
	if got := h.CA.Authority.Token(); got != next {
		t.Error("the token changed with the hub's restart")
	}
	if nodes := h.Inventory.Nodes(); len(nodes) != 2 {
		t.Errorf("%d nodes, want 2", len(nodes))
	}
}

// TestApproval: a node that joins waits until an operator accepts it.
func TestApproval(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Approve = true })
	type joined struct {
		n   *hubtest.Node
		err error
	}
	done := make(chan joined, 1)
	ctx := hubtest.Within(t)
	go func() {
		n, err := h.TryJoin(ctx)
		done <- joined{n, err}
	}()
	hubtest.Until(t, h, "a node waits", func() bool { return len(h.Inventory.Nodes()) == 1 })
	n := h.Inventory.Nodes()[0]
	if n.GetSpec().GetMembership() != swarmv1.NodeSpec_PENDING || n.GetCertificate().GetStatus().GetState() != swarmv1.IssuanceStatus_PENDING || len(n.GetCertificate().GetCertificate()) > 0 {
		t.Errorf("before it was accepted: %v", n)
	}
	if err := h.CA.Accept(hubtest.Within(t), n.GetId()); err != nil {
		t.Fatal(err)
	}
	j := <-done
	if j.err != nil || j.n.NodeID != n.GetId() {
		t.Fatalf("joined as %+v, %v", j.n, j.err)
	}
	hubtest.MustOpen(t, j.n, "")
	if err := h.CA.Accept(hubtest.Within(t), "unknown"); !errdefs.IsNotFound(err) {
		t.Errorf("an unknown node: %v", err)
	}
}

// TestARenewal: the node keeps its id, needs no token, and is let in with the new certificate,
// though it does not say any more that it speaks HTTP/2.
func TestARenewal(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	if err := h.CA.Rotate(hubtest.Within(t), n.NodeID); err != nil {
		t.Fatal(err)
	}
	key, csr := hubtest.Request(t)
	resp, err := n.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr})
	if err != nil || resp.GetNodeId() != n.NodeID || resp.GetNodeMembership() != swarmv1.NodeSpec_ACCEPTED {
		t.Fatalf("renewed: %v, %v", resp, err)
	}
	st, err := n.NodeCA.NodeCertificateStatus(hubtest.Within(t), &swarmv1.NodeCertificateStatusRequest{NodeId: n.NodeID})
	if err != nil || st.GetStatus().GetState() != swarmv1.IssuanceStatus_ISSUED || string(st.GetCertificate().GetCsr()) != string(csr) {
		t.Fatalf("status: %v, %v", st, err)
	}
	block, _ := pem.Decode(st.GetCertificate().GetCertificate())
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if s := leaf.Subject; s.CommonName != n.NodeID || s.OrganizationalUnit[0] != "swarm-worker" || s.Organization[0] != h.CA.Authority.Cluster || strings.Join(leaf.DNSNames, " ") != "swarm-worker "+n.NodeID || len(leaf.ExtKeyUsage) != 2 {
		t.Errorf("the certificate: %v %v", s, leaf.DNSNames)
	}
	renewed := h.Dial(hubtest.WithCertificate(t, key, st.GetCertificate().GetCertificate()), n.Identity)
	hubtest.MustOpen(t, renewed, "")
	// A call in another node's name is refused.
	_, err = renewed.Dispatcher.Heartbeat(metadata.AppendToOutgoingContext(hubtest.Within(t), "forwarded_cert", "true", "forwarded_cert_cn", "another"), &swarmv1.HeartbeatRequest{})
	hubtest.Wants(t, "a forwarded call", err, codes.PermissionDenied, "unauthorized forwarder role")
}

// TestAnExpiredCertificate renews itself within the time of grace, and does nothing else.
func TestAnExpiredCertificate(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.RenewGrace = 10 * time.Minute })
	n := h.Join()
	key, _ := hubtest.Request(t)
	expired := func(since time.Duration) *hubtest.Node {
		chain, err := ca.IssueAt(h.CA.Authority, n.NodeID, key.Public(), time.Now().Add(-since))
		if err != nil {
			t.Fatal(err)
		}
		return h.Dial(hubtest.WithCertificate(t, key, chain), n.Identity)
	}
	late := expired(time.Minute)
	_, err := hubtest.Open(t, late, "")
	hubtest.Wants(t, "a session", err, codes.PermissionDenied, "has expired")
	_, csr := hubtest.Request(t)
	if _, err := late.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr}); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	_, err = expired(30*time.Minute).NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr})
	if err == nil {
		t.Error("a certificate was renewed after the time of grace")
	}
	if err := h.CA.Remove(hubtest.Within(t), n.NodeID); err != nil {
		t.Fatal(err)
	}
	_, err = late.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr})
	hubtest.Wants(t, "a renewal of a removed node", err, codes.PermissionDenied, "was removed from swarm")
}

// TestForeignCertificates: one of another root is not let in at all; one that another fleet has
// of the same root, or that has another role, may call nothing.
func TestForeignCertificates(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	key, csr := hubtest.Request(t)
	chain, err := swarmtest.NewAuthority(t).Issue("node", "swarm-worker", key.Public())
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Dial(hubtest.WithCertificate(t, key, chain), nil).CA.GetRootCACertificate(hubtest.Within(t), &swarmv1.GetRootCACertificateRequest{})
	hubtest.Wants(t, "another root", err, codes.Unavailable, "")
	cluster := h.CA.Authority.Cluster
	for name, c := range map[string]struct{ cluster, role, text string }{
		"another fleet": {"another", "swarm-worker", "remote certificate not part of organization: " + cluster},
		"another role":  {cluster, "swarm-guest", "remote certificate not part of OUs: [swarm-worker swarm-manager]"},
	} {
		h.CA.Authority.Cluster = c.cluster
		chain, err := ca.IssueAs(h.CA.Authority, "node", c.role, key.Public())
		h.CA.Authority.Cluster = cluster
		if err != nil {
			t.Fatal(err)
		}
		n := h.Dial(hubtest.WithCertificate(t, key, chain), nil)
		stream, err := n.Dispatcher.Session(hubtest.Within(t), &swarmv1.SessionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		hubtest.Wants(t, name, err, codes.PermissionDenied, c.text)
		if _, err = n.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr}); err == nil {
			t.Errorf("%s: its certificate was renewed", name)
		}
	}
	// One of this fleet for an unknown node.
	chain, err = ca.IssueAs(h.CA.Authority, "ghost", "swarm-worker", key.Public())
	if err != nil {
		t.Fatal(err)
	}
	ghost := h.Dial(hubtest.WithCertificate(t, key, chain), nil)
	stream, err := ghost.Dispatcher.Session(hubtest.Within(t), &swarmv1.SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	hubtest.Wants(t, "a node that does not exist", err, codes.Unknown, "node not found")
	_, err = ghost.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr})
	hubtest.Wants(t, "its renewal", err, codes.NotFound, "not found")
	if errors.Is(err, nil) {
		t.Error("renewed")
	}
}

// FuzzParseCSR: a stranger's request is read, or refused as invalid.
func FuzzParseCSR(f *testing.F) {
	_, csr := hubtest.Request(f)
	f.Add(csr)
	f.Add([]byte("-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"))
	f.Fuzz(func(t *testing.T, csr []byte) {
		key, err := ca.ParseCSR(csr)
		if (err == nil) != (key != nil) || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v, %v", key, err)
		}
	})
}
