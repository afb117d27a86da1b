package cri

import (
	"context"
	"net"

	"github.com/opencontainers/go-digest"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/alpha"
	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/programs"
)

// variant has the differences of a server from that of v1.
type variant struct {
	owner core.Owner
	// paths resolves the node's paths in requests; nil takes them as they are.
	paths *alpha.Paths
	// makes says to make a missing source of a mount below paths as a directory.
	makes bool
	// programs are images that are one file; nil has none.
	programs *programs.Store
}

// source returns where a mount's source is, and the directory below which no link is followed on the
// way to it.
func (v variant) source(m *v1.Mount) (source, below string, err error) {
	if v.paths == nil {
		return m.GetHostPath(), "", nil
	}
	find := v.paths.Find
	if v.makes {
		find = v.paths.FindOrMake
	}
	if source, err = find(m.GetHostPath()); err != nil {
		return "", "", invalid.Errorf("mount %s: host path: %v", m.GetContainerPath(), err)
	}
	return source, v.paths.Root(), nil
}

// logDirectory returns where a pod's log directory is.
func (v variant) logDirectory(dir string) (string, error) {
	if v.paths == nil || dir == "" {
		return dir, nil
	}
	return v.paths.LogDirectory(dir)
}

// adapt changes the parts of a container that differ in this variant.
func (v variant) adapt(c *core.ContainerConfig, program string) {
	if v.paths != nil {
		for i := range c.IO.Sinks {
			s := &c.IO.Sinks[i]
			s.Format, s.Below, s.MaxBytes, s.MaxFiles = core.FormatCRIPlain, v.paths.Root(), 0, 0
		}
	}
	if program != "" {
		c.Root = core.Root{Dir: v.programs.Dir(), ReadOnly: true}
	}
}

// image finds a container's image, or its program, and compares the program's file with its name.
func (s *server) image(ctx context.Context, ref string) (i core.Image, name string, err error) {
	if s.as.programs.Has(ref) {
		if err := s.as.programs.Verify(ctx, ref); err != nil {
			return i, "", err
		}
		return core.Image{ID: digest.Digest(ref), Names: []string{ref}}, ref, nil
	}
	i, err = s.engine.Images.Get(ctx, ref)
	return i, "", err
}

// servers are the servers with containers for clients of the streaming server. The IDs of all
// owners differ.
type servers []*server

// of returns the one that has an object.
func (all servers) of(has func(*server) error) (b backend, err error) {
	for _, s := range all {
		if err = has(s); err == nil {
			return backend{s}, nil
		}
	}
	return b, err
}

func (all servers) ofContainer(id string) (backend, error) {
	return all.of(func(s *server) error { _, err := storedContainer(s.engine, id); return err })
}

// Exec implements stream.Backend.
func (all servers) Exec(ctx context.Context, req stream.Request, sess stream.Session) (int, error) {
	b, err := all.ofContainer(req.ID)
	if err != nil {
		return 0, err
	}
	return b.Exec(ctx, req, sess)
}

// Attach implements stream.Backend.
func (all servers) Attach(ctx context.Context, req stream.Request, sess stream.Session) error {
	b, err := all.ofContainer(req.ID)
	if err != nil {
		return err
	}
	return b.Attach(ctx, req, sess)
}

// Dial implements stream.Backend.
func (all servers) Dial(ctx context.Context, sandbox string, port uint16) (net.Conn, error) {
	b, err := all.of(func(s *server) error { _, err := storedSandbox(s.engine, sandbox); return err })
	if err != nil {
		return nil, err
	}
	return b.Dial(ctx, sandbox, port)
}
