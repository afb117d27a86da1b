package present

import (
	"fmt"
	"maps"
)

// withDevices adds the limits of block devices, and further settings of the kernel, to docker's document of a container.
func withDevices(o object, doc map[string]any) map[string]any {
	io := o.object("spec", "linux", "resources", "blockIO")
	memory := o.object("spec", "linux", "resources", "memory")
	mode := "host"
	for _, n := range o.list("spec", "linux", "namespaces") {
		if n, ok := n.(map[string]any); ok && n["type"] == "cgroup" {
			mode = "private"
		}
	}
	maps.Copy(doc, map[string]any{
		"BlkioWeight": io.number("weight"), "BlkioWeightDevice": deviceLimits(io, "weightDevice", "weight", "Weight"),
		"BlkioDeviceReadBps":  deviceLimits(io, "throttleReadBpsDevice", "rate", "Rate"),
		"BlkioDeviceWriteBps": deviceLimits(io, "throttleWriteBpsDevice", "rate", "Rate"),
		"BlkioDeviceReadIOps": deviceLimits(io, "throttleReadIOPSDevice", "rate", "Rate"), "BlkioDeviceWriteIOps": deviceLimits(io, "throttleWriteIOPSDevice", "rate", "Rate"),
		"MemorySwappiness": memory.at("swappiness"), "OomKillDisable": memory.boolean("disableOOMKiller"), "CgroupnsMode": mode,
	})
	return doc
}

// deviceLimits returns limits of block devices. A device has the name that udev makes of its numbers, because its name in the
// request is not recorded.
func deviceLimits(io object, list, member, as string) []map[string]any {
	limits := []map[string]any{}
	for _, d := range io.list(list) {
		if d, ok := d.(map[string]any); ok {
			limits = append(limits, map[string]any{
				"Path": fmt.Sprintf("/dev/block/%d:%d", object(d).number("major"), object(d).number("minor")), as: object(d).number(member),
			})
		}
	}
	return limits
}
