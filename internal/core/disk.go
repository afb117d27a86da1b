package core

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// DiskLabel is the label of a container with a disk limit: see ContainerConfig.Disk.
const DiskLabel = "longshore.disk"

// MinDisk is the least disk limit: overlayfs and the runtime make directories and mount points in the layer.
const MinDisk = 1 << 20

// DiskLimit parses a disk limit, such as 512m or 10g, in powers of 1024.
func DiskLimit(text string) (int64, error) {
	n, err := Bytes(text)
	if err != nil || n < MinDisk {
		return 0, fmt.Errorf("%q is no size of at least 1m, such as 512m or 10g", text)
	}
	return int64(n), nil
}

// Bytes parses a size with a unit, in powers of 1024.
func Bytes(s string) (uint64, error) {
	t := strings.TrimSuffix(strings.ToLower(strings.TrimSpace(s)), "b")
	t = strings.TrimSuffix(t, "i")
	shift := 0
	for unit, n := range map[string]int{"k": 10, "m": 20, "g": 30, "t": 40} {
		if cut, ok := strings.CutSuffix(t, unit); ok {
			t, shift = cut, n
			break
		}
	}
	f, err := strconv.ParseFloat(t, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f*float64(uint64(1)<<shift) >= 1<<63 {
		return 0, fmt.Errorf("%q is not a size such as 512, 64k, 64m or 2g", s)
	}
	return uint64(f * float64(uint64(1)<<shift)), nil
}
