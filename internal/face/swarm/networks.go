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
		Overlays: m.face.o.Overlays, Gossip: m.face.o.Gossip, KV: m.face.o.Drawer, Memory: m.face.o.Memory, Node: nodeID, Advertise: advertise, DataPath: dataPath,
		Route: m.route, Mesh: w.node.Ingress == IngressMesh, Logger: m.face.log,
		Tell: func(note string) {
			if err := engine.Tell(w.engine, note); err != nil {
				m.face.log.Error("an event could not be kept", "error", err)
			}
		},
		Changed: m.client.Described,
		Go:      onOverlays{w}.goOn, FailPoint: m.face.o.FailPoint,
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

// onOverlays are a worker's tasks on their overlay networks.
type onOverlays struct{ w *worker }

// hold opens the overlay networks of a task before its sandbox is made.
func (x onOverlays) hold(ctx context.Context, t translate.Task) error {
	o, err := onNetworks(t)
	if err != nil {
		return err
	}
	return x.w.nets.Hold(ctx, o)
}

// serves has other nodes know a task that runs, and is healthy.
func (x onOverlays) serves(s *swarmv1.Task, c core.Container) {
	if len(s.GetNetworks()) == 0 {
		return
	}
	aliases := []string{c.ID.Short()}
	if t, err := translate.Read(s, x.w.node); err == nil {
		if cfg, err := t.Sandbox(); err == nil && cfg.Hostname != "" && cfg.Hostname != c.ID.Short() {
			aliases = append(aliases, cfg.Hostname)
		}
	}
	x.w.nets.Runs(s.GetId(), aliases...)
}

// join announces tasks with a sandbox on their networks, also those of an earlier agent.
func (x onOverlays) join(ctx context.Context) {
	x.w.mu.Lock()
	var list []*swarmv1.Task
	for _, t := range x.w.tasks {
		if len(t.swarm.GetNetworks()) > 0 && !t.removed {
			list = append(list, t.swarm)
		}
	}
	x.w.mu.Unlock()
	for _, s := range list {
		if !x.ready(ctx, s) {
			continue
		}
		t, err := translate.Read(s, x.w.node)
		if err == nil {
			err = x.hold(ctx, t)
		}
		if err != nil {
			x.w.log.WarnContext(ctx, "a task is not known on its overlay networks", "task", s.GetId(), "error", err)
			continue
		}
		c, err := x.w.engine.ContainerByKey(ctx, core.Key(s.GetId()))
		if !x.ready(ctx, s) { // the task has ended and released its networks meanwhile
			x.w.nets.Release(s.GetId())
			continue
		}
		switch {
		case err != nil || c.State == core.ContainerExited:
		case c.State == core.ContainerRunning && s.GetStatus().GetState() == swarmv1.TaskState_RUNNING:
			x.serves(s, c)
		default:
			x.w.nets.Attached(s.GetId())
		}
	}
}

// ready reports whether a task's sandbox has its networks.
func (x onOverlays) ready(ctx context.Context, s *swarmv1.Task) bool {
	sb, err := x.w.engine.SandboxByKey(ctx, core.Key(s.GetId()))
	return err == nil && sb.State == core.SandboxReady
}

// goOn continues tasks that wait for their networks.
func (x onOverlays) goOn() {
	x.w.mu.Lock()
	base := x.w.base
	x.w.mu.Unlock()
	if base == nil || base.Err() != nil {
		return
	}
	x.join(base)
	x.w.kickAll()
}

// drainTime is how long a program still serves after the announcement of its end to other nodes. They receive it in
// less than a second, in a large swarm in less than two, and send connections to it until then. dockerd waits as
// long.
const drainTime = 2 * time.Second

// drain has other nodes lead no new connections to a task, and returns when they know. Its program runs meanwhile.
func (x onOverlays) drain(ctx context.Context, id string) error {
	if x.w.nets.Ending(id) && !pause(ctx, drainTime) {
		return context.Cause(ctx)
	}
	return nil
}
