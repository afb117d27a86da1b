package cri

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// isImage reports whether a mount shows an image.
func isImage(m *v1.Mount) bool { return m.GetImage().GetImage() != "" }

// imageVolumes finds the images that mounts name.
func (s *server) imageVolumes(ctx context.Context, mounts []*v1.Mount) (map[string]core.Image, error) {
	var found map[string]core.Image
	for _, m := range mounts {
		if !isImage(m) {
			continue
		}
		img, err := s.engine.Images.Get(ctx, m.GetImage().GetImage())
		if err != nil {
			return nil, fmt.Errorf("mount %s: image %s: %w", m.GetContainerPath(), m.GetImage().GetImage(), err)
		}
		if found == nil {
			found = map[string]core.Image{}
		}
		found[m.GetContainerPath()] = img
	}
	return found, nil
}

// imageMounts are the images to be mounted, in the order of the request.
func (a containerAsk) imageMounts() (list []core.ImageMount) {
	for _, m := range a.req.GetConfig().GetMounts() {
		if isImage(m) {
			list = append(list, core.ImageMount{Image: a.volumes[m.GetContainerPath()].ID, SubPath: m.GetImageSubPath()})
		}
	}
	return list
}

// nameVolumes has the status say which image each volume is.
func (a containerAsk) nameVolumes(rec containerRecord) {
	for _, m := range rec.Config.GetMounts() {
		if img, ok := a.volumes[m.GetContainerPath()]; ok && isImage(m) {
			m.Image.ImageRef = string(img.ID)
		}
	}
}

// imageMount is read-only always; its source is filled in when it is mounted.
func (a containerAsk) imageMount(m *v1.Mount) (specs.Mount, error) {
	target := m.GetContainerPath()
	sub := m.GetImageSubPath()
	switch {
	case target == "" || nul(target+sub):
		return specs.Mount{}, invalid.Errorf("mount of image %s at %q", m.GetImage().GetImage(), target)
	case m.GetHostPath() != "":
		return specs.Mount{}, invalid.Errorf("mount %s: image and host path", target)
	case !m.GetReadonly():
		return specs.Mount{}, invalid.Errorf("mount %s: an image volume is read-only, readonly must be set", target)
	case m.GetPropagation() != v1.MountPropagation_PROPAGATION_PRIVATE:
		return specs.Mount{}, invalid.Errorf("mount %s: image volume with propagation %s", target, m.GetPropagation())
	case sub != "" && !filepath.IsLocal(strings.TrimPrefix(sub, "/")):
		return specs.Mount{}, invalid.Errorf("mount %s: image sub-path %q", target, sub)
	}
	n := 0
	for _, o := range a.req.GetConfig().GetMounts() {
		if o == m {
			break
		}
		if isImage(o) {
			n++
		}
	}
	return withOptions(ocispec.ImageMount(path.Clean("/"+target), n), m)
}
