package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/network/ports"
)

// gossipFactory makes this machine's member of a Swarm's gossip, and names another user of its port
// in errors.
type gossipFactory struct{ networkdb.Factory }

// Able returns an error, FailedPrecondition, if no member can listen.
func (d gossipFactory) Able() error {
	err := d.Factory.Able()
	if err == nil {
		return nil
	}
	for _, proto := range []string{"tcp", "udp"} {
		c := ports.Claim{Proto: proto, Port: gossip.DefaultPort}
		if who := ports.Process(c); who != "" {
			return fmt.Errorf("%s port %d, the gossip port of overlay networks, is in use by %s: %w", proto, c.Port, who, errdefs.ErrFailedPrecondition)
		}
	}
	return err
}

// withoutClass returns an error's text without its class, which means nothing to people.
func withoutClass(text string) string {
	return strings.ReplaceAll(text, ": "+errdefs.ErrFailedPrecondition.Error(), "")
}

// dataPort is the default UDP port of overlay networks' packets. The managers can set another one.
const dataPort = 4789

// overlayFinding reports whether this machine can have networks over several nodes, and the state of those that it has.
func overlayFinding(ctx context.Context, o overlays.Port, st overlays.Status) control.Finding {
	const name = "overlays"
	if err := o.Able(ctx, false); err != nil {
		return warn(name, "until this is fixed, managers place no task on this node that uses an overlay network or publishes a port of the whole Swarm", "%s", withoutClass(err.Error()))
	}
	at := []uint16{}
	var open []string
	for _, v := range o.List() {
		port := v.Port
		if port == 0 {
			port = dataPort
		}
		open, at = append(open, v.Name), append(at, port)
	}
	if len(at) == 0 {
		at = append(at, dataPort)
	}
	slices.Sort(at)
	for _, port := range slices.Compact(at) {
		if who := ports.Process(ports.Claim{Proto: "udp", Port: port}); who != "" {
			return warn(name, "end it, or move the Swarm's networks by `docker swarm init --data-path-port`", "udp port %d, the port of overlay networks' packets, is in use by %s", port, who)
		}
	}
	var wrong []string
	for _, n := range st.Networks {
		if n.Error != "" {
			wrong = append(wrong, n.Name+": "+withoutClass(n.Error))
		}
	}
	if len(wrong) > 0 {
		return warn(name, "the agent tries again; `longshore swarm status` shows all networks", "%s", strings.Join(wrong, "; "))
	}
	text := "none is open"
	if len(open) > 0 {
		text = "open: " + strings.Join(open, ", ")
	}
	if err := o.Able(ctx, true); err != nil {
		return ok(name, "%s; none can be encrypted: %s", text, withoutClass(err.Error()))
	}
	return ok(name, "%s", text)
}

// gossipFinding reports the gossip with the other nodes of the Swarm's overlay networks.
func gossipFinding(s swarm.Status) control.Finding {
	const name = "gossip"
	o := s.Overlays
	switch {
	case s.NodeID == "":
		return ok(name, "the node is in no swarm")
	case o.Unable != "":
		return warn(name, "the swarm places no task on an overlay network here; the agent tries again every few seconds", "%s", withoutClass(o.Unable))
	case o.Gossip != overlays.Up && o.Gossip != overlays.Unused:
		return warn(name, "open port 7946, TCP and UDP, between this node and the others in both directions", "could not announce this node's tasks to other nodes: %s", o.Gossip)
	}
	return ok(name, "networks: %d; other nodes that answer: %d", len(o.Networks), len(o.Members))
}

// publishedFinding reports the ports of the whole Swarm that do not answer at this node.
func publishedFinding(o overlays.Status) control.Finding {
	const name = "published ports"
	if len(o.Taken) > 0 {
		return warn(name, "stop the programs that use them; the agent tries again. Tasks keep running, and other nodes answer", "not published at this node: %s", withoutClass(strings.Join(o.Taken, "; ")))
	}
	return ok(name, "all ports of the swarm are available here")
}
