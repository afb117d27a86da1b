package agent

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/roottest"
)

// TestWhoHasThePortOfTheGossip: an error names the program, for TCP and UDP; for the networks'
// packets, a finding does.
func TestWhoHasThePortOfTheGossip(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		var d gossipFactory
		able := func(when string) {
			t.Helper()
			if err := d.Able(); err != nil {
				t.Errorf("%s: %v", when, err)
			}
		}
		able("at first")
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(gossip.DefaultPort))
		for _, proto := range []string{"tcp", "udp"} {
			var l interface{ Close() error }
			var err error
			if proto == "tcp" {
				l, err = net.Listen("tcp", at) //nolint:noctx // it ends below
			} else {
				l, err = net.ListenPacket("udp", at) //nolint:noctx // it ends below
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Able(); !errdefs.IsFailedPrecondition(err) || !strings.HasPrefix(err.Error(), proto+" port 7946, the gossip port of overlay networks, is in use by agent.test (pid ") {
				t.Errorf("while this test listens by %s: %v", proto, err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
		able("at last")
		l, err := net.ListenPacket("udp", "127.0.0.1:4789") //nolint:noctx // it ends below
		if err != nil {
			t.Fatal(err)
		}
		f := overlayFinding(t.Context(), enginetest.Fakes(t).Overlays, overlays.Status{})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if f.Status != control.FindingWarn || !strings.HasPrefix(f.Detail, "udp port 4789, the port of overlay networks' packets, is in use by agent.test (pid ") {
			t.Errorf("%+v", f)
		}
	})
}
