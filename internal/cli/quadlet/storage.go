package quadlet

import (
	"encoding/csv"
	"path"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/cli/typed"
	"github.com/longshore/longshore/internal/cli/unitfile"
)

// refer returns the object of another file, and makes this service depend on that one's.
func (b *build) refer(e unitfile.Entry, file string) (string, error) {
	s := b.g.sources[file]
	switch {
	case s == nil:
		return "", e.Errorf("%s=: there is no file %s", e.Key, file)
	case s.masked:
		return "", e.Errorf("%s=: %s is masked", e.Key, file)
	case s.refused:
		return "", e.Errorf("%s=: %s was refused", e.Key, file)
	}
	b.deps = append(b.deps, s.reference())
	return s.resource, nil
}

func volumeKey(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		source, rest, ok := strings.Cut(e.Value, ":")
		switch {
		case !ok || rest != "" && rest[0] != '/' && rest[0] != '%': // a path in the container alone, with or without options
			source, rest = "", e.Value
		case strings.HasSuffix(source, ".volume"):
			name, err := b.refer(e, source)
			if err != nil {
				return err
			}
			source = name
		case strings.HasPrefix(source, "."):
			source = b.absolute(source)
		}
		value := rest
		if source != "" {
			value = source + ":" + rest
		}
		if path.IsAbs(source) {
			b.mounts = append(b.mounts, source)
		}
		if _, err := typed.Mount(value); err != nil && !expands(value) {
			return e.Errorf("Volume=%s: %v", e.Value, err)
		}
		b.flag("volume", value)
	}
	return nil
}

func mountKey(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		fields, err := csv.NewReader(strings.NewReader(e.Value)).Read()
		if err != nil {
			return e.Errorf("Mount=%s: %v", e.Value, err)
		}
		kind := "volume"
		for _, f := range fields {
			if name, value, _ := strings.Cut(f, "="); strings.EqualFold(name, "type") {
				kind = value
			}
		}
		if !slices.Contains([]string{"bind", "volume", "tmpfs", "image", "artifact"}, kind) {
			return e.Errorf("Mount=%s is refused: type %s is none of bind, volume, tmpfs, image, artifact", e.Value, kind)
		}
		for i, f := range fields {
			name, value, _ := strings.Cut(f, "=")
			if name != "source" && name != "src" {
				continue
			}
			switch {
			case kind == volume && strings.HasSuffix(value, ".volume"):
				if value, err = b.refer(e, value); err != nil {
					return err
				}
			case kind == "image" || kind == "artifact":
				if ext := path.Ext(value); ext == ".image" || ext == ".build" || ext == ".artifact" {
					return e.Errorf("Mount=%s is refused: name the %s itself, files of the kind %s are refused", e.Value, kind, ext)
				}
			case kind == "bind":
				value = b.absolute(value)
				b.mounts = append(b.mounts, value)
			}
			fields[i] = name + "=" + value
		}
		var text strings.Builder
		w := csv.NewWriter(&text)
		_ = w.Write(fields) // a strings.Builder takes everything
		w.Flush()
		b.flag("mount", strings.TrimSuffix(text.String(), "\n"))
	}
	return nil
}

func networkKey(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		name, options, _ := strings.Cut(e.Value, ":")
		switch {
		case strings.HasSuffix(name, ".network"):
			resource, err := b.refer(e, name)
			if err != nil {
				return err
			}
			name = resource
		case strings.HasSuffix(name, ".container"):
			resource, err := b.refer(e, name)
			if err != nil {
				return err
			}
			name, options = "container", resource
		case slices.Contains([]string{"ns", "slirp4netns", "pasta", "private"}, name):
			return e.Errorf("Network=%s is refused: a container has networks of its own, another container's, host or none", e.Value)
		}
		if options != "" {
			name += ":" + options
		}
		b.flag("network", name)
	}
	return nil
}

// volumeKeys are the keys of [Volume].
func volumeKeys() []Key {
	const v = "Volume"
	return []Key{
		{v, "ContainersConfModule", Refused, noConf, never},
		{v, "Copy", Differs, "true by default; false is refused: write `:nocopy` at the mount", copyKey},
		{v, "Device", Works, "", prefixed("opt", "device=")},
		{v, "Driver", Differs, "only `local`", driver("local")},
		{v, "GID", Refused, "the owner of a volume is that of the image's directory: use Group= with a file system that has the option gid", never},
		{v, "GlobalArgs", Refused, noArgs, never},
		{v, "Group", Works, "", nil},
		{v, "Image", Refused, "a volume of an image is not supported", never},
		{v, "Label", Works, "", pairs("label")},
		{v, "Options", Works, "", nil},
		{v, "PodmanArgs", Refused, noArgs, never},
		{v, "ServiceName", Works, "", nil},
		{v, "Type", Works, "", prefixed("opt", "type=")},
		{v, "UID", Refused, "the owner of a volume is that of the image's directory: use User= with a file system that has the option uid", never},
		{v, "User", Works, "", nil},
		{v, "VolumeName", Works, "", nil},
	}
}

