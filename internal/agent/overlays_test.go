package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
)

func TestDoctorTellsWhatKeepsOverlaysAway(t *testing.T) {
	o := enginetest.Fakes(t).Overlays
	def := core.Overlay{Name: "mesh", MTU: 1450, Local: netip.MustParseAddr("192.0.2.1"), Subnets: []core.OverlaySubnet{{
		Range: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("10.0.1.1"), VNI: 4097,
	}}}
	var st overlays.Status
	if err := o.Open(t.Context(), def); err != nil {
		t.Fatal(err)
	}
	if f := overlayFinding(t.Context(), o, st); f.Status != control.FindingOK || f.Detail != "open: mesh" {
		t.Errorf("%+v", f)
	}
	st.Networks = []overlays.NetworkStatus{{Name: "fine"}, {Name: "mesh", Error: "its VXLAN id is another's: failed precondition"}}
	if f := overlayFinding(t.Context(), o, st); f.Status != control.FindingWarn || f.Detail != "mesh: its VXLAN id is another's" || f.Hint == "" {
		t.Errorf("%+v", f)
	}
	st.Networks = nil
	o.Unable(nil, errors.New("no ESP"))
	if f := overlayFinding(t.Context(), o, st); f.Status != control.FindingOK || f.Detail != "open: mesh; none can be encrypted: no ESP" {
		t.Errorf("%+v", f)
	}
	o.Unable(errors.New("no vxlan"), nil)
	if f := overlayFinding(t.Context(), o, st); f.Status != control.FindingWarn || f.Detail != "no vxlan" || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}

// TestDoctorTellsOfTheGossip, of the program at its port, and of ports that other programs have.
func TestDoctorTellsOfTheGossip(t *testing.T) {
	up := overlays.Status{Gossip: overlays.Up, Members: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Networks: []overlays.NetworkStatus{{Name: "mesh"}}}
	for _, c := range []struct {
		s    swarm.Status
		want control.Finding
	}{
		{swarm.Status{}, control.Finding{Status: control.FindingOK, Detail: "the node is in no swarm"}},
		{swarm.Status{NodeID: "n", Overlays: up}, control.Finding{Status: control.FindingOK, Detail: "networks: 1; other nodes that answer: 1"}},
		{swarm.Status{NodeID: "n", Overlays: overlays.Status{Gossip: overlays.Unused}}, control.Finding{Status: control.FindingOK, Detail: "networks: 0; other nodes that answer: 0"}},
		{swarm.Status{NodeID: "n", Overlays: overlays.Status{Gossip: "cut off"}}, control.Finding{Status: control.FindingWarn, Detail: "could not announce this node's tasks to other nodes: cut off"}},
		{swarm.Status{NodeID: "n", Overlays: overlays.Status{Unable: "tcp port 7946: dockerd (pid 7) listens there: failed precondition"}}, control.Finding{Status: control.FindingWarn, Detail: "tcp port 7946: dockerd (pid 7) listens there"}},
	} {
		if f := gossipFinding(c.s); f.Name != "gossip" || f.Status != c.want.Status || f.Detail != c.want.Detail || (f.Hint == "") != (f.Status == control.FindingOK) {
			t.Errorf("%+v, want %+v", f, c.want)
		}
	}
	if f := publishedFinding(up); f.Status != control.FindingOK {
		t.Errorf("%+v", f)
	}
	up.Taken = []string{"8080/tcp: nginx (pid 7) listens there: failed precondition"}
	if f := publishedFinding(up); f.Status != control.FindingWarn || f.Detail != "not published at this node: 8080/tcp: nginx (pid 7) listens there" {
		t.Errorf("%+v", f)
	}
}
