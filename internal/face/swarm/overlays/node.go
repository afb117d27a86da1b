package overlays

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/translate"
)

// managerConfig has the keys, managers and ingress address of the managers' last message.
type managerConfig struct {
	known    bool   // there was a message, if only to an earlier agent
	memory   []byte // of it; nil without keys
	keys     []gossip.Key
	secrets  []core.OverlayKey // of encrypted networks
	bad      error             // the error of the keys
	managers []netip.AddrPort
	ingress  *translate.Network // with the node's own addresses; nil when it has none
}

// contact is the state of the contact with other members.
type contact struct {
	joined bool
	since  time.Time // the last answer; zero while a member answers
	noted  bool      // an event has reported it
}

func (c contact) String() string {
	switch {
	case !c.joined:
		return "no other node has answered yet"
	case !c.since.IsZero():
		return "no other node answers since " + c.since.Format(time.RFC3339)
	}
	return Up
}

// The values of Status.Gossip when another node answers, and without keys of the managers.
const (
	Up     = "up"
	Unused = "the swarm has no overlay networks"
)

// place has this node's addresses and port for other nodes. It is stored, so that the data path is the same after a
// start.
type place struct {
	Advertise netip.Addr `json:"advertise,omitzero"`
	DataPath  netip.Addr `json:"data_path,omitzero"`
	Port      uint16     `json:"port,omitempty"`
}

// placeKey is where place is kept.
const placeKey = "overlays"

func readPlace(kv core.KV) (p place) {
	if data, err := kv.Get(placeKey); err != nil || json.Unmarshal(data, &p) != nil {
		return place{}
	}
	return p
}

// place returns this node's addresses for other nodes.
func (s *Networks) place(ctx context.Context) (place, error) {
	s.mu.Lock()
	own := s.mine.Advertise
	s.mu.Unlock()
	switch {
	case s.o.Advertise.IsValid():
		own = s.o.Advertise
	case own.IsValid() && isHere(own):
	default:
		var err error
		if own, err = s.o.Route(ctx); err != nil {
			return place{}, fmt.Errorf("find the node's address: %w", err)
		}
	}
	return s.putPlace(func(p *place) {
		if p.Advertise, p.DataPath = own, s.o.DataPath; !p.DataPath.IsValid() {
			p.DataPath = own
		}
	})
}

// putPlace changes the node's place, and stores it where it differs.
func (s *Networks) putPlace(change func(*place)) (place, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.mine
	change(&s.mine)
	if s.mine == before {
		return s.mine, nil
	}
	data, err := json.Marshal(s.mine)
	if err == nil {
		err = s.o.KV.Put(placeKey, data)
	}
	if err != nil {
		return s.mine, fmt.Errorf("keep the node's address: %w", err)
	}
	return s.mine, nil
}

// isHere reports whether an address is one of this machine's.
func isHere(a netip.Addr) bool {
	all, err := net.InterfaceAddrs()
	return err != nil || slices.ContainsFunc(all, func(o net.Addr) bool {
		n, ok := o.(*net.IPNet)
		return ok && n.IP.Equal(net.IP(a.AsSlice()))
	})
}

// The subsystems of managers' keys.
const (
	gossipKeys  = "networking:gossip"
	secretsKeys = "networking:ipsec"
)

// Configure applies a manager's message to the networks.
func (s *Networks) Configure(m *swarmv1.SessionMessage) {
	t := s.read(m)
	if t.bad == nil {
		var err error
		if t.memory, err = memoryOf(s.o.Node, m); err != nil {
			s.o.Logger.Error("could not prepare the managers' message for the agent's next start", "error", err)
		}
	}
	s.mu.Lock()
	bad, waited := s.config.bad, len(s.config.secrets) == 0 && len(t.secrets) > 0
	if len(t.managers) == 0 {
		t.managers = s.config.managers
	}
	s.config = t
	if s.configured.IsZero() {
		s.configured = time.Now()
	}
	s.mu.Unlock()
	if t.bad != nil && (bad == nil || bad.Error() != t.bad.Error()) {
		s.note(t.bad.Error() + ": this node can be on no overlay network")
	}
	if port := m.GetNode().GetVXLANUDPPort(); port <= 65535 {
		if _, err := s.putPlace(func(p *place) { p.Port = uint16(port) }); err != nil {
			s.o.Logger.Error("could not store the port of overlay networks for the agent's next start", "error", err)
		}
	}
	s.poke()
	if waited {
		s.o.Resume()
	}
}

