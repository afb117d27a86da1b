package agent

import (
	"context"
	"encoding/json"
	"io"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/agent/sockets"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/face/cri/podcheckpoint"
	"github.com/longshore/longshore/internal/face/cri/secprofile"
	"github.com/longshore/longshore/internal/face/docker"
	"github.com/longshore/longshore/internal/face/mesos"
	"github.com/longshore/longshore/internal/face/nomad"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
)

// faceEntry is a face in the table of faces.
type faceEntry struct {
	name    string     // of the face, and of its section of the config: [face.NAME]
	owner   core.Owner // the owner of the objects that it creates and sees
	enabled bool       // as the config says
	// sockets are its listening sockets, in this order; a face that dials out has none.
	sockets []sockets.Socket
	// early means that it serves before the engine has recovered; it learns of the end of the
	// recovery from node.recovered.
	early bool
	// open makes the face, and opens everything that must be open before any face serves.
	open func(ctx context.Context, d face.Deps) (face.Face, error)
}

// faceTable returns every face that this agent can serve. A new face needs an entry here and a
// section in config.Faces.
func (n *node) faceTable() []faceEntry {
	c := n.cfg.Face
	return []faceEntry{
		{
			name: cri.Name, owner: core.OwnerCRI, enabled: c.CRI.Enabled,
			sockets: []sockets.Socket{{Name: "cri", Address: c.CRI.Socket}, {Name: "cri-image", Address: c.CRI.ImageSocket}},
			open:    openCRI(n),
		},
		{
			name: nomad.Name, owner: core.OwnerNomad, enabled: c.Nomad.Enabled,
			sockets: []sockets.Socket{{Name: "nomad", Address: c.Nomad.Socket}},
			open: func(_ context.Context, d face.Deps) (face.Face, error) {
				return nomad.New(nomad.Options{Deps: d, Config: c.Nomad, Registry: n.cfg.Images.DefaultRegistry, Archives: n.images})
			},
		},
		{
			name: mesos.Name, owner: core.OwnerMesos, enabled: c.Mesos.Enabled,
			sockets: []sockets.Socket{{Name: "mesos", Address: c.Mesos.Socket}, {Name: "mesos-tcp", Address: c.Mesos.Listen}},
			early:   true, // Mesos' protocol has an answer for an agent that is recovering
			open:    openMesos(n),
		},
		{
			name: docker.Name, owner: core.OwnerDocker, enabled: c.Docker.Enabled,
			sockets: []sockets.Socket{
				{Name: docker.FullSocket, Address: c.Docker.Socket, Group: c.Docker.Group, Shared: true},
				{Name: docker.ReadSocket, Address: c.Docker.ReadSocket, Group: c.Docker.ReadGroup, Shared: true},
				{Name: docker.TCPSocket, Address: c.Docker.TCP},
			},
			open: openDocker(n),
		},
		{name: swarm.Name, owner: core.OwnerSwarm, enabled: c.Swarm.Enabled, open: openSwarm(n)},
	}
}

// enabledFaces returns the faces that the config enables.
func (n *node) enabledFaces() (enabled []faceEntry) {
	for _, e := range n.faceTable() {
		if e.enabled {
			enabled = append(enabled, e)
		}
	}
	return enabled
}

// listen opens the sockets of the control API, the metrics and the enabled faces.
func (n *node) listen(ctx context.Context) (*sockets.Sockets, error) {
	faces := map[string][]sockets.Socket{}
	for _, e := range n.enabledFaces() {
		faces[e.name] = e.sockets
	}
	return sockets.Open(ctx, sockets.Options{
		State: n.cfg.Agent.State, Control: n.cfg.Control, Faces: faces, Metrics: n.cfg.Metrics, UI: n.cfg.UI.Listen, Handler: n.httpHandler(), Logger: n.log,
	})
}

// openFaces makes the faces that the config enables: with early those that serve early, otherwise
// the others.
func (n *node) openFaces(ctx context.Context, early bool) ([]face.Face, error) {
	var all []face.Face
	for _, e := range n.enabledFaces() {
		if e.early != early {
			continue
		}
		f, err := e.open(ctx, face.Deps{
			Engine: n.engine.As(e.owner), Logger: n.log, Metrics: n.metrics, Version: n.version, Limits: n.limits, Audit: audited(n.trail),
			KV: n.store.Scope(e.owner, true),
		})
		if err != nil {
			return nil, err
		}
		all = append(all, f)
	}
	return all, nil
}

func openCRI(n *node) func(context.Context, face.Deps) (face.Face, error) {
	return func(ctx context.Context, d face.Deps) (face.Face, error) {
		profiles, err := n.openProfiles(ctx)
		if err != nil {
			return nil, err
		}
		f, err := cri.New(cri.Options{
			Profiles: profiles,
			Deps:     d, Config: n.cfg.Face.CRI, NRI: n.nri, ImageRoot: filepath.Join(n.cfg.Agent.Root, "image"),
			StateDir: n.cfg.Agent.State, Checkpoint: n.criu.check, Checkpoints: checkpointsOf(n), Archives: podcheckpoint.Images{Get: d.Engine.Images.Get, Permitted: n.cfg.Checkpoint.Images, Export: func(ctx context.Context, ref string, w io.Writer) error {
				return n.images.Export(ctx, core.OwnerCRI, []string{ref}, w)
			}}, WritableCgroups: n.cgroups.Writable, Alpha: n.engine.As(core.OwnerCRIAlpha), Programs: n.programs,
		})
		if err != nil {
			return nil, err
		}
		scrapes := f.Scrapes()
		n.scrapes.Store(&scrapes)
		return f, f.Open(ctx)
	}
}

