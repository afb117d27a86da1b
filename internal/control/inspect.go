package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/longshore/longshore/internal/solo"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
)

// Inspect returns a container or, when no container has the name, a sandbox.
func (s *containerServer) Inspect(ctx context.Context, req *longshorev1.InspectRequest) (*longshorev1.InspectResponse, error) {
	showEnv := req.GetShowEnv() && !access.ReadOnly(ctx)
	c, err := s.srv.container(ctx, req.GetName())
	if err == nil {
		return s.srv.inspectContainer(ctx, c, showEnv)
	}
	if !errdefs.IsNotFound(err) {
		return nil, err
	}
	sb, serr := s.srv.sandbox(ctx, req.GetName())
	if errdefs.IsNotFound(serr) {
		return nil, fmt.Errorf("find a container or sandbox %q: %w", req.GetName(), errdefs.ErrNotFound)
	}
	if serr != nil {
		return nil, serr
	}
	out, err := view.JSON(sb, nil, showEnv)
	if err != nil {
		return nil, err
	}
	return &longshorev1.InspectResponse{Kind: "sandbox", Json: out}, nil
}

// inspectContainer returns the record of a container, with its spec, the name of its image, and its
// network, which are recorded elsewhere.
func (s *Server) inspectContainer(ctx context.Context, c core.Container, showEnv bool) (*longshorev1.InspectResponse, error) {
	rec := solo.RecordOf(c)
	if view.NeverRan(&c) {
		c.State, c.Main.Autopsy, c.Main.Finished = core.ContainerCreated, nil, time.Time{}
	}
	c.SavedSpec = "" // extra has the spec, and the saved one shows the environment
	extra := map[string]any{"image_name": rec.Image, "auto_remove": rec.AutoRemove, "privileged": rec.Privileged}
	if s.o.Restricted != nil && s.o.Restricted() {
		c.Health = view.WithoutOutput(c.Health)
	}
	extra["health_status"], extra["health_check"] = healthDocument(c), checkDocument(c)
	if sb, err := s.all.Sandbox(ctx, c.Sandbox); err == nil {
		extra["network"] = view.Network(sb)
		extra["node_ids"] = sb.NodeIDs(&c.Config)
	}
	extra["name"] = c.Name()
	if rec.Image == "" && c.Config.Shown.Image != "" {
		extra["image_name"] = c.Config.Shown.Image
	} else if rec.Image == "" && c.Image != "" {
		names, err := s.imageNames(ctx)
		if err != nil {
			return nil, err
		}
		extra["image_name"] = names[c.Image]
	}
	if c.Owner == core.OwnerCLI {
		part, err := shownOf(rec)
		if err != nil {
			return nil, fmt.Errorf("inspect %s: %w", c.ID.Short(), err)
		}
		extra["asked"], extra["shown"] = rec.Settings, part
	}
	config, err := imageConfig(ctx, s, c.Image)
	if err != nil {
		return nil, err
	}
	extra["image_config"] = config
	if c.Bundle != "" {
		extra["layers"] = layers(filepath.Join(c.Bundle, "rootfs"))
		spec, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
		switch {
		case err == nil && json.Valid(spec):
			extra["spec"] = json.RawMessage(spec)
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("inspect %s: %w", c.ID.Short(), err)
		}
	}
	out, err := view.JSON(c, extra, showEnv)
	if err != nil {
		return nil, err
	}
	return &longshorev1.InspectResponse{Kind: "container", Json: out}, nil
}
