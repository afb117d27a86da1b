package agent

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/network/ports"
)

// gossipDoor makes this machine's member of a Swarm's gossip, and says who else has its port.
type gossipDoor struct{ networkdb.Door }

// Able says why no member can listen; FailedPrecondition.
func (d gossipDoor) Able() error {
	err := d.Door.Able()
	if err == nil {
		return nil
	}
	for _, proto := range []string{"tcp", "udp"} {
		c := ports.Claim{Proto: proto, Port: gossip.DefaultPort}
		if who := ports.Process(c); who != "" {
			return fmt.Errorf("%s port %d, by which the nodes of a swarm tell each other of overlay networks: %s listens there: %w", proto, c.Port, who, errdefs.ErrFailedPrecondition)
		}
	}
	return err
}
