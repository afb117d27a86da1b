package ca_test

import (
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// renew renews a node's certificate at the hub's request.
func renew(t *testing.T, h *hubtest.Hub, n *hubtest.Node, o hubtest.Opened) (*hubtest.Node, hubtest.Opened) {
	t.Helper()
	msg := o.First
	for msg.GetNode().GetCertificate().GetStatus().GetState() != swarmv1.IssuanceStatus_ROTATE {
		msg = hubtest.Receive(t, o)
	}
	id, err := n.Renew(hubtest.Within(t), n.Conn)
	if err != nil {
		t.Fatal(err)
	}
	again := h.Dial(id.Credentials(), id)
	return again, hubtest.MustOpen(t, again, msg.GetSessionId())
}

// rooted waits until a node hears of the root that the hub trusts now, and takes it over.
func rooted(t *testing.T, h *hubtest.Hub, n *hubtest.Node, o hubtest.Opened) *hubtest.Node {
	t.Helper()
	msg := o.First
	for string(msg.GetRootCA()) != string(h.CA.Authority.Roots()) {
		msg = hubtest.Receive(t, o)
	}
	id, err := n.WithRoots(msg.GetRootCA())
	if err != nil {
		t.Fatal(err)
	}
	return h.Dial(id.Credentials(), id)
}

// exchanged waits until the root is exchanged.
func exchanged(t *testing.T, h *hubtest.Hub) {
	t.Helper()
	ctx := hubtest.Within(t)
	for {
		changed := h.CA.Authority.Changed()
		if !h.CA.Authority.Rotating() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatal("the root is never exchanged")
		}
	}
}

// refused asserts that a node is not let in at all.
func refused(t *testing.T, h *hubtest.Hub, n *hubtest.Node) {
	t.Helper()
	_, err := h.Dial(n.Credentials(), n.Identity).CA.GetRootCACertificate(hubtest.Within(t), &swarmv1.GetRootCACertificateRequest{})
	hubtest.Wants(t, "a certificate of the old root", err, codes.Unavailable, "")
}

// TestTheRootIsExchanged: nodes renew their certificates, and the old root goes with the last of
// them, not before; a node that was away at that moment still finds its way in.
func TestTheRootIsExchanged(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	first, second := h.Join(), h.Join()
	one := hubtest.MustOpen(t, first, "")
	hubtest.MustOpen(t, second, "")
	old, token := string(h.CA.Authority.Roots()), h.CA.Authority.Token()
	ctx := hubtest.Within(t)
	if err := h.CA.Authority.FinishRotation(ctx); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("finished what was not begun: %v", err)
	}
	if err := h.CA.Authority.RotateRoot(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.CA.Authority.RotateRoot(ctx); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("begun twice: %v", err)
	}
	renewed, one := renew(t, h, first, one)
	// A new node gets the old root, which the token names, and a certificate of the new one.
	third := h.Join()
	three := hubtest.MustOpen(t, third, "")
	if string(h.CA.Authority.Roots()) != old || h.CA.Authority.Token() != token || !h.CA.Authority.Rotating() {
		t.Error("the old root is gone, while a node has a certificate of it alone")
	}
	if missing := h.CA.Missing(); len(missing) != 1 || missing[0].GetId() != second.NodeID {
		t.Errorf("missing: %v, want %s", missing, second.NodeID)
	}
	h.Restart() // a hub's end does not end it
	two := hubtest.MustOpen(t, second, "")
	away, two := renew(t, h, second, two)
	exchanged(t, h)
	if string(h.CA.Authority.Roots()) == old || h.CA.Authority.Token() == token {
		t.Error("the root or the token is the old one")
	}
	renewed = rooted(t, h, renewed, hubtest.MustOpen(t, renewed, ""))
	hubtest.MustOpen(t, renewed, "")
	rooted(t, h, away, two)
	hubtest.MustOpen(t, h.Dial(away.Credentials(), away.Identity), "") // it knows the old root alone
	hubtest.MustOpen(t, rooted(t, h, third, hubtest.MustOpen(t, third, "")), "")
	_, _ = one, three

	// A certificate of the old root is worth nothing, on a connection of before neither.
	_, err := second.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: two.First.GetSessionId()})
	hubtest.Wants(t, "a connection of before", err, codes.PermissionDenied, "of a root that was exchanged")
	_, err = h.Dial(hubtest.Raw{}, nil).CA.GetRootCACertificate(hubtest.Within(t), &swarmv1.GetRootCACertificateRequest{})
	if err != nil {
		t.Error(err)
	}
	refused(t, h, second)
	_, csr := hubtest.Request(t)
	_, err = h.Dial(hubtest.Raw{}, nil).NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr, Token: token})
	hubtest.Wants(t, "the token of before", err, codes.InvalidArgument, "A valid join token is necessary")
	h.Join()
}

// TestTheRootIsExchangedWithoutANode: an operator need not wait for one that is away for good; it
// has to join again.
func TestTheRootIsExchangedWithoutANode(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	gone := h.Join()
	hubtest.MustOpen(t, gone, "")
	for range 6 { // more often than roots of before are vouched for
		if err := h.CA.Authority.RotateRoot(hubtest.Within(t)); err != nil {
			t.Fatal(err)
		}
		if missing := h.CA.Missing(); len(missing) != 1 {
			t.Errorf("missing: %v", missing)
		}
		if err := h.CA.Authority.FinishRotation(hubtest.Within(t)); err != nil {
			t.Fatal(err)
		}
		hubtest.MustOpen(t, h.Join(), "")
		for _, n := range h.Inventory.Nodes() {
			if n.GetId() != gone.NodeID {
				if err := h.CA.Remove(hubtest.Within(t), n.GetId()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	refused(t, h, gone)
}
