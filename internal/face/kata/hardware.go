package kata

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// hardware answers the calls about the machine's clock, processors, memory and packet
// filter.
type hardware struct{ machine Machine }

// SetGuestDateTime implements katav1.AgentServiceService.
func (h hardware) SetGuestDateTime(_ context.Context, req *katav1.SetGuestDateTimeRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, h.machine.SetClock(req.GetSec(), req.GetUsec())
}

// ReseedRandomDev implements katav1.AgentServiceService.
func (h hardware) ReseedRandomDev(_ context.Context, req *katav1.ReseedRandomDevRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, h.machine.AddEntropy(req.GetData())
}

// OnlineCPUMem implements katav1.AgentServiceService. It waits for the processors whether
// the request says so or not, as shims expect.
func (h hardware) OnlineCPUMem(ctx context.Context, req *katav1.OnlineCPUMemRequest) (*emptypb.Empty, error) {
	if err := h.machine.OnlineCPUs(ctx, int(req.GetNbCpus())); err != nil {
		return nil, err
	}
	if req.GetCpuOnly() {
		return &emptypb.Empty{}, nil
	}
	return &emptypb.Empty{}, h.machine.OnlineMemory()
}

// MemHotplugByProbe implements katav1.AgentServiceService.
func (h hardware) MemHotplugByProbe(_ context.Context, req *katav1.MemHotplugByProbeRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, h.machine.ProbeMemory(req.GetMemHotplugProbeAddr())
}

// AddSwap implements katav1.AgentServiceService.
func (h hardware) AddSwap(ctx context.Context, req *katav1.AddSwapRequest) (*emptypb.Empty, error) {
	var slots []string
	for _, s := range req.GetPCIPath() {
		slots = append(slots, fmt.Sprintf("%02x", s))
	}
	disk, err := h.machine.DiskAt(ctx, strings.Join(slots, "/"))
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, h.machine.AddSwap(disk)
}

// AddSwapPath implements katav1.AgentServiceService.
func (h hardware) AddSwapPath(_ context.Context, req *katav1.AddSwapPathRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, h.machine.AddSwap(req.GetPath())
}

// GetMetrics implements katav1.AgentServiceService.
func (h hardware) GetMetrics(context.Context, *katav1.GetMetricsRequest) (*katav1.Metrics, error) {
	return &katav1.Metrics{Metrics: h.machine.Metrics()}, nil
}

// GetIPTables implements katav1.AgentServiceService.
func (h hardware) GetIPTables(ctx context.Context, req *katav1.GetIPTablesRequest) (*katav1.GetIPTablesResponse, error) {
	rules, err := h.machine.PacketFilter(ctx, req.GetIsIpv6())
	if err != nil {
		return nil, err
	}
	return &katav1.GetIPTablesResponse{Data: rules}, nil
}

// SetIPTables implements katav1.AgentServiceService.
func (h hardware) SetIPTables(ctx context.Context, req *katav1.SetIPTablesRequest) (*katav1.SetIPTablesResponse, error) {
	output, err := h.machine.SetPacketFilter(ctx, req.GetIsIpv6(), req.GetData())
	if err != nil {
		return nil, err
	}
	return &katav1.SetIPTablesResponse{Data: output}, nil
}

// ResizeVolume implements katav1.AgentServiceService.
func (h hardware) ResizeVolume(_ context.Context, req *katav1.ResizeVolumeRequest) (*emptypb.Empty, error) {
	err := h.machine.ResizeVolume(req.GetVolumeGuestPath(), req.GetSize())
	if errdefs.IsNotImplemented(err) {
		err = refuse(codes.Unimplemented, "%v", err)
	}
	return &emptypb.Empty{}, err
}

// UpdateEphemeralMounts implements katav1.AgentServiceService.
func (h hardware) UpdateEphemeralMounts(ctx context.Context, req *katav1.UpdateEphemeralMountsRequest) (*emptypb.Empty, error) {
	list, err := storages(req.GetStorages())
	if err != nil {
		return nil, err
	}
	for _, s := range list {
		if err := h.machine.Remount(ctx, s); err != nil {
			return nil, err
		}
	}
	return &emptypb.Empty{}, nil
}

// RemoveStaleVirtiofsShareMounts implements katav1.AgentServiceService.
func (h hardware) RemoveStaleVirtiofsShareMounts(context.Context, *katav1.RemoveStaleVirtiofsShareMountsRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, h.machine.DropStale()
}