// copyKey refuses the value false.
func copyKey(_ *build, list []unitfile.Entry) error {
	e := last(list)
	is, err := truth(e)
	if err == nil && !is {
		err = e.Errorf("Copy=false is refused: write :nocopy at the mount of the volume")
	}
	return err
}

// driver accepts one driver.
func driver(name string) func(*build, []unitfile.Entry) error {
	return func(_ *build, list []unitfile.Entry) error {
		if e := last(list); e.Value != name {
			return e.Errorf("%s=%s is refused: only %s is supported", e.Key, e.Value, name)
		}
		return nil
	}
}

// volume adds the lines of a volume's service.
func (b *build) volume() {
	var options []string
	for _, o := range []struct{ key, prefix string }{{"Options", ""}, {"User", "uid="}, {"Group", "gid="}} {
		if e, ok := b.s.file.Last("Volume", o.key); ok {
			options = append(options, o.prefix+e.Value)
		}
	}
	device, ok := b.s.file.Last("Volume", "Device")
	kind, _ := b.s.file.Last("Volume", "Type")
	if ok && path.IsAbs(device.Value) && (kind.Value == "bind" || isBind(options)) {
		b.mounts = append(b.mounts, device.Value)
	}
	if len(options) > 0 {
		b.flag("opt", "o="+strings.Join(options, ","))
	}
	b.oneshot(append(append([]string{"volume", "create", "--ignore"}, b.args...), b.s.resource))
}

// isBind reports whether options of a mount make it one of a directory of the node.
func isBind(options []string) bool {
	list := strings.Split(strings.Join(options, ","), ",")
	return slices.Contains(list, "bind") || slices.Contains(list, "rbind")
}

// networkKeys are the keys of [Network].
func networkKeys() []Key {
	const n = "Network"
	return []Key{
		{n, "ContainersConfModule", Refused, noConf, never},
		{n, "DNS", Refused, "a network has no name servers of its own: use DNS= of the containers", never},
		{n, "DisableDNS", Refused, "a network always resolves the names of its containers", unlessFalse},
		{n, "Driver", Differs, "only `bridge`", driver("bridge")},
		{n, "Gateway", Works, "", each("gateway")},
		{n, "GlobalArgs", Refused, noArgs, never},
		{n, "IPAMDriver", Differs, "only `host-local`", driver("host-local")},
		{n, "IPRange", Differs, "a part of the subnet in CIDR notation; `FIRST-LAST` is refused", ipRange},
		{n, "IPv6", Works, "", on("--ipv6")},
		{n, "InterfaceName", Refused, "the name of the bridge cannot be chosen", never},
		{n, "Internal", Works, "", on("--internal")},
		{n, "Label", Works, "", pairs("label")},
		{n, "NetworkDeleteOnStop", Works, "", nil},
		{n, "NetworkName", Works, "", nil},
		{n, "Options", Differs, "only `mtu`", words("opt")},
		{n, "PodmanArgs", Refused, noArgs, never},
		{n, "ServiceName", Works, "", nil},
		{n, "Subnet", Works, "", each("subnet")},
	}
}

// ipRange refuses a range of two addresses.
func ipRange(b *build, list []unitfile.Entry) error {
	for _, e := range list {
		if strings.Contains(e.Value, "-") && !expands(e.Value) {
			return e.Errorf("IPRange=%s is refused: write it in CIDR notation, such as 10.89.10.128/25", e.Value)
		}
		b.flag("ip-range", e.Value)
	}
	return nil
}

// network adds the lines of a network's service.
func (b *build) network() {
	for _, e := range b.s.file.All("Network", "Options") {
		if !strings.HasPrefix(e.Value, "mtu=") && !strings.HasPrefix(e.Value, "com.docker.network.driver.mtu=") {
			b.fail(e.Errorf("Options=%s is refused: only mtu is supported", e.Value))
		}
	}
	b.oneshot(append(append([]string{"network", "create", "--ignore"}, b.args...), b.s.resource))
	is, err := b.s.file.Bool("Network", "NetworkDeleteOnStop", false)
	b.fail(err)
	if is {
		b.service = append(b.service, "ExecStopPost=-"+b.command("network", "rm", b.s.resource))
	}
}

// oneshot adds the lines of a service that runs one command.
func (b *build) oneshot(words []string) {
	b.service = append([]string{"Type=oneshot", "RemainAfterExit=yes", "SyslogIdentifier=%N", "ExecStart=" + b.command(words...)}, b.service...)
}
