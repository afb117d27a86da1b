package agent

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func TestDoctorTellsOfConnectionsNearTheirLimit(t *testing.T) {
	now := time.Unix(1e6, 0)
	quiet := connlimit.Usage{Options: connlimit.Options{Name: "nomad", Key: "face.nomad.max_connections", Max: 10}, Open: 1, Near: now.Add(-2 * time.Hour)}
	tight := connlimit.Usage{Options: connlimit.Options{Name: "cri", Key: "face.cri.max_connections", Max: 10}, Open: 3, ClosedIdle: 7, Near: now.Add(-time.Minute)}
	if f := connectionFinding([]connlimit.Usage{quiet}, now); f.Status != control.FindingOK || f.Detail != "open: nomad 1 of 10" {
		t.Errorf("%+v", f)
	}
	f := connectionFinding([]connlimit.Usage{quiet, tight}, now)
	if f.Status != control.FindingWarn || !strings.Contains(f.Detail, "cri 3 of 10 open; 7 idle") || !strings.Contains(f.Hint, "face.cri.max_connections") || strings.Contains(f.Hint, "nomad") {
		t.Errorf("%+v", f)
	}
}

func TestDoctorTellsWhatKeepsOverlaysAway(t *testing.T) {
	o := enginetest.Fakes(t).Overlays
	def := core.Overlay{Name: "mesh", MTU: 1450, Local: netip.MustParseAddr("192.0.2.1"), Subnets: []core.OverlaySubnet{{
		Range: netip.MustParsePrefix("10.0.1.0/24"), Gateway: netip.MustParseAddr("10.0.1.1"), VNI: 4097,
	}}}
	if err := o.Open(t.Context(), def); err != nil {
		t.Fatal(err)
	}
	if f := overlayFinding(t.Context(), o); f.Status != control.FindingOK || f.Detail != "open: mesh" {
		t.Errorf("%+v", f)
	}
	o.Unable(nil, errors.New("no ESP"))
	if f := overlayFinding(t.Context(), o); f.Status != control.FindingOK || f.Detail != "open: mesh; none can be encrypted: no ESP" {
		t.Errorf("%+v", f)
	}
	o.Unable(errors.New("no vxlan"), nil)
	if f := overlayFinding(t.Context(), o); f.Status != control.FindingWarn || f.Detail != "no vxlan" || f.Hint == "" {
		t.Errorf("%+v", f)
	}
}