// read reads a manager's message.
func (s *Networks) read(m *swarmv1.SessionMessage) managerConfig {
	t := managerConfig{known: true}
	t.keys, t.secrets, t.bad = readKeys(m.GetNetworkBootstrapKeys())
	for _, p := range m.GetManagers() {
		host, _, err := net.SplitHostPort(p.GetPeer().GetAddr())
		if addr, e := netip.ParseAddr(host); err == nil && e == nil {
			t.managers = append(t.managers, netip.AddrPortFrom(addr.Unmap(), gossip.DefaultPort))
		}
	}
	for _, a := range m.GetNode().GetAttachments() {
		if !s.o.Mesh || !a.GetNetwork().GetSpec().GetIngress() {
			continue
		}
		n, err := translate.ReadNetwork(a)
		if err != nil {
			s.note("this node has no place on the network of published ports: " + err.Error())
			continue
		}
		t.ingress = &n
	}
	return t
}

// note logs a text, and appends it to the event log.
func (s *Networks) note(text string) {
	s.o.Logger.Warn("overlay networks", "note", text)
	s.o.Note(text)
}

// readKeys sorts the managers' keys. None at all are no mistake: a manager may have no overlay networks.
func readKeys(list []*swarmv1.EncryptionKey) (keys []gossip.Key, secrets []core.OverlayKey, err error) {
	var timed []gossip.TimedKey
	for _, k := range list {
		switch k.GetSubsystem() {
		case gossipKeys:
			timed = append(timed, gossip.TimedKey{Key: k.GetKey(), Time: k.GetLamportTime()})
		case secretsKeys:
			if len(k.GetKey()) != len(core.OverlayKey{}.Key) {
				return nil, nil, fmt.Errorf("keys of encrypted networks: one has %d bytes", len(k.GetKey()))
			}
			secrets = append(secrets, core.OverlayKey{Key: [16]byte(k.GetKey()), ID: uint32(k.GetLamportTime())})
		}
	}
	if len(list) == 0 {
		return nil, nil, nil
	}
	if keys, err = gossip.Keyring(timed); err != nil {
		return nil, nil, err
	}
	// The second oldest encrypts, as with the gossip.
	slices.SortFunc(secrets, func(a, b core.OverlayKey) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), bytes.Compare(a.Key[:], b.Key[:]))
	})
	secrets = slices.Compact(secrets)
	if len(secrets) > 1 {
		secrets[0], secrets[1] = secrets[1], secrets[0]
	}
	return keys, secrets, nil
}

// The times of run.
const (
	lookEvery   = 5 * time.Second // while all is well
	lookSoon    = time.Second     // after a failure
	joinTimeout = 10 * time.Second
	silence     = 10 * time.Second // after which other nodes count as unreachable
)

// run does the node's common work, until ctx ends: it joins the gossip, changes keys when the managers do, notices
// when no other node answers, keeps the node's place on the network of published ports, and closes networks that no
// task is on.
func (s *Networks) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var k loop
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.poked:
		case <-timer.C:
		}
		if k.once(ctx, s) {
			timer.Reset(lookEvery)
		} else {
			timer.Reset(lookSoon)
		}
	}
}

// loop is the state of run.
type loop struct {
	keys      []gossip.Key
	secrets   []core.OverlayKey
	nodes     []netip.Addr // that take part in the gossip
	ingress   string       // the last error
	checkedAt time.Time
	withdrawn bool // an earlier agent's records are withdrawn, or about to be

	recalled    bool // the message to an earlier agent was read from the holder
	memory      []byte
	storedAt    time.Time // when the message was stored at the holder
	storeFailed bool      // the last store failed
}

// once compares gossip, keys and networks with the managers' message, changes the differences, and reports whether
// nothing failed that must be tried again soon.
func (k *loop) once(ctx context.Context, s *Networks) bool {
	s.mu.Lock()
	bad := s.config.bad != nil
	s.mu.Unlock()
	if bad || s.Able() != nil || time.Since(k.checkedAt) > time.Minute {
		k.checkedAt = time.Now()
		s.checkAble(ctx)
	}
	s.mu.Lock()
	t, able := s.config, s.unable == nil
	s.mu.Unlock()
	if !t.known && !k.recalled {
		k.recalled = s.recall(ctx)
		s.mu.Lock()
		t = s.config
		s.mu.Unlock()
	}
	if !able || !t.known {
		return k.recalled // run comes back every few seconds, or with a message
	}
	well := k.remember(ctx, s, t.memory)
	well = k.setSecrets(ctx, s, t.secrets) && well
	well = k.setKeys(ctx, s, t.keys) && well
	well = k.join(ctx, s, t.managers) && well
	well = k.setIngress(ctx, s, t.ingress) && well
	return k.closeUnused(ctx, s) && well
}

