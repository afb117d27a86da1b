package runflags

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/typed"
)

// ioFlags are the flags about devices: limits of block devices, and rules of access.
type ioFlags struct {
	weights, readBps, writeBps, readIOPS, writeIOPS []string
	weight                                          uint16
}

func (f *ioFlags) define(fl *pflag.FlagSet, r *longshorev1.CreateRequest) {
	fl.Uint16Var(&f.weight, "blkio-weight", 0, "share of the block devices when they are busy, 10 to 1000; 0 for the default")
	fl.StringArrayVar(&f.weights, "blkio-weight-device", nil, "the same for one device, PATH:WEIGHT")
	fl.StringArrayVar(&f.readBps, "device-read-bps", nil, "limit of reading from a block device, PATH:RATE in bytes per second, such as /dev/sda:1m")
	fl.StringArrayVar(&f.writeBps, "device-write-bps", nil, "limit of writing to a block device, PATH:RATE in bytes per second")
	fl.StringArrayVar(&f.readIOPS, "device-read-iops", nil, "limit of reading from a block device, PATH:RATE in operations per second")
	fl.StringArrayVar(&f.writeIOPS, "device-write-iops", nil, "limit of writing to a block device, PATH:RATE in operations per second")
	fl.StringArrayVar(&r.DeviceCgroupRules, "device-cgroup-rule", nil, "devices that programs may open if they make the node, TYPE MAJOR:MINOR ACCESS, such as 'c 1:* rwm'")
}

func (f *ioFlags) fill(r *longshorev1.CreateRequest) error {
	r.BlkioWeight = uint32(f.weight)
	number := func(s string) (uint64, error) {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%q is not a number", s)
		}
		return n, nil
	}
	for _, kind := range []struct {
		flag  string
		texts []string
		parse func(string) (uint64, error)
		to    *[]*longshorev1.DeviceLimit
	}{
		{"blkio-weight-device", f.weights, number, &r.BlkioWeightDevices},
		{"device-read-bps", f.readBps, typed.Bytes, &r.DeviceReadBps},
		{"device-write-bps", f.writeBps, typed.Bytes, &r.DeviceWriteBps},
		{"device-read-iops", f.readIOPS, number, &r.DeviceReadIops},
		{"device-write-iops", f.writeIOPS, number, &r.DeviceWriteIops},
	} {
		for _, text := range kind.texts {
			limit, err := deviceLimit(text, kind.parse)
			if err != nil {
				return fmt.Errorf("--%s %q: %w", kind.flag, text, err)
			}
			*kind.to = append(*kind.to, limit)
		}
	}
	return nil
}

// deviceLimit parses PATH:VALUE.
func deviceLimit(text string, parse func(string) (uint64, error)) (*longshorev1.DeviceLimit, error) {
	i := strings.LastIndexByte(text, ':')
	if i <= 0 || text[0] != '/' {
		return nil, errors.New("it is not PATH:VALUE with the absolute path of a block device")
	}
	n, err := parse(text[i+1:])
	if err != nil {
		return nil, err
	}
	return &longshorev1.DeviceLimit{Path: text[:i], Value: n}, nil
}
