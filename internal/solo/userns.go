package solo

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo/translate"
)

// The ranges of the node's ids for containers in user namespaces of their own: far above those of
// kubelets' and Nomad's containers.
const (
	firstIDs  = uint32(25600) * translate.UserIDs
	idsRanges = 3072
)

// idRanges allocates ranges of ids for containers in user namespaces of their own. It finds the ranges in use in the
// sandboxes, and stores nothing.
type idRanges struct {
	mu       sync.Mutex      // guards reserved
	reserved map[uint32]bool // by creations that have no sandbox yet
}

// take allocates a range of ids for a sandbox. It stays reserved until release.
func (r *idRanges) take(sandboxes []core.Sandbox, cfg *core.SandboxConfig) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := map[uint32]bool{}
	for _, sb := range sandboxes {
		for _, m := range append(append([]specs.LinuxIDMapping{}, sb.Config.UIDs...), sb.Config.GIDs...) {
			for first := m.HostID / translate.UserIDs; first <= (m.HostID+max(m.Size, 1)-1)/translate.UserIDs; first++ {
				used[first*translate.UserIDs] = true
			}
		}
	}
	for i := range uint32(idsRanges) {
		first := firstIDs + i*translate.UserIDs
		if used[first] || r.reserved[first] {
			continue
		}
		if r.reserved == nil {
			r.reserved = map[uint32]bool{}
		}
		r.reserved[first] = true
		cfg.UIDs, cfg.GIDs = []specs.LinuxIDMapping{{HostID: first, Size: translate.UserIDs}}, []specs.LinuxIDMapping{{HostID: first, Size: translate.UserIDs}}
		return func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.reserved, first)
		}, nil
	}
	return nil, fmt.Errorf("all %d ranges of ids for user namespaces are taken: %w", idsRanges, errdefs.ErrUnavailable)
}

// users allocates ids for a container in a user namespace of its own, and refuses a runtime that cannot map them. The
// caller calls release when the sandbox exists.
func (s *Service) users(ctx context.Context, cfg *core.SandboxConfig) (release func(), err error) {
	if cfg.Namespaces.User.Mode != core.Shared {
		return func() {}, nil
	}
	runtimes, err := s.own.Runtimes(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range runtimes {
		if (r.Name == cfg.Runtime || cfg.Runtime == "" && r.Default) && (!r.Features.UserNamespaces || !r.Features.IDMappedMounts) {
			return nil, invalid.Errorf("runtime %s has no user namespaces or no id-mapped mounts", r.Name)
		}
	}
	all, err := s.all.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return nil, err
	}
	return s.node.ids.take(all, cfg)
}