// checkAble finds out whether the node can be on overlay networks, and reports a change.
func (s *Networks) checkAble(ctx context.Context) {
	err := s.able(ctx)
	s.mu.Lock()
	before := s.unable
	s.unable = err
	s.mu.Unlock()
	if (err == nil) != (before == nil) || err != nil && err.Error() != before.Error() {
		if err != nil {
			s.o.Logger.WarnContext(ctx, "this node can be on no overlay network", "error", err)
		}
		s.o.Changed()
		s.o.Resume()
	}
}

func (s *Networks) able(ctx context.Context) error {
	if s.o.Overlays == nil || s.o.Gossip == nil {
		return errors.New("this agent's network has no overlay networks")
	}
	s.mu.Lock()
	member, bad := s.member, s.config.bad
	s.mu.Unlock()
	if bad != nil {
		return bad
	}
	if err := s.o.Overlays.Able(ctx, false); err != nil {
		return err
	}
	if member == nil {
		return s.o.Gossip.Able()
	}
	return nil
}

// setSecrets sets the managers' keys on encrypted networks.
func (k *loop) setSecrets(ctx context.Context, s *Networks, secrets []core.OverlayKey) bool {
	if len(secrets) == 0 || slices.Equal(secrets, k.secrets) {
		return true
	}
	if err := s.o.Overlays.SetKeys(ctx, secrets); err != nil {
		s.o.Logger.ErrorContext(ctx, "could not set the keys of encrypted networks; will retry", "error", err)
		return false
	}
	k.secrets = secrets
	return true
}

// setKeys sets the managers' keys of the gossip; with the first ones the node becomes a member.
func (k *loop) setKeys(ctx context.Context, s *Networks, keys []gossip.Key) bool {
	if len(keys) == 0 || slices.Equal(keys, k.keys) {
		return true
	}
	s.mu.Lock()
	member := s.member
	s.mu.Unlock()
	if member != nil {
		if err := member.SetKeys(keys); err != nil {
			s.o.Logger.ErrorContext(ctx, "could not set the keys of the gossip; will retry", "error", err)
			return false
		}
		k.keys = keys
		return true
	}
	p, err := s.place(ctx)
	if err == nil {
		member, err = s.o.Gossip.New(gossip.NodeName(s.o.Node), p.Advertise, keys)
	}
	if err != nil {
		s.o.Logger.WarnContext(ctx, "could not join the gossip of overlay networks; will retry", "error", err)
		s.checkAble(ctx)
		return false
	}
	s.mu.Lock()
	s.member, s.announced = member, gossip.NewAnnounced(member, s.o.KV)
	s.mu.Unlock()
	k.keys = keys
	return true
}

// join joins the other members while none answers, and appends an event when that lasts.
func (k *loop) join(ctx context.Context, s *Networks, managers []netip.AddrPort) bool {
	s.mu.Lock()
	member, c := s.member, s.contact
	s.mu.Unlock()
	if member == nil {
		return len(k.keys) == 0
	}
	nodes := member.Members()
	for _, m := range managers {
		nodes = append(nodes, m.Addr())
	}
	slices.SortFunc(nodes, netip.Addr.Compare)
	if nodes = slices.Compact(nodes); !slices.Equal(nodes, k.nodes) {
		if err := s.o.Overlays.SetGossip(ctx, gossip.DefaultPort, nodes); err != nil {
			s.o.Logger.ErrorContext(ctx, "could not close the gossip's port to sandboxes; will retry", "error", err)
		} else {
			k.nodes = nodes
		}
	}
	if len(member.Members()) == 0 {
		try, cancel := context.WithTimeout(ctx, joinTimeout)
		err := member.Join(try, managers)
		cancel()
		if err != nil {
			s.o.Logger.DebugContext(ctx, "no other member of the gossip answers", "error", err)
		}
		c.joined = c.joined || err == nil
	} else {
		c.joined = true
	}
	answers, note := len(member.Members()) > 0, ""
	switch {
	case answers && c.noted:
		note = "other nodes answer again: this node's tasks are announced to them again"
		c.since, c.noted = time.Time{}, false
	case answers:
		c.since = time.Time{}
	case c.since.IsZero():
		c.since = time.Now()
	case !c.noted && time.Since(c.since) >= silence:
		c.noted = true
		note = "no other node of the swarm answers by the gossip of overlay networks: this node's tasks run on, and others may not reach them (port 7946, TCP and UDP)"
	}
	s.mu.Lock()
	s.contact = c
	s.mu.Unlock()
	if note != "" {
		s.note(note)
	}
	if c.joined {
		select {
		case <-s.joined:
		default:
			close(s.joined)
		}
	}
	return answers
}

