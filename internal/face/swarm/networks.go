package swarm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/translate"
)

// networks are the overlay networks that the node is on, and those of its tasks.
func (m *member) networks(nodeID string) *overlays.Networks {
	cfg, w := m.face.o.Config, m.worker
	advertise, _ := readAddr(cfg.AdvertiseAddr) // Validate has
	dataPath, _ := readAddr(cfg.DataPathAddr)
	return overlays.New(overlays.Options{
		Overlays: m.face.o.Overlays, Gossip: m.face.o.Gossip, KV: m.face.o.KV, Memory: m.face.o.Memory, Node: nodeID, Advertise: advertise, DataPath: dataPath,
		Route: m.route, Mesh: w.node.Ingress == IngressMesh, Logger: m.face.log,
		Note: func(note string) {
			if err := engine.Tell(w.engine, note); err != nil {
				m.face.log.Error("could not store an event", "error", err)
			}
		},
		Changed: m.client.Described,
		Resume:  w.resumeWaiting, FailPoint: m.face.o.FailPoint,
	})
}

// route returns the node's source address towards a manager. Nothing is sent.
func (m *member) route(ctx context.Context) (netip.Addr, error) {
	err := errors.New("no manager of the swarm is known")
	for _, p := range m.managers.All() {
		var c net.Conn
		if c, err = new(net.Dialer).DialContext(ctx, "udp", p.Addr); err != nil {
			continue
		}
		local := c.LocalAddr()
		_ = c.Close()
		if at, ok := local.(*net.UDPAddr); ok {
			return at.AddrPort().Addr().Unmap().WithZone(""), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("no way to a manager: %w", err)
}

// onNetworks is a task's place on its overlay networks.
func onNetworks(t translate.Task) (overlays.Task, error) {
	o := overlays.Task{ID: t.Swarm.GetId(), Name: t.Name(), Service: t.Swarm.GetServiceAnnotations().GetName(), ServiceID: t.Swarm.GetServiceId()}
	list, err := t.Networks()
	for _, n := range list {
		on := overlays.On{Network: n, VIP: t.VIP(n.Overlay.Name)}
		if n.Ingress {
			on.Ports = meshPorts(t)
		}
		o.On = append(o.On, on)
	}
	return o, err
}

// meshPorts are the ports of a task that every node publishes, for the gossip.
func meshPorts(t translate.Task) (list []gossip.Port) {
	protos := map[swarmv1.PortConfig_Protocol]string{swarmv1.PortConfig_TCP: "tcp", swarmv1.PortConfig_UDP: "udp", swarmv1.PortConfig_SCTP: "sctp"}
	for _, p := range t.MeshPorts() {
		list = append(list, gossip.Port{Name: p.GetName(), Proto: protos[p.GetProtocol()], Target: uint16(p.GetTargetPort()), Published: uint16(p.GetPublishedPort())})
	}
	return list
}

// openNetworks opens the overlay networks of a task before its sandbox is made.
func (w *worker) openNetworks(ctx context.Context, t translate.Task) error {
	o, err := onNetworks(t)
	if err != nil {
		return err
	}
	return w.nets.Hold(ctx, o)
}

// announce announces a task that runs, and is healthy, to other nodes.
func (w *worker) announce(s *swarmv1.Task, c core.Container) {
	aliases := []string{c.ID.Short()}
	if t, err := translate.Read(s, w.node); err == nil {
		if cfg, err := t.Sandbox(); err == nil && cfg.Hostname != "" && cfg.Hostname != c.ID.Short() {
			aliases = append(aliases, cfg.Hostname)
		}
	}
	w.nets.Running(s.GetId(), aliases...)
}

// joinNetworks announces tasks with a sandbox on their networks, also those of an earlier agent.
func (w *worker) joinNetworks(ctx context.Context) {
	for _, s := range w.assigned() {
		if len(s.GetNetworks()) == 0 || !w.sandboxReady(ctx, s) {
			continue
		}
		t, err := translate.Read(s, w.node)
		if err == nil {
			err = w.openNetworks(ctx, t)
		}
		if err != nil {
			w.log.WarnContext(ctx, "could not announce a task on its overlay networks", "task", s.GetId(), "error", err)
			continue
		}
		c, err := w.engine.ContainerByKey(ctx, core.Key(s.GetId()))
		if !w.sandboxReady(ctx, s) { // the task has ended and released its networks meanwhile
			w.nets.Release(s.GetId())
			continue
		}
		switch {
		case err != nil || c.State == core.ContainerExited:
		case c.State.Runs() && s.GetStatus().GetState() == swarmv1.TaskState_RUNNING:
			w.announce(s, c)
		default:
			w.nets.Attached(s.GetId())
		}
	}
}

// sandboxReady reports whether a task's sandbox has its networks.
func (w *worker) sandboxReady(ctx context.Context, s *swarmv1.Task) bool {
	sb, err := w.engine.SandboxByKey(ctx, core.Key(s.GetId()))
	return err == nil && sb.State == core.SandboxReady
}

// resumeWaiting continues tasks that wait for their networks.
func (w *worker) resumeWaiting() {
	w.mu.Lock()
	base := w.base
	w.mu.Unlock()
	if base == nil || base.Err() != nil {
		return
	}
	w.joinNetworks(base)
	w.kickAll()
}

// drainTime is how long a program still serves after the announcement of its end to other nodes. They receive it in
// less than a second, in a large swarm in less than two, and send connections to it until then. dockerd waits as
// long.
const drainTime = 2 * time.Second

// drain announces the end of a task to other nodes, and returns when they send no new connections to it. Its program
// runs meanwhile.
func (w *worker) drain(ctx context.Context, id string) error {
	if w.nets.Ending(id) && !pause(ctx, drainTime) {
		return context.Cause(ctx)
	}
	return nil
}
