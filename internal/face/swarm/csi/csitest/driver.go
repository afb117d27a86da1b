// Package csitest is a driver of cluster volumes for tests: controller and node in one,
// on a socket, with directories as volumes. It refuses what a driver must refuse, counts
// what it is asked, and may hang or fail.
//
// It knows no Swarm. Start at New.
package csitest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Driver is one.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	// Socket is where it answers.
	Socket string
	// Node is what it calls the node.
	Node string
	// Staging says that it stages volumes.
	Staging bool
	// Secret is what each volume must come with; nil is nothing.
	Secret map[string]string
	// Mount and Unmount show the directory of a volume at another path; nil makes and
	// removes an empty directory.
	Mount   func(source, target string, readOnly bool) error
	Unmount func(target string) error

	dir    string
	server *grpc.Server

	mu        sync.Mutex // guards hook, calls, staged, published, changed
	hook      func(ctx context.Context, call string) error
	calls     []string
	staged    map[string]string // the path by the volume
	published map[string]string
	changed   chan struct{} // closed at the next call
}

// New starts a driver, which ends with the test. Its volumes are below dir.
func New(tb testing.TB, dir string) *Driver {
	tb.Helper()
	d := &Driver{
		Socket: filepath.Join(dir, "csi.sock"), Node: "here", Staging: true, dir: dir,
		staged: map[string]string{}, published: map[string]string{}, changed: make(chan struct{}),
	}
	d.Up(tb)
	return d
}

// Up has the driver answer; its volumes are as they were.
func (d *Driver) Up(tb testing.TB) {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "unix", d.Socket)
	if err != nil {
		tb.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(d.asked))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterControllerServer(server, d)
	csi.RegisterNodeServer(server, d)
	d.server = server
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	tb.Cleanup(func() {
		server.Stop()
		<-done
	})
}

// Down ends the driver; calls that are under way are cut off.
func (d *Driver) Down() { d.server.Stop() }

// Hook is asked before each call; an error is the answer. nil asks nobody.
func (d *Driver) Hook(fn func(ctx context.Context, call string) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = fn
}

func (d *Driver) asked(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	call := filepath.Base(info.FullMethod)
	if v, ok := req.(interface{ GetVolumeId() string }); ok {
		call += " " + v.GetVolumeId()
	}
	d.mu.Lock()
	d.calls = append(d.calls, call)
	hook := d.hook
	d.signalLocked()
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.signalLocked()
	}()
	if hook != nil {
		if err := hook(ctx, call); err != nil {
			return nil, err
		}
	}
	return next(ctx, req)
}

// signalLocked wakes the waiters of Changed. Preconditions: mu is held.
func (d *Driver) signalLocked() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// Calls are those that there were, in their order: the name, and the volume's id.
func (d *Driver) Calls() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Changed is closed at the begin or the end of the next call.
func (d *Driver) Changed() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.changed
}

// Holds are the volumes that are staged or published.
func (d *Driver) Holds() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := maps.Clone(d.staged)
	maps.Copy(all, d.published)
	return slices.Sorted(maps.Keys(all))
}

// Volume is the directory of a volume's content.
func (d *Driver) Volume(id string) string { return filepath.Join(d.dir, "volume-"+id) }

// GetPluginInfo implements csi.IdentityServer.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "longshore.test", VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements csi.IdentityServer.
func (d *Driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: service}}}}, nil
}

// Probe implements csi.IdentityServer.
func (d *Driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// ControllerGetCapabilities implements csi.ControllerServer.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	var list []*csi.ControllerServiceCapability
	for _, c := range []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME} {
		list = append(list, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}}})
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: list}, nil
}

// CreateVolume implements csi.ControllerServer.
func (d *Driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	id := "of-" + req.GetName()
	if err := os.MkdirAll(d.Volume(id), 0o777); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: id, VolumeContext: map[string]string{"name": req.GetName()}}}, nil
}

// DeleteVolume implements csi.ControllerServer.
func (d *Driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if slices.Contains(d.Holds(), req.GetVolumeId()) {
		return nil, status.Error(codes.FailedPrecondition, "the volume is used")
	}
	if err := os.RemoveAll(d.Volume(req.GetVolumeId())); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerPublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerPublishVolume(_ context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	if req.GetNodeId() != d.Node {
		return nil, status.Errorf(codes.NotFound, "node %q", req.GetNodeId())
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{"lun": "7"}}, nil
}

// ControllerUnpublishVolume implements csi.ControllerServer.
func (d *Driver) ControllerUnpublishVolume(_ context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	if slices.Contains(d.Holds(), req.GetVolumeId()) {
		return nil, status.Error(codes.FailedPrecondition, "the node has the volume")
	}
	return &csi.ControllerUnpublishVolumeResponse{}, nil
}

// NodeGetInfo implements csi.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.Node, MaxVolumesPerNode: 10}, nil
}

// NodeGetCapabilities implements csi.NodeServer.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	if !d.Staging {
		return &csi.NodeGetCapabilitiesResponse{}, nil
	}
	rpc := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

// NodeStageVolume implements csi.NodeServer.
func (d *Driver) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if req.GetVolumeCapability().GetMount() == nil || !maps.Equal(req.GetSecrets(), d.Secret) {
		return nil, status.Errorf(codes.InvalidArgument, "stage: no capability, or the wrong secrets")
	}
	if st, err := os.Stat(req.GetStagingTargetPath()); err != nil || !st.IsDir() {
		return nil, status.Errorf(codes.InvalidArgument, "staging path %q: %v", req.GetStagingTargetPath(), err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.staged[req.GetVolumeId()] = req.GetStagingTargetPath()
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodePublishVolume implements csi.NodeServer.
func (d *Driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	id := req.GetVolumeId()
	if d.Staging && (d.staged[id] == "" || d.staged[id] != req.GetStagingTargetPath()) || !maps.Equal(req.GetSecrets(), d.Secret) {
		return nil, status.Error(codes.FailedPrecondition, "publish: the volume is not staged there, or the wrong secrets")
	}
	if d.published[id] == req.GetTargetPath() {
		return &csi.NodePublishVolumeResponse{}, nil
	}
	err := os.Mkdir(req.GetTargetPath(), 0o755)
	if err == nil && d.Mount != nil {
		err = os.MkdirAll(d.Volume(id), 0o777)
	}
	if err == nil && d.Mount != nil {
		err = d.Mount(d.Volume(id), req.GetTargetPath(), req.GetReadonly())
	}
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	d.published[id] = req.GetTargetPath()
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume implements csi.NodeServer.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.published[req.GetVolumeId()] == "" {
		return &csi.NodeUnpublishVolumeResponse{}, nil
	}
	if d.Unmount != nil {
		if err := d.Unmount(req.GetTargetPath()); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	if err := os.Remove(req.GetTargetPath()); err != nil {
		return nil, status.Error(codes.Internal, fmt.Sprint("remove: ", err))
	}
	delete(d.published, req.GetVolumeId())
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeUnstageVolume implements csi.NodeServer.
func (d *Driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.published[req.GetVolumeId()] != "" {
		return nil, status.Error(codes.FailedPrecondition, "the volume is published")
	}
	delete(d.staged, req.GetVolumeId())
	return &csi.NodeUnstageVolumeResponse{}, nil
}
