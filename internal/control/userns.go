package control

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// The ranges of the node's ids for containers in user namespaces of their own: far above those of
// kubelets' and Nomad's containers.
const (
	idsSize   = uint32(65536)
	firstIDs  = uint32(25600) * idsSize
	idsRanges = 3072
)

const privateUsers = "private"

// idRanges gives each container that wants a user namespace ids that no other object of the node has.
// Those in use are read from the sandboxes, so that nothing is stored.
type idRanges struct {
	mu   sync.Mutex      // guards held
	held map[uint32]bool // by creations that have no sandbox yet
}

// take gives a sandbox ids. They stay taken until release.
func (r *idRanges) take(sandboxes []core.Sandbox, cfg *core.SandboxConfig) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	used := map[uint32]bool{}
	for _, sb := range sandboxes {
		for _, m := range append(append([]specs.LinuxIDMapping{}, sb.Config.UIDs...), sb.Config.GIDs...) {
			for first := m.HostID / idsSize; first <= (m.HostID+max(m.Size, 1)-1)/idsSize; first++ {
				used[first*idsSize] = true
			}
		}
	}
	for i := range uint32(idsRanges) {
		first := firstIDs + i*idsSize
		if used[first] || r.held[first] {
			continue
		}
		if r.held == nil {
			r.held = map[uint32]bool{}
		}
		r.held[first] = true
		cfg.UIDs, cfg.GIDs = []specs.LinuxIDMapping{{HostID: first, Size: idsSize}}, []specs.LinuxIDMapping{{HostID: first, Size: idsSize}}
		return func() {
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.held, first)
		}, nil
	}
	return nil, fmt.Errorf("all %d ranges of ids for user namespaces are taken: %w", idsRanges, errdefs.ErrUnavailable)
}

// checkUserns refuses options that conflict with a user namespace of the container's own.
func checkUserns(req *longshorev1.CreateRequest, cfg *core.SandboxConfig) error {
	switch req.GetUserns() {
	case "", "host":
		return nil
	case privateUsers:
	default:
		return invalid.Errorf("user namespace %q is neither host nor private", req.GetUserns())
	}
	for what, asked := range map[string]bool{
		"privileged": req.GetPrivileged(), "ipc host": req.GetIpc() == "host", "pid host": req.GetPid() == "host", "uts host": req.GetUts() == "host", "network host": req.GetNetwork() == "host",
	} {
		if asked {
			return invalid.Errorf("a private user namespace cannot be combined with %s", what)
		}
	}
	cfg.Namespaces.User.Mode = core.Shared
	if cfg.Sysctls != nil { // the sysctl cannot have groups outside of the namespace
		cfg.Sysctls["net.ipv4.ping_group_range"] = fmt.Sprintf("0 %d", idsSize-1)
	}
	return nil
}

// users gives a container ids, if it wants a user namespace, from a runtime that can map them. They
// stay its own until release, by when it has a sandbox.
func (s *Server) users(ctx context.Context, cfg *core.SandboxConfig) (release func(), err error) {
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
	return s.ids.take(all, cfg)
}
