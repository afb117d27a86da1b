package kata

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// service is the agent as ttrpc calls it.
type service struct {
	machineCalls
	face *Face
}

var _ katav1.AgentServiceService = (*service)(nil)

// machineCalls answers the calls about the machine that this agent does not serve yet.
type machineCalls struct{}

func none(call string) error {
	return refuse(codes.Unimplemented, "%s is not served by this agent", call)
}

func (machineCalls) UpdateEphemeralMounts(context.Context, *katav1.UpdateEphemeralMountsRequest) (*emptypb.Empty, error) {
	return nil, none("UpdateEphemeralMounts")
}

func (machineCalls) GetDiagnosticData(context.Context, *katav1.GetDiagnosticDataRequest) (*katav1.GetDiagnosticDataResponse, error) {
	return nil, none("GetDiagnosticData")
}

func (machineCalls) GetIPTables(context.Context, *katav1.GetIPTablesRequest) (*katav1.GetIPTablesResponse, error) {
	return nil, none("GetIPTables")
}

func (machineCalls) SetIPTables(context.Context, *katav1.SetIPTablesRequest) (*katav1.SetIPTablesResponse, error) {
	return nil, none("SetIPTables")
}

func (machineCalls) GetMetrics(context.Context, *katav1.GetMetricsRequest) (*katav1.Metrics, error) {
	return nil, none("GetMetrics")
}

// MemAgentMemcgSet answers what the reference does when its memory agent is off.
func (machineCalls) MemAgentMemcgSet(context.Context, *katav1.MemAgentMemcgConfig) (*emptypb.Empty, error) {
	return nil, refuse(codes.Internal, "mem-agent is disabled")
}

// MemAgentCompactSet answers as MemAgentMemcgSet.
func (machineCalls) MemAgentCompactSet(context.Context, *katav1.MemAgentCompactConfig) (*emptypb.Empty, error) {
	return nil, refuse(codes.Internal, "mem-agent is disabled")
}

func (machineCalls) OnlineCPUMem(context.Context, *katav1.OnlineCPUMemRequest) (*emptypb.Empty, error) {
	return nil, none("OnlineCPUMem")
}

func (machineCalls) ReseedRandomDev(context.Context, *katav1.ReseedRandomDevRequest) (*emptypb.Empty, error) {
	return nil, none("ReseedRandomDev")
}

func (machineCalls) MemHotplugByProbe(context.Context, *katav1.MemHotplugByProbeRequest) (*emptypb.Empty, error) {
	return nil, none("MemHotplugByProbe")
}

func (machineCalls) SetGuestDateTime(context.Context, *katav1.SetGuestDateTimeRequest) (*emptypb.Empty, error) {
	return nil, none("SetGuestDateTime")
}

func (machineCalls) AddSwap(context.Context, *katav1.AddSwapRequest) (*emptypb.Empty, error) {
	return nil, none("AddSwap")
}

func (machineCalls) AddSwapPath(context.Context, *katav1.AddSwapPathRequest) (*emptypb.Empty, error) {
	return nil, none("AddSwapPath")
}

func (machineCalls) ResizeVolume(context.Context, *katav1.ResizeVolumeRequest) (*emptypb.Empty, error) {
	return nil, none("ResizeVolume")
}

func (machineCalls) SetPolicy(context.Context, *katav1.SetPolicyRequest) (*emptypb.Empty, error) {
	return nil, none("SetPolicy")
}

// RemoveStaleVirtiofsShareMounts succeeds: nothing is shared with the host yet.
func (machineCalls) RemoveStaleVirtiofsShareMounts(context.Context, *katav1.RemoveStaleVirtiofsShareMountsRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}
