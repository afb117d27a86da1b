package kata

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	katatypes "github.com/longshore/longshore/api/kata/v1/types"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/guest"
)

// sandboxKey is the key of the one sandbox that an agent has. The shim's id of it may be
// empty, and is a label.
const (
	sandboxKey  = core.Key("sandbox")
	sandboxName = "kata.sandbox"
)

// CreateSandbox implements katav1.AgentServiceService.
func (s *service) CreateSandbox(ctx context.Context, req *katav1.CreateSandboxRequest) (*emptypb.Empty, error) {
	f := s.face
	if id := req.GetSandboxId(); id != "" {
		if err := checkID("sandbox", id); err != nil {
			return nil, err
		}
	}
	f.making.Lock()
	defer f.making.Unlock()
	switch _, err := f.o.Engine.SandboxByKey(ctx, sandboxKey); {
	case err == nil:
		return nil, refuse(codes.AlreadyExists, "this machine has its sandbox already; DestroySandbox ends it")
	case !errdefs.IsNotFound(err):
		return nil, err
	}
	host, own := core.Namespace{Mode: core.Host}, core.Namespace{Mode: core.Shared}
	cfg := core.SandboxConfig{
		Key: sandboxKey, Labels: map[string]string{sandboxName: req.GetSandboxId()}, Hostname: req.GetHostname(),
		Namespaces: core.Namespaces{Net: host, Cgroup: host, IPC: own, UTS: own},
	}
	if req.GetSandboxPidns() {
		cfg.Namespaces.PID = own
	}
	if cfg.Hostname == "" {
		name, err := os.Hostname()
		if err != nil {
			return nil, err
		}
		cfg.Hostname = name
	}
	list, err := storages(req.GetStorages())
	if err != nil {
		return nil, err
	}
	mounted, err := f.mountAll(ctx, list)
	if err != nil {
		return nil, err
	}
	if err := f.prepare(ctx, req); err != nil {
		f.unmountAll(ctx, mounted)
		return nil, err
	}
	if _, err := f.o.Engine.CreateSandbox(ctx, cfg); err != nil {
		f.unmountAll(ctx, mounted)
		f.dropDNS(ctx)
		return nil, err
	}
	f.mounted = mounted
	return &emptypb.Empty{}, nil
}

// prepare sets up the machine for a sandbox: modules, name servers, hooks. Preconditions: making is
// held.
func (f *Face) prepare(ctx context.Context, req *katav1.CreateSandboxRequest) (err error) {
	for _, m := range req.GetKernelModules() {
		if err := f.o.Machine.LoadModule(ctx, m.GetName(), m.GetParameters()); err != nil {
			return err
		}
	}
	f.hooks = guest.Hooks{}
	if dir := req.GetGuestHookPath(); dir != "" {
		if f.hooks, err = f.o.Machine.FindHooks(dir); err != nil {
			f.o.Logger.WarnContext(ctx, "not all hooks of the guest were found; containers run without the others", "directory", dir, "error", err)
		}
	}
	if len(req.GetDns()) > 0 {
		f.undoDNS, err = f.o.Machine.SetDNS(req.GetDns())
	}
	return err
}

// dropDNS takes the sandbox's name servers away. Preconditions: making is held.
func (f *Face) dropDNS(ctx context.Context) {
	if f.undoDNS == nil {
		return
	}
	if err := f.undoDNS(); err != nil {
		f.o.Logger.WarnContext(ctx, "could not remove the sandbox's name servers", "error", err)
	}
	f.undoDNS = nil
}

// Release reverts the machine's setup of an undestroyed sandbox, except its storages. Call it after
// Serve.
func (f *Face) Release(ctx context.Context) {
	f.making.Lock()
	defer f.making.Unlock()
	f.dropDNS(ctx)
}

