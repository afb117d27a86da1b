package agent

import (
	"context"
	"path/filepath"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/face/mesos"
	"github.com/longshore/longshore/internal/face/nomad"
)

// faceEntry is one face in the table of faces.
type faceEntry struct {
	name    string     // of the face, and of its section of the config: [face.NAME]
	owner   core.Owner // whose objects it makes and sees
	enabled bool       // by the config
	// sockets are what it listens on, in this order; a face that dials out has none.
	sockets []socket
	// early says that it serves before the engine has recovered, which it learns by
	// node.recovered.
	early bool
	// open makes the face, and opens what has to be open before any face serves.
	open func(ctx context.Context, d face.Deps) (face.Face, error)
}

// socket is where a face listens.
type socket struct {
	name    string // by which systemd hands it over
	address string // an absolute path, or host:port for TCP; "" listens only on what systemd hands over
}

// faceTable has every face that this agent can serve. A new one needs a line here
// and a section in config.Faces.
func (n *node) faceTable() []faceEntry {
	c := n.cfg.Face
	return []faceEntry{
		{
			name: cri.Name, owner: core.OwnerCRI, enabled: c.CRI.Enabled,
			sockets: []socket{{"cri", c.CRI.Socket}, {"cri-image", c.CRI.ImageSocket}},
			open:    openCRI(n),
		},
		{
			name: nomad.Name, owner: core.OwnerNomad, enabled: c.Nomad.Enabled,
			sockets: []socket{{"nomad", c.Nomad.Socket}},
			open: func(_ context.Context, d face.Deps) (face.Face, error) {
				return nomad.New(nomad.Options{Deps: d, Config: c.Nomad})
			},
		},
		{
			name: mesos.Name, owner: core.OwnerMesos, enabled: c.Mesos.Enabled,
			sockets: []socket{{"mesos", c.Mesos.Socket}, {"mesos-tcp", c.Mesos.Listen}},
			early:   true, // Mesos' clients know an answer for an agent that recovers
			open:    openMesos(n),
		},
	}
}

// enabledFaces are the entries of the faces that the config enables.
func (n *node) enabledFaces() (enabled []faceEntry) {
	for _, e := range n.faceTable() {
		if e.enabled {
			enabled = append(enabled, e)
		}
	}
	return enabled
}

// openFaces makes the faces that the config enables, of those that serve early or of
// the others.
func (n *node) openFaces(ctx context.Context, early bool) ([]face.Face, error) {
	var all []face.Face
	for _, e := range n.enabledFaces() {
		if e.early != early {
			continue
		}
		f, err := e.open(ctx, face.Deps{
			Engine: n.engine.As(e.owner), Logger: n.log, Metrics: n.metrics, Version: n.version, Limits: n.limits,
			Drawer: n.store.Scope(e.owner, true),
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
		f, err := cri.New(cri.Options{
			Deps: d, Config: n.cfg.Face.CRI, NRI: n.nri, ImageRoot: filepath.Join(n.cfg.Agent.Root, "image"),
			StateDir: n.cfg.Agent.State, Checkpoint: n.criu.check,
		})
		if err != nil {
			return nil, err
		}
		return f, f.Open(ctx)
	}
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
