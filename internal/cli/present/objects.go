package present

import (
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// Network returns the document of inspect for a network: the members of docker's document, and the whole record as
// Record.
func Network(n *longshorev1.Network) any {
	ranges, members := []any{}, map[string]any{}
	for _, s := range n.GetSubnets() {
		ranges = append(ranges, map[string]any{"Subnet": s.GetRange(), "Gateway": s.GetGateway()})
	}
	for _, m := range n.GetMembers() {
		members[m.GetContainer()] = map[string]any{"Name": m.GetName(), "MacAddress": m.GetMac(), "Addresses": m.GetAddresses(), "Aliases": m.GetAliases()}
	}
	return map[string]any{
		"Name": n.GetName(), "Id": n.GetName(), "Driver": "bridge", "Scope": "local", "Internal": n.GetInternal(), "Labels": labels(n.GetLabels()),
		"Created": n.GetCreated().AsTime().Format(time.RFC3339Nano), "IPAM": map[string]any{"Config": ranges}, "Containers": members, "Record": Plain(n),
	}
}

// Volume returns the document of inspect for a volume, in the same way.
func Volume(v *longshorev1.Volume) any {
	return map[string]any{
		"Name": v.GetName(), "Driver": "local", "Scope": "local", "Mountpoint": v.GetPath(), "Labels": labels(v.GetLabels()), "Options": labels(v.GetOptions()),
		"CreatedAt": v.GetCreated().AsTime().Format(time.RFC3339Nano), "Record": Plain(v),
	}
}

// VolumeRow returns the data of a volume for templates.
func VolumeRow(v *longshorev1.Volume) Row {
	return Row{
		"Name": v.GetName(), "Driver": "local", "Scope": "local", "Mountpoint": v.GetPath(), "Owner": v.GetOwner(),
		"CreatedAt": v.GetCreated().AsTime().Local().Format("2006-01-02 15:04:05 -0700 MST"),
	}.WithLabels(v.GetLabels())
}

// labels converts a map to one in which templates find a missing member empty.
func labels(m map[string]string) map[string]any {
	out := map[string]any{}
	for name, value := range m {
		out[name] = value
	}
	return out
}
