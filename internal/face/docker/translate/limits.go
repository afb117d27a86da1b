package translate

import (
	"runtime"
	"slices"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// minMemory is dockerd's least limit of memory, in bytes.
const minMemory = 6 << 20

// limits returns InvalidArgument, with dockerd's words, for limits that contradict each other or are out of range.
func limits(r *dockertypes.Resources) error {
	cpus := runtime.NumCPU()
	for _, c := range []struct {
		wrong bool
		text  string
	}{
		{r.Memory != 0 && r.Memory < minMemory, "Minimum memory limit allowed is 6MB"},
		{r.Memory > 0 && r.MemorySwap > 0 && r.MemorySwap < r.Memory, "Minimum memoryswap limit should be larger than memory limit, see usage"},
		{r.MemoryReservation > 0 && r.MemoryReservation < minMemory, "Minimum memory reservation allowed is 6MB"},
		{r.Memory > 0 && r.MemoryReservation > r.Memory, "Minimum memory limit can not be less than memory reservation limit, see usage"},
		{r.NanoCPUs > 0 && r.CPUPeriod != 0, "Conflicting options: Nano CPUs and CPU Period cannot both be set"},
		{r.NanoCPUs > 0 && r.CPUQuota != 0, "Conflicting options: Nano CPUs and CPU Quota cannot both be set"},
		{r.CPUPeriod != 0 && (r.CPUPeriod < 1000 || r.CPUPeriod > 1000000), "CPU cfs period can not be less than 1ms (i.e. 1000) or larger than 1s (i.e. 1000000)"},
		{r.CPUQuota > 0 && r.CPUQuota < 1000, "CPU cfs quota can not be less than 1ms (i.e. 1000)"},
	} {
		if c.wrong {
			return invalid.Errorf("%s", c.text)
		}
	}
	if r.NanoCPUs < 0 || r.NanoCPUs > int64(cpus)*1e9 {
		return invalid.Errorf("range of CPUs is from 0.01 to %d.00, as there are only %d CPUs available", cpus, cpus)
	}
	return nil
}

// restarts returns InvalidArgument, with dockerd's words, for a restart policy that does not exist.
func restarts(p dockertypes.RestartPolicy) error {
	switch {
	case !slices.Contains([]string{"", "no", "always", "on-failure", "unless-stopped"}, p.Name):
		return invalid.Errorf("invalid restart policy: unknown policy '%s'; use one of 'no', 'always', 'on-failure', or 'unless-stopped'", p.Name)
	case p.MaximumRetryCount < 0:
		return invalid.Errorf("invalid restart policy: maximum retry count cannot be negative")
	case p.MaximumRetryCount > 0 && p.Name != "on-failure":
		return invalid.Errorf("invalid restart policy: maximum retry count can only be used with 'on-failure'")
	}
	return nil
}

// diskLimit returns the size of a container's layer from the options of the storage driver, 0 for none.
func diskLimit(options map[string]string) (uint64, error) {
	for key := range options {
		if key != "size" {
			return 0, invalid.Errorf("unknown option %s of StorageOpt: use size", key)
		}
	}
	if options["size"] == "" {
		return 0, nil
	}
	n, err := core.DiskLimit(options["size"])
	if err != nil {
		return 0, invalid.Errorf("StorageOpt size: %v", err)
	}
	return uint64(n), nil
}
