package hub_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// clones are two uses of a node's certificate, at two addresses, which take its session from each
// other; the last of them may be refused.
func clones(t *testing.T, h *hubtest.Hub) (one, two *hubtest.Node, last hubtest.Opened, err error) {
	t.Helper()
	one = h.Join()
	two = h.DialFrom("127.0.0.2", one.Credentials(), one.Identity)
	hubtest.MustOpen(t, one, "")
	hubtest.MustOpen(t, two, "")
	hubtest.MustOpen(t, one, "")
	if c, _ := h.Inventory.Clone(one.NodeID); len(c.Addresses) > 0 {
		t.Errorf("a node that has moved and come back: %+v", c)
	}
	last, err = hubtest.Open(t, two, "")
	return one, two, last, err
}

// told are the events of a kind.
func told(t *testing.T, h *hubtest.Hub, kind string) (list []string) {
	t.Helper()
	err := api.NewClient(h.Socket).Events(hubtest.Within(t), 0, false, func(e hubv1.Event) error {
		if e.Kind == kind {
			list = append(list, e.Who+" "+e.What)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestClonesAreReported: by an event, and with both addresses; the node continues. One that moves on
// and on is none.
func TestClonesAreReported(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	moved := h.Join()
	for _, from := range []string{"127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6"} {
		hubtest.MustOpen(t, h.DialFrom(from, moved.Credentials(), moved.Identity), "")
	}
	if c, _ := h.Inventory.Clone(moved.NodeID); len(c.Addresses) > 0 {
		t.Errorf("a node that moves: %+v", c)
	}
	one, two, last, err := clones(t, h)
	if err != nil {
		t.Fatal(err)
	}
	if c, _ := h.Inventory.Clone(one.NodeID); !slices.Equal(c.Addresses, []string{"127.0.0.1", "127.0.0.2"}) || c.Banned {
		t.Errorf("reported: %+v", c)
	}
	if _, err := two.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: last.First.GetSessionId()}); err != nil {
		t.Errorf("the node does not go on: %v", err)
	}
	if list := told(t, h, "clone"); len(list) != 1 || list[0] != "node "+one.NodeID+" its certificate is in use at 127.0.0.1 and 127.0.0.2" {
		t.Errorf("events: %q", list)
	}
}

// TestClonesAreBanned: neither use is let in any more, until an operator lets one in, which renews its
// certificate; the other one stays out for ever.
func TestClonesAreBanned(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.BanClones = true })
	one, two, last, err := clones(t, h)
	if err == nil { // its session began before
		_, err = hubtest.Ended(last.ServerStreamingClient)
	}
	hubtest.Wants(t, "the clone that was seen", err, codes.PermissionDenied, "is banned")
	h.Restart(func(o *hub.Options) { o.BanClones = false }) // a ban stays
	bans := func(why string, nodes ...*hubtest.Node) {
		t.Helper()
		_, csr := hubtest.Request(t)
		for _, n := range nodes {
			_, err := hubtest.Open(t, n, "")
			hubtest.Wants(t, "a session", err, codes.PermissionDenied, why)
			_, err = n.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr})
			hubtest.Wants(t, "a renewal", err, codes.PermissionDenied, why)
		}
	}
	bans("is banned", one, two)
	ctx := hubtest.Within(t)
	if err := h.CA.Reauthorise(ctx, one.NodeID, ""); err == nil || !strings.Contains(err.Error(), "name the address") {
		t.Errorf("without an address: %v", err)
	}
	if err := h.CA.Reauthorise(ctx, h.Join().NodeID, "127.0.0.1"); err == nil || !strings.Contains(err.Error(), "has no clones") {
		t.Errorf("a node without clones: %v", err)
	}
	if err := h.CA.Reauthorise(ctx, one.NodeID, "127.0.0.1"); err != nil {
		t.Fatal(err)
	}
	bans("needs a newer certificate", two)
	o := hubtest.MustOpen(t, one, "")
	for msg := o.First; msg.GetNode().GetCertificate().GetStatus().GetState() != swarmv1.IssuanceStatus_ROTATE; {
		msg = hubtest.Receive(t, o)
	}
	id, err := one.Renew(ctx, one.Conn)
	if err != nil {
		t.Fatal(err)
	}
	renewed := h.DialFrom("127.0.0.9", id.Credentials(), id) // from anywhere
	hubtest.MustOpen(t, renewed, o.First.GetSessionId())
	bans("needs a newer certificate", one, two)
	h.Restart()
	bans("needs a newer certificate", one, two)
	hubtest.MustOpen(t, renewed, "")
}
