package stats

import (
	"bytes"
	"os"
	"strconv"
	"strings"
)

// NodeSpeed is this node's cores' speed in MHz, for clients that do not tell it;
// 0 when the kernel does not either.
func NodeSpeed() float64 {
	for _, file := range []string{"base_frequency", "cpuinfo_max_freq"} { // kHz
		if b, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/" + file); err == nil {
			if khz, err := strconv.ParseFloat(strings.TrimSpace(string(b)), 64); err == nil && khz > 0 {
				return khz / 1000
			}
		}
	}
	b, _ := os.ReadFile("/proc/cpuinfo")
	return cpuinfo(b)
}

// cpuinfo is the first core's speed in a /proc/cpuinfo.
func cpuinfo(content []byte) float64 {
	for line := range bytes.Lines(content) {
		key, value, _ := bytes.Cut(line, []byte{':'})
		if string(bytes.TrimSpace(key)) != "cpu MHz" {
			continue
		}
		if mhz, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64); err == nil {
			return mhz
		}
	}
	return 0
}
