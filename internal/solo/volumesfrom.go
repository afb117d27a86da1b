package solo

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// volumesFrom adds the volumes and binds of the containers in volumes_from to a request, except at targets that the
// request has itself.
func (s *Service) volumesFrom(ctx context.Context, req *longshorev1.CreateRequest) error {
	taken := map[string]bool{}
	for _, m := range req.GetMounts() {
		taken[path.Clean(m.GetTarget())] = true
	}
	for _, t := range req.GetTmpfs() {
		taken[path.Clean(t.GetTarget())] = true
	}
	for _, m := range req.GetImages() {
		taken[path.Clean(m.GetTarget())] = true
	}
	for _, from := range req.GetVolumesFrom() {
		name, mode, _ := strings.Cut(from, ":")
		readOnly, relabel := false, ""
		for o := range strings.SplitSeq(mode, ",") {
			switch o {
			case "", "rw":
			case ocispec.RelabelShared, ocispec.RelabelPrivate:
				relabel = o
			case "ro":
				readOnly = true
			default:
				return invalid.Errorf("volumes from %q: %q is neither ro nor rw", from, o)
			}
		}
		c, err := s.o.Find(ctx, name)
		if err != nil {
			return err
		}
		if c.Owner != s.o.Owner {
			return fmt.Errorf("volumes from %s: it belongs to %s, and so do its volumes: %w", name, c.Owner, errdefs.ErrPermissionDenied)
		}
		var found []*longshorev1.Mount
		for _, v := range c.Config.Volumes {
			found = append(found, &longshorev1.Mount{Source: v.Name, Target: v.Target, ReadOnly: v.ReadOnly, SubPath: v.SubPath, NoCopy: v.NoCopy})
		}
		for _, b := range RecordOf(c).Settings.Binds {
			found = append(found, &longshorev1.Mount{Source: b.Source, Target: b.Target, ReadOnly: b.ReadOnly, Propagation: b.Propagation})
		}
		for _, m := range found {
			if at := path.Clean(m.GetTarget()); !taken[at] {
				taken[at] = true
				m.ReadOnly, m.Relabel = m.GetReadOnly() || readOnly, relabel
				req.Mounts = append(req.Mounts, m)
			}
		}
	}
	return nil
}
