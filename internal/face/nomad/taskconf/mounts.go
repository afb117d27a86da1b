package taskconf

import (
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/face/nomad/schema"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

func (t *Task) mounts(v schema.Values) error {
	for _, b := range slices.Concat(v.Blocks("mount"), v.Blocks("mounts")) {
		m, err := mountOf(b)
		if err != nil {
			return err
		}
		if m.Type == "image" {
			m.Pull = policy(v, m.Source)
		}
		t.Mounts = append(t.Mounts, m)
	}
	for _, text := range v.Strings("volumes") {
		m, err := volume(text, v.String("volume_driver"))
		if err != nil {
			return err
		}
		t.Mounts = append(t.Mounts, m)
	}
	for _, text := range v.Strings("tmpfs") {
		m, err := tmpfsOf(text)
		if err != nil {
			return err
		}
		t.Mounts = append(t.Mounts, m)
	}
	for i, m := range t.Mounts {
		if !path.IsAbs(m.Target) || path.Clean(m.Target) == "/" {
			return invalid.Errorf("config: mount target %q is no absolute path below /", m.Target)
		}
		t.Mounts[i].Target = path.Clean(m.Target)
	}
	for _, text := range v.Strings("devices") { // as podman's driver has it
		dev, err := ocispec.ParseDevice(text)
		if err != nil {
			return fmt.Errorf("config.devices: %w", err)
		}
		t.Devices = append(t.Devices, dev)
	}
	for _, d := range v.Blocks("devices") {
		dev := ocispec.Device{Source: d.String("host_path"), Target: d.String("container_path"), Access: d.String("cgroup_permissions")}
		if !path.IsAbs(dev.Source) {
			return invalid.Errorf("config.devices: host_path %q is no absolute path", dev.Source)
		}
		t.Devices = append(t.Devices, dev)
	}
	return nil
}

func mountOf(b schema.Values) (Mount, error) {
	m := Mount{Type: b.String("type"), Source: b.String("source"), Target: b.String("target"), ReadOnly: b.Bool("readonly")}
	if m.Type == "" {
		m.Type = "volume" // as docker has it
	}
	m.Anonymous = m.Type == "volume" && m.Source == ""
	m.SubPath = b.Block("image_options").String("subpath")
	m.Propagation, m.NoCopy = b.Block("bind_options").String("propagation"), b.Block("volume_options").Bool("no_copy")
	if m.Labels = b.Block("volume_options").Map("labels"); len(m.Labels) == 0 {
		m.Labels = nil
	}
	d := b.Block("volume_options").Block("driver_config")
	if !slices.Contains([]string{"", "local"}, d.String("name")) {
		return m, invalid.Errorf("config.mount %s: volume_options.driver_config is not for this driver: %s", m.Target, instead)
	}
	if m.Options = d.Map("options"); len(m.Options) == 0 {
		m.Options = nil
	}
	if sub := b.Block("volume_options").String("subpath"); sub != "" && m.Type == "volume" {
		m.SubPath = sub
	}
	var err error
	if m.Size, err = b.Block("tmpfs_options").Int("size", 0, 1<<50); err != nil {
		return m, err
	}
	if m.Mode, err = b.Block("tmpfs_options").Int("mode", 0, 0o7777); err != nil {
		return m, err
	}
	switch {
	case !slices.Contains([]string{"bind", "volume", "tmpfs", "image"}, m.Type):
		return m, invalid.Errorf("config.mount: type %q is none of bind, tmpfs, volume, image", m.Type)
	case m.Anonymous:
	case (m.Type == "tmpfs") != (m.Source == ""):
		return m, invalid.Errorf("config.mount %s: type %s with source %q", m.Target, m.Type, m.Source)
	case m.Type == "volume" && strings.Contains(m.Source, "/"):
		return m, invalid.Errorf("config.mount %s: %q is no volume's name", m.Target, m.Source)
	case m.Type == "image" && b.Has("readonly") && !m.ReadOnly:
		return m, invalid.Errorf("config.mount %s: an image is read-only", m.Target)
	case m.Labels != nil && m.Type != "volume":
		return m, invalid.Errorf("config.mount %s: type %s with labels", m.Target, m.Type)
	case m.Options != nil && m.Type != "volume":
		return m, invalid.Errorf("config.mount %s: type %s with driver_config", m.Target, m.Type)
	case b.Block("image_options").Has("subpath") && m.Type != "image", b.Block("volume_options").Has("subpath") && m.Type != "volume",
		m.SubPath != "" && !filepath.IsLocal(strings.TrimPrefix(m.SubPath, "/")):
		return m, invalid.Errorf("config.mount %s: type %s with subpath %q", m.Target, m.Type, m.SubPath)
	}
	return m, nil
}

// volume reads "SOURCE:TARGET[:OPTIONS]", or "TARGET" for a volume without a name. A source that is not
// absolute lies in the task's directory; with a volume driver it is the name of a volume.
func volume(text, driver string) (Mount, error) {
	p := strings.Split(text, ":")
	if len(p) == 1 && path.IsAbs(text) {
		return Mount{Type: "volume", Target: text, Anonymous: true}, nil
	}
	if len(p) < 2 || len(p) > 4 || p[0] == "" {
		return Mount{}, invalid.Errorf("config.volumes %q is neither SOURCE:TARGET[:OPTIONS] nor an absolute TARGET", text)
	}
	m := Mount{Type: "bind", Source: p[0], Target: p[1], Make: true}
	if driver != "" && !path.IsAbs(p[0]) {
		m.Type, m.Make = "volume", false
		if strings.Contains(p[0], "/") {
			return Mount{}, invalid.Errorf("config.volumes %q: with volume_driver the source is a path or a volume's name", text)
		}
	}
	for _, options := range p[2:] {
		for o := range strings.SplitSeq(options, ",") {
			switch o {
			case "ro":
				m.ReadOnly = true
			case "z", "Z":
				m.Relabel = o
			case "rw", "delegated", "cached", "consistent", "bind", "rbind", "copy":
			case "nocopy":
				m.NoCopy = m.Type == "volume"
			case "private", "rprivate", "slave", "rslave", "shared", "rshared":
				m.Propagation = o
			default:
				err := m.flag(o)
				if err == nil && m.Type == "volume" {
					err = errors.New("a volume has no such options")
				}
				if err != nil {
					return m, invalid.Errorf("config.volumes %q: option %q: %v", text, o, err)
				}
			}
		}
	}
	return m, nil
}
