package control

import (
	"math"
	"time"

	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/hostinfo"
	"github.com/longshore/longshore/internal/invalid"
)

// Load sends the use of the machine once, or once per interval.
func (s *nodeServer) Load(req *longshorev1.LoadRequest, stream grpc.ServerStreamingServer[longshorev1.LoadResponse]) error {
	ctx := stream.Context()
	interval := req.GetInterval().AsDuration()
	if req.GetInterval() != nil && interval < minInterval {
		return invalid.Errorf("interval %v is shorter than %v", interval, minInterval)
	}
	var before hostinfo.Load
	round := func(at time.Time) error {
		now := hostinfo.ReadLoad(s.srv.o.Dirs...)
		resp := loadOf(now, before)
		resp.At = view.Time(at)
		before = now
		return stream.Send(resp)
	}
	if err := round(time.Now()); err != nil || interval == 0 {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case at := <-tick.C:
			if err := round(at); err != nil {
				return err
			}
		}
	}
}

// loadOf converts the use of the machine. before is that of the round before, or zero.
func loadOf(now, before hostinfo.Load) *longshorev1.LoadResponse {
	resp := &longshorev1.LoadResponse{Cpus: int32(now.CPUs), MemoryTotalBytes: now.MemoryTotal, SwapTotalBytes: now.SwapTotal}
	if before.Total > 0 && now.Total > before.Total && now.Busy >= before.Busy {
		percent := float64(now.Busy-before.Busy) / float64(now.Total-before.Total) * 100 * float64(now.CPUs)
		percent = math.Round(percent*100) / 100
		resp.CpuPercent = &percent
	}
	if now.MemoryOK {
		used, swap := now.MemoryTotal-min(now.MemoryAvailable, now.MemoryTotal), now.SwapTotal-min(now.SwapFree, now.SwapTotal)
		resp.MemoryBytes, resp.SwapBytes = &used, &swap
	}
	if now.AverageOK {
		resp.Load = &now.Average
	}
	for _, p := range now.Pressure {
		resp.Pressure = append(resp.Pressure, &longshorev1.Pressure{Resource: p.Resource, Some: p.Some, Full: p.Full})
	}
	for _, d := range now.Disks {
		resp.Disks = append(resp.Disks, &longshorev1.DiskSpace{Paths: d.Paths, TotalBytes: d.Total, FreeBytes: d.Free, Inodes: d.Inodes, FreeInodes: d.FreeInodes})
	}
	return resp
}
