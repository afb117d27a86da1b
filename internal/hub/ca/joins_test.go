package ca_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// TestJoinsOfOneSourceAreBounded: one address may not join without end, and another address still
// may.
func TestJoinsOfOneSourceAreBounded(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	_, csr := hubtest.Request(t)
	req := &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: h.CA.Authority.Token()}
	flood := h.Dial(hubtest.Raw{}, nil)
	joined := 0
	var err error
	for range 300 {
		if _, err = flood.NodeCA.IssueNodeCertificate(hubtest.Within(t), req); err != nil {
			break
		}
		joined++
	}
	hubtest.Wants(t, "the join after the last", err, codes.ResourceExhausted, "too many nodes join")
	if joined < 100 {
		t.Errorf("only %d nodes could join", joined)
	}
	if _, err := h.DialFrom("127.0.0.2", hubtest.Raw{}, nil).NodeCA.IssueNodeCertificate(hubtest.Within(t), req); err != nil {
		t.Errorf("a node of another source: %v", err)
	}
	if n := h.CA.JoinsRefused(); n != 1 {
		t.Errorf("%d joins were counted as refused", n)
	}
}

// TestNodesThatWereNeverReadyAreBounded: the oldest of them goes when another one joins. One that
// has had a session stays, however old it is.
func TestNodesThatWereNeverReadyAreBounded(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	ready := h.Join()
	hubtest.MustOpen(t, ready, "")
	_, csr := hubtest.Request(t)
	req := &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: h.CA.Authority.Token()}
	var first string
	for range 1000 { // in this process, where nothing is bounded
		resp, err := h.CA.IssueNodeCertificate(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = resp.GetNodeId()
		}
	}
	has := func(id string) bool { n, _, _ := h.Inventory.Node(id); return n != nil }
	if !has(first) || !has(ready.NodeID) || h.CA.NodesDropped() != 0 {
		t.Fatal("nodes are missing before there are too many")
	}
	newest := h.Join()
	if has(first) || !has(ready.NodeID) || !has(newest.NodeID) || len(h.Inventory.Nodes()) != 1001 || h.CA.NodesDropped() != 1 {
		t.Errorf("first %t, ready %t, newest %t, %d nodes, %d dropped", has(first), has(ready.NodeID), has(newest.NodeID), len(h.Inventory.Nodes()), h.CA.NodesDropped())
	}
	hubtest.MustOpen(t, newest, "")
}

// TestStrangersThatWait: a connection without a certificate has a few calls that wait for one, and
// not one more.
func TestStrangersThatWait(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Approve = true })
	_, csr := hubtest.Request(t)
	stranger := h.Dial(hubtest.Raw{}, nil)
	joined, err := stranger.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: h.CA.Authority.Token()})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 8)
	ctx, cancel := context.WithCancel(hubtest.Within(t))
	for range cap(ended) {
		go func() {
			_, err := stranger.NodeCA.NodeCertificateStatus(ctx, &swarmv1.NodeCertificateStatusRequest{NodeId: joined.GetNodeId()})
			ended <- err
		}()
	}
	for range 4 {
		if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "already wait for certificates") {
			t.Errorf("a call too many: %v", err)
		}
	}
	cancel()
	for range 4 {
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("a call that waits: %v", err)
		}
	}
}

// TestRenewalsOfOneNodeAreBounded: a node that renews its certificate in a loop is refused, told so once
// in the events, and keeps its session; another node renews.
func TestRenewalsOfOneNodeAreBounded(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	loops, other := h.Join(), h.Join()
	session := hubtest.MustOpen(t, loops, "").First.GetSessionId()
	_, csr := hubtest.Request(t)
	renew := func(n *hubtest.Node) error {
		_, err := n.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr})
		return err
	}
	issued, renewed := h.CA.Authority.Issued(), 0
	var err error
	for range 100 {
		if err = renew(loops); err != nil {
			break
		}
		renewed++
	}
	hubtest.Wants(t, "the renewal after the last", err, codes.ResourceExhausted, "too often")
	if renewed < 30 || h.CA.Authority.Issued()-issued != uint64(renewed) {
		t.Errorf("%d renewals, %d certificates", renewed, h.CA.Authority.Issued()-issued)
	}
	for range 10 {
		hubtest.Wants(t, "another renewal", renew(loops), codes.ResourceExhausted, "too often")
	}
	if n := h.CA.RenewalsRefused(); n != 11 {
		t.Errorf("%d renewals were counted as refused", n)
	}
	if err := renew(other); err != nil {
		t.Errorf("another node: %v", err)
	}
	if _, err := loops.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: session}); err != nil {
		t.Errorf("the node's session: %v", err)
	}
}
