package translate

import (
	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// Update returns a request for other limits and another restart policy.
func Update(res *dockertypes.Resources, p dockertypes.RestartPolicy) (*longshorev1.UpdateRequest, error) {
	if err := limits(res); err != nil {
		return nil, err
	}
	if err := restarts(p); err != nil {
		return nil, err
	}
	if res.BlkioWeight != 0 {
		return nil, invalid.Errorf("BlkioWeight cannot be updated: create the container with it")
	}
	req := &longshorev1.UpdateRequest{
		MemoryBytes: uint64(max(res.Memory, 0)), MemorySwapBytes: res.MemorySwap, MemoryReservationBytes: uint64(max(res.MemoryReservation, 0)),
		Cpus: float64(res.NanoCPUs) / 1e9, CpuShares: uint64(max(res.CPUShares, 0)), CpusetCpus: res.CpusetCpus, CpusetMems: res.CpusetMems,
		CpuQuota: res.CPUQuota, CpuPeriod: uint64(max(res.CPUPeriod, 0)), Restart: policy(p),
	}
	if n := res.PidsLimit; n != nil {
		req.Pids = *n
		if *n <= 0 {
			req.Pids = -1
		}
	}
	return req, nil
}

// Update changes a stored request as an update changes its container.
func (c *Create) Update(res *dockertypes.Resources, p dockertypes.RestartPolicy) {
	h := c.HostConfig
	for _, n := range []struct {
		to   *int64
		from int64
	}{
		{&h.Memory, res.Memory},
		{&h.MemorySwap, res.MemorySwap},
		{&h.MemoryReservation, res.MemoryReservation},
		{&h.NanoCPUs, res.NanoCPUs},
		{&h.CPUShares, res.CPUShares},
		{&h.CPUQuota, res.CPUQuota},
		{&h.CPUPeriod, res.CPUPeriod},
	} {
		if n.from != 0 {
			*n.to = n.from
		}
	}
	if res.CpusetCpus != "" {
		h.CpusetCpus = res.CpusetCpus
	}
	if res.CpusetMems != "" {
		h.CpusetMems = res.CpusetMems
	}
	if n := res.PidsLimit; n != nil {
		limit := max(*n, 0)
		h.PidsLimit = &limit
	}
	if p.Name != "" {
		h.RestartPolicy = p
	}
}
