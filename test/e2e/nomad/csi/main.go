// Command csi is a CSI plugin of the tests of a real Nomad: its volumes are
// directories below -dir, which it shows by bind mounts. It is controller and node in
// one, and runs as a task by the driver that is tested. Everything is served where
// CSI_ENDPOINT says.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func main() {
	dir := flag.String("dir", "/local", "directory of the volumes")
	flag.Parse()
	if err := serve(*dir); err != nil {
		log.Fatal(err)
	}
}

func serve(dir string) error {
	path, ok := strings.CutPrefix(os.Getenv("CSI_ENDPOINT"), "unix://")
	if !ok {
		return errors.New("CSI_ENDPOINT is not unix://PATH")
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "unix", path)
	if err != nil {
		return err
	}
	p := &plugin{dir: dir}
	s := grpc.NewServer()
	csi.RegisterIdentityServer(s, p)
	csi.RegisterControllerServer(s, p)
	csi.RegisterNodeServer(s, p)
	return s.Serve(l)
}

// plugin implements the three services.
type plugin struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	dir string
}

// GetPluginInfo implements the identity service.
func (p *plugin) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "longshore.test", VendorVersion: "1"}, nil
}

// GetPluginCapabilities implements the identity service.
func (p *plugin) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	service := &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_CONTROLLER_SERVICE}
	return &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{Service: service}}}}, nil
}

// Probe implements the identity service.
func (p *plugin) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{}, nil
}

// volume is the directory of a volume.
func (p *plugin) volume(id string) (string, error) {
	if id == "" || !filepath.IsLocal(id) || strings.Contains(id, "/") {
		return "", status.Errorf(codes.InvalidArgument, "volume id %q", id)
	}
	return filepath.Join(p.dir, id), nil
}

// ControllerGetCapabilities implements the controller service.
func (p *plugin) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	rpc := &csi.ControllerServiceCapability_RPC{Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{Type: &csi.ControllerServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

// CreateVolume implements the controller service.
func (p *plugin) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	dir, err := p.volume(req.GetName())
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err != nil {
		return nil, err
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: req.GetName(), CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}}, nil
}

// DeleteVolume implements the controller service.
func (p *plugin) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	dir, err := p.volume(req.GetVolumeId())
	if err == nil {
		err = os.RemoveAll(dir)
	}
	return &csi.DeleteVolumeResponse{}, err
}

// ValidateVolumeCapabilities implements the controller service.
func (p *plugin) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: req.GetVolumeCapabilities()}}, nil
}

// NodeGetInfo implements the node service.
func (p *plugin) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "node", MaxVolumesPerNode: 10}, nil
}

// NodeGetCapabilities implements the node service.
func (p *plugin) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	rpc := &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{Rpc: rpc}}}}, nil
}

// NodeStageVolume implements the node service.
func (p *plugin) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	dir, err := p.volume(req.GetVolumeId())
	if err == nil {
		err = bind(dir, req.GetStagingTargetPath(), false)
	}
	return &csi.NodeStageVolumeResponse{}, err
}

// NodePublishVolume implements the node service: what was staged, where Nomad wants
// it for one allocation.
func (p *plugin) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	err := bind(req.GetStagingTargetPath(), req.GetTargetPath(), req.GetReadonly())
	return &csi.NodePublishVolumeResponse{}, err
}

// NodeUnpublishVolume implements the node service.
func (p *plugin) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, unbind(req.GetTargetPath())
}

// NodeUnstageVolume implements the node service.
func (p *plugin) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, unbind(req.GetStagingTargetPath())
}

func bind(from, to string, readOnly bool) error {
	if err := os.MkdirAll(to, 0o777); err != nil {
		return err
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: to, Err: err}
	}
	if !readOnly {
		return nil
	}
	return unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
}

// unbind succeeds when nothing is mounted there.
func unbind(at string) error {
	if err := unix.Unmount(at, 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return &os.PathError{Op: "unmount", Path: at, Err: err}
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
