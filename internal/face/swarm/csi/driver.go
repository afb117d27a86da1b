package csi

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	csiv1 "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// callTimeout bounds one call of a driver's: to format a large disk takes a while.
const callTimeout = 2 * time.Minute

// driver is a program that mounts volumes, behind a socket.
type driver struct {
	name   string
	conn   *grpc.ClientConn
	first  chan struct{} // closed after the first query
	looked func()        // closes first

	mu     sync.Mutex // guards info, stages, asked
	info   *swarmv1.NodeCSIInfo
	stages bool
	asked  bool // stages is set
}

// newDriver does not connect yet: the driver may be started later than we are.
func newDriver(name, socket string) (*driver, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 2, MaxDelay: 5 * time.Second}, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return nil, fmt.Errorf("CSI driver %s at %s: %w", name, socket, err)
	}
	d := &driver{name: name, conn: conn, first: make(chan struct{})}
	d.looked = sync.OnceFunc(func() { close(d.first) })
	return d, nil
}

// failed adds driver and call to an error. The text is the driver's.
func (d *driver) failed(call string, err error) error {
	var class error = errdefs.ErrUnknown
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Aborted:
		class = errdefs.ErrUnavailable
	default:
	}
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Code().String() + ": " + s.Message()
	}
	return fmt.Errorf("CSI driver %s: %s: %s: %w", d.name, call, text, class)
}

// look queries the driver's identity on this node, and reports whether it has changed.
func (d *driver) look(ctx context.Context) (changed bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ready, err := csiv1.NewIdentityClient(d.conn).Probe(ctx, &csiv1.ProbeRequest{})
	if err != nil {
		return false, d.failed("Probe", err)
	}
	if r := ready.GetReady(); r != nil && !r.GetValue() {
		return false, fmt.Errorf("CSI driver %s is not ready: %w", d.name, errdefs.ErrUnavailable)
	}
	resp, err := csiv1.NewNodeClient(d.conn).NodeGetInfo(ctx, &csiv1.NodeGetInfoRequest{})
	if err != nil {
		return false, d.failed("NodeGetInfo", err)
	}
	info := &swarmv1.NodeCSIInfo{PluginName: d.name, NodeId: resp.GetNodeId(), MaxVolumesPerNode: resp.GetMaxVolumesPerNode()}
	if s := resp.GetAccessibleTopology().GetSegments(); len(s) > 0 {
		info.AccessibleTopology = &swarmv1.Topology{Segments: s}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	changed = !equal(d.info, info)
	d.info = info
	return changed, nil
}

// described returns the driver's last answer; nil before the first.
func (d *driver) described() *swarmv1.NodeCSIInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

// staging reports whether the driver prepares a volume once for the node before it is
// published.
func (d *driver) staging(ctx context.Context) (bool, error) {
	d.mu.Lock()
	stages, asked := d.stages, d.asked
	d.mu.Unlock()
	if asked {
		return stages, nil
	}
	resp, err := csiv1.NewNodeClient(d.conn).NodeGetCapabilities(ctx, &csiv1.NodeGetCapabilitiesRequest{})
	if err != nil {
		return false, d.failed("NodeGetCapabilities", err)
	}
	for _, c := range resp.GetCapabilities() {
		stages = stages || c.GetRpc().GetType() == csiv1.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stages, d.asked = stages, true
	return stages, nil
}

// publish makes a volume ready at its place; success when it is.
func (d *driver) publish(ctx context.Context, a *swarmv1.VolumeAssignment, at place, secrets map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stages, err := d.staging(ctx)
	if err != nil {
		return err
	}
	node, capability := csiv1.NewNodeClient(d.conn), capabilityOf(a.GetAccessMode())
	req := &csiv1.NodePublishVolumeRequest{
		VolumeId: a.GetVolumeId(), TargetPath: at.published, VolumeCapability: capability, Readonly: readOnly(a), Secrets: secrets,
		VolumeContext: a.GetVolumeContext(), PublishContext: a.GetPublishContext(),
	}
	if stages {
		req.StagingTargetPath = at.staged
		if _, err := node.NodeStageVolume(ctx, &csiv1.NodeStageVolumeRequest{
			VolumeId: a.GetVolumeId(), StagingTargetPath: at.staged, VolumeCapability: capability, Secrets: secrets,
			VolumeContext: a.GetVolumeContext(), PublishContext: a.GetPublishContext(),
		}); err != nil {
			return d.failed("NodeStageVolume", err)
		}
	}
	if _, err := node.NodePublishVolume(ctx, req); err != nil {
		return d.failed("NodePublishVolume", err)
	}
	return nil
}

// unpublish undoes publish, also one that was begun; success when there is nothing.
func (d *driver) unpublish(ctx context.Context, a *swarmv1.VolumeAssignment, at place) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	stages, err := d.staging(ctx)
	if err != nil {
		return err
	}
	node := csiv1.NewNodeClient(d.conn)
	// A volume that the driver does not know any more is not published either.
	if _, err := node.NodeUnpublishVolume(ctx, &csiv1.NodeUnpublishVolumeRequest{VolumeId: a.GetVolumeId(), TargetPath: at.published}); err != nil && status.Code(err) != codes.NotFound {
		return d.failed("NodeUnpublishVolume", err)
	}
	if !stages {
		return nil
	}
	if _, err := node.NodeUnstageVolume(ctx, &csiv1.NodeUnstageVolumeRequest{VolumeId: a.GetVolumeId(), StagingTargetPath: at.staged}); err != nil && status.Code(err) != codes.NotFound {
		return d.failed("NodeUnstageVolume", err)
	}
	return nil
}

// readOnly reports whether nobody may write to a volume.
func readOnly(a *swarmv1.VolumeAssignment) bool {
	return a.GetAccessMode().GetSharing() == swarmv1.VolumeAccessMode_READ_ONLY
}

// errBlock is a volume that is a device.
var errBlock = fmt.Errorf("not served by this node: cluster volumes that are block devices: %w", errdefs.ErrNotImplemented)

// check refuses an assignment that is not valid.
func check(a *swarmv1.VolumeAssignment) error {
	switch {
	case a.GetVolumeId() == "":
		return errors.New("the volume has no id of its driver's")
	case a.GetAccessMode().GetBlock() != nil:
		return errBlock
	}
	return nil
}

// capabilityOf translates the access mode of a volume.
func capabilityOf(m *swarmv1.VolumeAccessMode) *csiv1.VolumeCapability {
	mode := csiv1.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	switch several := m.GetScope() == swarmv1.VolumeAccessMode_MULTI_NODE; {
	case several && m.GetSharing() == swarmv1.VolumeAccessMode_READ_ONLY:
		mode = csiv1.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case several && m.GetSharing() == swarmv1.VolumeAccessMode_ONE_WRITER:
		mode = csiv1.VolumeCapability_AccessMode_MULTI_NODE_SINGLE_WRITER
	case several && m.GetSharing() == swarmv1.VolumeAccessMode_ALL:
		mode = csiv1.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case m.GetSharing() == swarmv1.VolumeAccessMode_READ_ONLY:
		mode = csiv1.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
	}
	return &csiv1.VolumeCapability{
		AccessMode: &csiv1.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csiv1.VolumeCapability_Mount{Mount: &csiv1.VolumeCapability_MountVolume{FsType: m.GetMount().GetFsType(), MountFlags: m.GetMount().GetMountFlags()}},
	}
}