// storages are the machine's form of storages.
func storages(in []*katav1.Storage) (out []guest.Storage, err error) {
	for _, s := range in {
		one := guest.Storage{
			Driver: s.GetDriver(), DriverOptions: s.GetDriverOptions(), Source: s.GetSource(), Type: s.GetFstype(), Options: s.GetOptions(),
			Target: strings.TrimSuffix(s.GetMountPoint(), "/"), // shims name the shared directory with one
			Shared: s.GetShared(),
		}
		if g := s.GetFsGroup(); g != nil {
			if g.GetGroupId() > math.MaxInt32 {
				return nil, fmt.Errorf("storage at %s: there is no group %d", clip(s.GetMountPoint()), g.GetGroupId())
			}
			one.Group = &guest.Group{ID: int(g.GetGroupId()), OnMismatch: g.GetGroupChangePolicy() == katatypes.FSGroupChangePolicy_OnRootMismatch}
		}
		out = append(out, one)
	}
	return guest.JoinLayers(out)
}

// mountAll mounts storages in their order; when one fails none stays.
func (f *Face) mountAll(ctx context.Context, list []guest.Storage) (done []guest.Storage, err error) {
	for _, s := range list {
		if err := f.o.Machine.Mount(ctx, s); err != nil {
			f.unmountAll(ctx, done)
			return nil, err
		}
		done = append(done, s)
	}
	return done, nil
}

func (f *Face) unmountAll(ctx context.Context, list []guest.Storage) {
	for i := len(list) - 1; i >= 0; i-- {
		if err := f.o.Machine.Unmount(context.WithoutCancel(ctx), list[i]); err != nil {
			f.o.Logger.WarnContext(ctx, "could not unmount a storage", "target", list[i].Target, "error", err)
		}
	}
}

// sandbox returns the sandbox; FAILED_PRECONDITION when there is none yet.
func (f *Face) sandbox(ctx context.Context) (core.Sandbox, error) {
	sb, err := f.o.Engine.SandboxByKey(ctx, sandboxKey)
	if errdefs.IsNotFound(err) {
		return sb, refuse(codes.FailedPrecondition, "there is no sandbox: CreateSandbox comes first")
	}
	return sb, err
}

// DestroySandbox implements katav1.AgentServiceService. It succeeds without a sandbox,
// and then too the agent ends.
func (s *service) DestroySandbox(ctx context.Context, _ *katav1.DestroySandboxRequest) (*emptypb.Empty, error) {
	f := s.face
	f.making.Lock()
	defer f.making.Unlock()
	sb, err := f.o.Engine.SandboxByKey(ctx, sandboxKey)
	switch {
	case err == nil:
		left, err := f.o.Engine.Containers(ctx, core.Filter{Sandbox: sb.ID})
		if err != nil {
			return nil, err
		}
		if err := f.o.Engine.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: request("DestroySandbox", 0)}); err != nil {
			return nil, err
		}
		for i := range left {
			f.gone(&left[i])
		}
	case !errdefs.IsNotFound(err):
		return nil, err
	}
	f.outs.close()
	f.unmountAll(ctx, f.mounted)
	f.mounted = nil
	f.dropDNS(ctx)
	if !f.ended {
		f.ended = true
		close(f.destroyed)
	}
	return &emptypb.Empty{}, nil
}

// GetGuestDetails implements katav1.AgentServiceService.
func (s *service) GetGuestDetails(_ context.Context, req *katav1.GuestDetailsRequest) (*katav1.GuestDetailsResponse, error) {
	m := s.face.o.Machine
	answer := &katav1.GuestDetailsResponse{AgentDetails: &katav1.AgentDetails{
		Version: s.face.o.Version, InitDaemon: m.First(), StorageHandlers: m.Drivers(), DeviceHandlers: m.DeviceTypes(), SupportsSeccomp: true, ExtraFeatures: []string{"seccomp"},
	}}
	if p := s.face.o.Policy; p != nil && p.Served() {
		answer.AgentDetails.ExtraFeatures = []string{policyFeature, "seccomp"}
	}
	if req.GetMemBlockSize() || req.GetMemHotplugProbe() {
		size, probe, err := m.MemoryBlock()
		if err != nil {
			return nil, err
		}
		if req.GetMemBlockSize() {
			answer.MemBlockSizeBytes = size
		}
		if req.GetMemHotplugProbe() {
			answer.SupportMemHotplugProbe = probe
		}
	}
	return answer, nil
}
