package kata

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/invalid"
)

// useDevices finds in the machine the devices that a request names, and gives spec their
// numbers there in place of the host's. It returns the PCI addresses in the machine by
// those of the host.
func (f *Face) useDevices(ctx context.Context, spec *specs.Spec, list []*katav1.Device) (pci map[string]string, err error) {
	found := map[string]guest.Found{} // by the path in the container
	for _, d := range list {
		at := d.GetContainerPath()
		if at == "" {
			return nil, invalid.Errorf("device %q of the type %q has no path in the container", clip(d.GetId()), clip(d.GetType()))
		}
		one, err := f.o.Machine.Device(ctx, guest.Device{Type: d.GetType(), ID: d.GetId(), VMPath: d.GetVmPath(), Options: d.GetOptions()})
		if err != nil {
			return nil, fmt.Errorf("device %s: %w", clip(at), err)
		}
		for host, address := range one.PCI {
			if before, ok := pci[host]; ok && before != address {
				return nil, invalid.Errorf("the host's device %s is both %s and %s in the machine", host, before, address)
			}
			if pci == nil {
				pci = map[string]string{}
			}
			pci[host] = address
		}
		if one.Node == nil {
			continue
		}
		if _, ok := found[at]; ok {
			return nil, invalid.Errorf("two devices have the path %s in the container", clip(at))
		}
		found[at] = one
	}
	setPCIAddresses(spec.Process.Env, pci)
	return pci, setDevices(spec.Linux, found)
}

// numbers are the type and the numbers of a device.
type numbers struct {
	kind         string
	major, minor int64
}

// setDevices gives the devices at their paths in the container the machine's numbers, and replaces
// the host's numbers in the rules too. A machine's number may equal another one of the host's: each
// is replaced once. Processes may use only the devices that the rules allow.
func setDevices(l *specs.Linux, found map[string]guest.Found) error {
	if l.Resources == nil {
		l.Resources = &specs.LinuxResources{}
	}
	rules := l.Resources.Devices
	left := maps.Clone(found)
	replaced := map[numbers]guest.Node{}
	var own []specs.LinuxDeviceCgroup
	for i := range l.Devices {
		d := &l.Devices[i]
		one, ok := left[d.Path]
		if !ok {
			continue
		}
		delete(left, d.Path)
		host := numbers{d.Type, d.Major, d.Minor}
		if _, twice := replaced[host]; twice {
			return invalid.Errorf("two devices have the host's numbers %d:%d", d.Major, d.Minor)
		}
		n := *one.Node
		replaced[host] = n
		d.Type, d.Major, d.Minor = n.Type, n.Major, n.Minor
		if one.Path != "" {
			d.Path = one.Path
		}
		own = append(own, specs.LinuxDeviceCgroup{Allow: true, Type: n.Type, Major: new(n.Major), Minor: new(n.Minor), Access: "rwm"})
	}
	if len(left) > 0 {
		return invalid.Errorf("the spec has no devices at %s", clip(strings.Join(slices.Sorted(maps.Keys(left)), ", ")))
	}
	for i := range rules {
		r := &rules[i]
		if r.Major == nil || r.Minor == nil {
			continue
		}
		if n, ok := replaced[numbers{r.Type, *r.Major, *r.Minor}]; ok {
			r.Type, r.Major, r.Minor = n.Type, new(n.Major), new(n.Minor)
		}
	}
	if slices.ContainsFunc(rules, allowsAll) {
		l.Resources.Devices = append(rules, own...)
		return nil
	}
	none := specs.LinuxDeviceCgroup{Access: "rwm"}
	l.Resources.Devices = slices.Concat([]specs.LinuxDeviceCgroup{none}, slices.DeleteFunc(rules, forAll), own)
	return nil
}

// forAll reports whether a rule is about every device.
func forAll(r specs.LinuxDeviceCgroup) bool {
	return (r.Type == "" || r.Type == "a") && r.Major == nil && r.Minor == nil
}

func allowsAll(r specs.LinuxDeviceCgroup) bool { return r.Allow && forAll(r) }

// The variables of Kubernetes' device plugin for network cards with a container's PCI addresses,
// and, with a suffix, with their other properties.
const (
	pciVariable = "PCIDEVICE_"
	pciDetails  = "_INFO"
)

// setPCIAddresses replaces the host's PCI addresses in a process' environment by those of
// the machine. A variable that names a device which the container does not have stays.
func setPCIAddresses(env []string, pci map[string]string) {
	if len(pci) == 0 {
		return
	}
	changed := map[string]bool{}
	for i, v := range env {
		name, list, ok := strings.Cut(v, "=")
		if !ok || !strings.HasPrefix(name, pciVariable) || strings.HasSuffix(name, pciDetails) {
			continue
		}
		addresses := strings.Split(list, ",")
		known := true
		for j, a := range addresses {
			if addresses[j], ok = pci[a]; !ok {
				known = false
			}
		}
		if known {
			env[i], changed[name+pciDetails] = name+"="+strings.Join(addresses, ","), true
		}
	}
	var words []string
	for _, host := range slices.Sorted(maps.Keys(pci)) {
		words = append(words, host, pci[host])
	}
	all := strings.NewReplacer(words...)
	for i, v := range env {
		if name, text, ok := strings.Cut(v, "="); ok && changed[name] {
			env[i] = name + "=" + all.Replace(text)
		}
	}
}
