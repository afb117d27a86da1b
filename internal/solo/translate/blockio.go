package translate

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// The kernel's bounds of a weight for block devices.
const (
	minWeight = 10
	maxWeight = 1000
)

// blockIO returns the request's limits for block devices; nil if there are none.
func blockIO(req *longshorev1.CreateRequest) (*specs.LinuxBlockIO, error) {
	var b specs.LinuxBlockIO
	limited := false
	if w := req.GetBlkioWeight(); w != 0 {
		weight, err := weightOf(uint64(w))
		if err != nil {
			return nil, err
		}
		b.Weight, limited = weight, true
	}
	for _, l := range req.GetBlkioWeightDevices() {
		weight, err := weightOf(l.GetValue())
		if err != nil {
			return nil, err
		}
		d := specs.LinuxWeightDevice{Weight: weight}
		if d.Major, d.Minor, err = blockDevice(l.GetPath()); err != nil {
			return nil, err
		}
		b.WeightDevice, limited = append(b.WeightDevice, d), true
	}
	for _, kind := range []struct {
		limits []*longshorev1.DeviceLimit
		to     *[]specs.LinuxThrottleDevice
	}{
		{req.GetDeviceReadBps(), &b.ThrottleReadBpsDevice},
		{req.GetDeviceWriteBps(), &b.ThrottleWriteBpsDevice},
		{req.GetDeviceReadIops(), &b.ThrottleReadIOPSDevice},
		{req.GetDeviceWriteIops(), &b.ThrottleWriteIOPSDevice},
	} {
		for _, l := range kind.limits {
			d := specs.LinuxThrottleDevice{Rate: l.GetValue()}
			var err error
			if d.Major, d.Minor, err = blockDevice(l.GetPath()); err != nil {
				return nil, err
			}
			*kind.to, limited = append(*kind.to, d), true
		}
	}
	if !limited {
		return nil, nil //nolint:nilnil // no limit is a value here
	}
	return &b, nil
}

// weightOf checks a weight.
func weightOf(n uint64) (*uint16, error) {
	if n < minWeight || n > maxWeight {
		return nil, invalid.Errorf("weight %d of block devices is not between %d and %d", n, minWeight, maxWeight)
	}
	w := uint16(n)
	return &w, nil
}

// blockDevice returns the numbers of a block device of the node.
func blockDevice(name string) (major, minor int64, err error) {
	if !path.IsAbs(name) {
		return 0, 0, invalid.Errorf("block device %q is not an absolute path", name)
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil {
		return 0, 0, invalid.Errorf("block device %s: %v", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return 0, 0, invalid.Errorf("%s is not a block device", name)
	}
	return int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev)), nil
}

// deviceRules parses the request's rules for devices, TYPE MAJOR:MINOR ACCESS.
func deviceRules(req *longshorev1.CreateRequest) (rules []specs.LinuxDeviceCgroup, err error) {
	for _, text := range req.GetDeviceCgroupRules() {
		fields := strings.Split(text, " ")
		if len(fields) != 3 || !slices.Contains([]string{"a", "b", "c"}, fields[0]) || fields[2] == "" || len(fields[2]) > 3 || strings.Trim(fields[2], "rwm") != "" {
			return nil, badRule(text)
		}
		major, minor, ok := strings.Cut(fields[1], ":")
		rule := specs.LinuxDeviceCgroup{Allow: true, Type: fields[0], Access: fields[2]}
		for _, n := range []struct {
			text string
			to   **int64
		}{{major, &rule.Major}, {minor, &rule.Minor}} {
			if n.text == "*" {
				continue // without a number the rule matches all
			}
			number, perr := strconv.ParseUint(n.text, 10, 32)
			if perr != nil || !ok {
				return nil, badRule(text)
			}
			signed := int64(number)
			*n.to = &signed
		}
		rules = append(rules, rule)
	}
	return rules, nil
}

func badRule(text string) error {
	return invalid.Errorf("device rule %q is not TYPE MAJOR:MINOR ACCESS, such as c 1:3 rwm or b 8:* r", text)
}