// nodeTask stands for the node itself among the tasks of a network.
const nodeTask = "node"

// setIngress opens, changes or closes the node's place on the network of published ports, as the managers say.
func (k *loop) setIngress(ctx context.Context, s *Networks, want *translate.Network) bool {
	s.mu.Lock()
	have := s.ingress
	s.mu.Unlock()
	if want == nil {
		if have.Network == "" {
			return true
		}
		return k.ingressDone(ctx, s, core.Ingress{}, s.o.Overlays.CloseIngress(ctx))
	}
	in := core.Ingress{Network: want.Overlay.Name, Addrs: want.Addrs, MAC: want.MAC()}
	if have.Network == in.Network && slices.Equal(have.Addrs, in.Addrs) {
		return true
	}
	if have.Network != "" {
		s.Release(nodeTask)
	}
	err := s.Hold(ctx, Task{ID: nodeTask, On: []On{{Network: *want}}})
	if errors.Is(err, ErrWaits) {
		return false
	}
	if err == nil {
		err = s.o.Overlays.OpenIngress(ctx, in)
	}
	return k.ingressDone(ctx, s, in, err)
}

// ingressDone notes how a change of the node's place there has ended, and reports whether it need not be tried again.
func (k *loop) ingressDone(ctx context.Context, s *Networks, in core.Ingress, err error) bool {
	if err != nil {
		if text := err.Error(); text != k.ingress {
			k.ingress = text
			s.note("ports that every node publishes do not answer at this node: " + text)
		}
		return ctx.Err() != nil
	}
	k.ingress = ""
	s.mu.Lock()
	s.ingress = in
	s.mu.Unlock()
	if in.Network == "" {
		s.Release(nodeTask)
	} else {
		s.Attached(nodeTask)
	}
	return true
}

// closeUnused closes networks without tasks, of an earlier agent or after a failed close, and withdraws their records.
// The place on the network of published ports is known by now.
func (k *loop) closeUnused(ctx context.Context, s *Networks) bool {
	s.mu.Lock()
	resumed, announced, ingress, joined := s.resumed, s.announced, s.config.ingress, s.contact.joined
	s.mu.Unlock()
	if !resumed {
		return false
	}
	well := true
	for _, o := range s.o.Overlays.List() {
		if ingress != nil && o.Name == ingress.Overlay.Name || s.network(o.Name) != nil {
			continue
		}
		well = s.closeUnused(ctx, o.Name) && well
	}
	if announced == nil || k.withdrawn {
		return well
	}
	if !joined {
		return false
	}
	k.withdrawn = true
	var networks []string
	for _, id := range announced.Endpoints() {
		if s.network(id.Network) == nil && !slices.Contains(networks, id.Network) {
			networks = append(networks, id.Network)
		}
	}
	for _, id := range networks {
		s.running.Go(func() { s.withdraw(ctx, id) })
	}
	return well
}

func (s *Networks) network(id string) *network {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.nets[id]
}

// closeUnused closes a network without tasks.
func (s *Networks) closeUnused(ctx context.Context, id string) bool {
	unlock, err := s.changes.Lock(ctx, id)
	if err != nil {
		return false
	}
	defer unlock()
	if s.network(id) != nil {
		return true
	}
	err = s.o.Overlays.Close(ctx, id)
	if err != nil && !errdefs.IsFailedPrecondition(err) {
		s.o.Logger.WarnContext(ctx, "could not close an unused overlay network; will retry", "network", id, "error", err)
	}
	return err == nil
}

// withdraw withdraws an earlier agent's records on a network without tasks.
func (s *Networks) withdraw(ctx context.Context, id string) {
	s.mu.Lock()
	member, announced := s.member, s.announced
	s.mu.Unlock()
	if member == nil {
		return
	}
	// Without the lock, because this takes long beside a dead member, and new tasks would wait.
	err := member.Enter(ctx, id)
	if err == nil {
		unlock, e := s.changes.Lock(ctx, id)
		if e != nil {
			return
		}
		defer unlock()
		if s.network(id) != nil {
			return // its sweep withdraws them
		}
		err = errors.Join(announced.Sweep(id, func(string) bool { return false }), announced.Exit(id))
	}
	if err != nil && ctx.Err() == nil {
		s.o.Logger.WarnContext(ctx, "could not withdraw an earlier agent's records of a network", "network", id, "error", err)
	}
}
