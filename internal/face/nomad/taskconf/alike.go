package taskconf

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/face/nomad/schema"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// either reads a key that another driver has by another name.
func either(v schema.Values, key, alias string) (string, error) {
	ours, theirs := v.String(key), v.String(alias)
	if ours != "" && theirs != "" && ours != theirs {
		return "", invalid.Errorf("config.%s %q is not config.%s %q: they are one key", alias, theirs, key, ours)
	}
	if ours == "" {
		return theirs, nil
	}
	return ours, nil
}

// instead is the advice for docker's drivers of volumes.
const instead = "there are no drivers of volumes: use a volume block of the group with a CSI or host volume, which Nomad mounts"

const insteadOfMAC = "it is 0a:58 and the last four bytes of the address, so that no task has another's: use ipv4_address, which keeps both"

// refused returns an error with advice for each key of other drivers that this one cannot have.
func refused(v schema.Values) error {
	auth := v.Block("auth")
	for _, k := range []struct {
		key     string
		asked   bool
		instead string
	}{
		{"auth.helper", auth.Has("helper"), "a job runs no program of the node: auth { helper } of the plugin names one for all"},
		{"auth.config", auth.Has("config"), "a job reads no file of the node: use auth { username, password }, or images.docker_config of the agent"},
		{"network_aliases", len(v.Strings("network_aliases")) > 0, "our bridge has no name server: use a service block, or extra_hosts of those who look for it"},
		{"mac_address", v.Has("mac_address"), insteadOfMAC},
		{"isolation", v.Has("isolation"), "it is of Windows: use userns_mode = \"auto\" for a stronger wall"},
		{"volume_driver", !slices.Contains([]string{"", "local"}, v.String("volume_driver")), instead},
		{"advertise_ipv6_address", v.Bool("advertise_ipv6_address"), "use address of the service block, or the group's network"},
	} {
		if k.asked {
			return invalid.Errorf("config.%s is not for this driver: %s", k.key, k.instead)
		}
	}
	return nil
}

// addresses are those that a task asks for.
func (t *Task) addresses(v schema.Values) error {
	for _, key := range []string{"ipv4_address", "ipv6_address"} {
		text := v.String(key)
		if text == "" {
			continue
		}
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" || a.Is4() != (key == "ipv4_address") || a.Is4In6() {
			return invalid.Errorf("config.%s %q is no such address", key, text)
		}
		t.Addrs = append(t.Addrs, a)
	}
	return nil
}

// portMap reads port_map, which is for the ports of the block network in the task's resources.
func (t *Task) portMap(v schema.Values) error {
	for label, text := range v.Map("port_map") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 65535 {
			return invalid.Errorf("config.port_map: %s = %q is no port", label, text)
		}
		if t.PortMap == nil {
			t.PortMap = map[string]int{}
		}
		t.PortMap[label] = n
	}
	return nil
}

// logs: Nomad has the output, with any log driver of a job. The agent knows the drivers with a service.
func (t *Task) logs(v schema.Values) error {
	if !v.Has("logging") {
		return nil
	}
	l := v.Block("logging")
	name, err := either(l, "driver", "type")
	if err != nil {
		return err
	}
	options := maps.Clone(l.Map("options")) // podman's name for config
	if options == nil {
		options = map[string]string{}
	}
	maps.Copy(options, l.Map("config"))
	switch name {
	case "none":
		t.NoLogs = true
	case "", "nomad", "json-file", "local":
		if name != "" {
			t.LogDriver = "json-file"
		}
		if err := t.turned(options); err != nil {
			return err
		}
	default:
		t.LogDriver, t.LogOptions = name, options
	}
	files, err := l.Int("max_files", 1, 1000)
	if err != nil {
		return err
	}
	if files > 0 {
		t.LogFiles = int(files)
	}
	mb, err := l.Int("max_file_size", 1, 1<<20)
	if mb > 0 {
		t.LogBytes = mb << 20
	}
	return err
}

// turned reads the options of docker's drivers that write files.
func (t *Task) turned(options map[string]string) error {
	var vain []string
	for key, value := range options {
		switch key {
		case "max-size":
			n, err := ocispec.Bytes(value)
			if err != nil || n < 1 || n > maxLogBytes {
				return invalid.Errorf("config.logging.config: max-size %q is no size such as 10m", value)
			}
			t.LogBytes = n
		case "max-file":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > 1000 {
				return invalid.Errorf("config.logging.config: max-file %q is no whole number from 1 to 1000", value)
			}
			t.LogFiles = n
		default:
			vain = append(vain, key)
		}
	}
	if len(vain) > 0 {
		slices.Sort(vain)
		t.warn("config.logging.config: Nomad's log files have no %s", strings.Join(vain, ", "))
	}
	return nil
}

// maxLogBytes is the most that max_file_size may say, in bytes.
const maxLogBytes = 1 << 40

func (t *Task) warn(format string, args ...any) {
	t.Warnings = append(t.Warnings, fmt.Sprintf(format, args...))
}