// openProfiles opens the store of seccomp profiles from registries.
func (n *node) openProfiles(ctx context.Context) (*secprofile.Store, error) {
	policy, err := json.Marshal(n.cfg.Images.Policy)
	if err != nil {
		return nil, err
	}
	return secprofile.Open(ctx, secprofile.Options{
		Dir: filepath.Join(n.cfg.Agent.Root, "security-profiles"), Images: n.engine.As(core.OwnerCRIProfiles).Images, Policy: string(digest.FromBytes(policy)),
		Export: func(ctx context.Context, id string, w io.Writer) error {
			return n.images.Export(ctx, core.OwnerCRIProfiles, []string{id}, w)
		},
	})
}

func openMesos(n *node) func(context.Context, face.Deps) (face.Face, error) {
	return func(_ context.Context, d face.Deps) (face.Face, error) {
		o := mesos.Options{Deps: d, Config: n.cfg.Face.Mesos, Root: n.cfg.Agent.Root, Level: n.level, Recovered: n.recovered}
		if o.Config.ShowAllOwners {
			o.All = mesos.ReaderOf(n.engine.All())
		}
		return mesos.New(o)
	}
}

func openDocker(n *node) func(context.Context, face.Deps) (face.Face, error) {
	return func(_ context.Context, d face.Deps) (face.Face, error) {
		driver := "cgroupfs"
		if n.systemdCgroups() {
			driver = "systemd"
		}
		var all *engine.Client
		if len(n.cfg.Face.Docker.Show) > 0 {
			all = n.engine.All()
		}
		return docker.New(docker.Options{
			All: all, Restart: n.restartOfCLI, CgroupDriver: driver, CDIDirs: n.cfg.Engine.CDIDirs, Swarm: n.swarmMember,
			Deps: d, Config: n.cfg.Face.Docker, Node: n.solo, Root: n.cfg.Agent.Root, Unified: func() bool { return n.cgroups.Mode() == core.CgroupV2 },
			Transfers: n.images, Paused: n.store.Scope("docker-commits", false), Removals: n.store.Scope("docker-removals", false), Execs: n.store.Scope("docker-execs", false), Namespaces: n.keeper.Namespaces, Networks: n.network,
			Others: []*engine.Client{n.engine.As(core.OwnerCLI)}, Bridge: n.cfg.Network.Bridge, Registry: n.cfg.Images.DefaultRegistry,
		})
	}
}

// restartOfCLI restarts a container of the command line.
func (n *node) restartOfCLI(ctx context.Context, c core.Container, o engine.StopOptions) error {
	return n.control.Restart(ctx, c, o)
}

// swarmMember returns the node's membership of a Swarm in the form of Docker's API. A worker does not know the ids of its
// managers.
func (n *node) swarmMember() dockertypes.Swarm {
	doc := dockertypes.Swarm{LocalNodeState: "inactive"}
	if n.swarm == nil {
		return doc
	}
	st := n.swarm.Status()
	doc.NodeID, doc.Error = st.NodeID, st.Error
	if st.NodeID != "" {
		doc.LocalNodeState = "active"
	}
	for _, addr := range st.Managers {
		doc.RemoteManagers = append(doc.RemoteManagers, dockertypes.Manager{Addr: addr})
	}
	return doc
}

func openSwarm(n *node) func(context.Context, face.Deps) (face.Face, error) {
	return func(_ context.Context, d face.Deps) (face.Face, error) {
		f, err := swarm.New(swarm.Options{
			Deps: d, Config: n.cfg.Face.Swarm, Root: filepath.Join(n.cfg.Agent.Root, "swarm"), State: filepath.Join(n.cfg.Agent.State, "swarm"),
			Overlays: n.network.Overlays, Gossip: gossipFactory{networkdb.Factory{Logger: n.log}}, Memory: n.keeper.Held(), FailPoint: failPoint(os.Getenv(failPointEnv)),
		})
		if err != nil {
			return nil, err
		}
		n.swarm = f
		return f, nil
	}
}

// membershipOf adapts the Swarm face to control.Membership. It returns nil without the face.
func membershipOf(f *swarm.Face) control.Membership {
	if f == nil {
		return nil
	}
	return membership{f}
}

type membership struct{ face *swarm.Face }

// Join implements control.Membership.
func (m membership) Join(ctx context.Context, r control.JoinRequest) (control.SwarmStatus, error) {
	s, err := m.face.Join(ctx, swarm.JoinRequest{Addr: r.Addr, Token: r.Token, Availability: r.Availability})
	return swarmStatus(s), err
}

// Leave implements control.Membership.
func (m membership) Leave(ctx context.Context) error { return m.face.Leave(ctx) }

// Status implements control.Membership.
func (m membership) Status() control.SwarmStatus { return swarmStatus(m.face.Status()) }

func swarmStatus(s swarm.Status) control.SwarmStatus {
	o := control.SwarmOverlays{Unable: s.Overlays.Unable, Gossip: s.Overlays.Gossip, Taken: s.Overlays.Taken}
	for _, m := range s.Overlays.Members {
		o.Members = append(o.Members, m.String())
	}
	for _, n := range s.Overlays.Networks {
		o.Networks = append(o.Networks, control.SwarmOverlay{ID: n.ID, Name: n.Name, Tasks: n.Tasks, Peers: n.Others, Announced: n.Announced, Error: n.Error})
	}
	return control.SwarmStatus{
		Node: s.NodeID, Cluster: s.ClusterID, Session: s.Session, Manager: s.Manager, Managers: s.Managers, Error: s.Error, Tasks: s.Tasks,
		CertificateEnds: s.CertificateEnds, Overlays: o,
	}
}

// rangesOfOthers returns the default ranges of overlay networks in a Swarm.
func rangesOfOthers(c config.Config) []netip.Prefix {
	if !c.Face.Swarm.Enabled {
		return nil
	}
	return []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
}
