package networkdb

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// Factory makes this machine's member of the gossip, which listens at every address.
type Factory struct{ Logger *slog.Logger }

// Able says why no member can listen; FailedPrecondition.
func (Factory) Able() error {
	at := net.JoinHostPort("", strconv.Itoa(gossip.DefaultPort))
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", at)
	if err == nil {
		_ = l.Close()
		var c net.PacketConn
		if c, err = new(net.ListenConfig).ListenPacket(context.Background(), "udp", at); err == nil {
			_ = c.Close()
		}
	}
	if err != nil {
		return fmt.Errorf("port %d, by which the nodes of a swarm tell each other of overlay networks, cannot be listened at (a dockerd on this machine has it): %w: %w", gossip.DefaultPort, err, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// New returns a member.
func (f Factory) New(name string, advertise netip.Addr, keys []gossip.Key) (gossip.Member, error) {
	return New(Options{Name: name, Advertise: advertise, Keys: keys, Logger: f.Logger})
}
