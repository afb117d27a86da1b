package translate

import (
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/invalid"
)

// Volume has the settings of a volume that a container's mount creates.
type Volume struct {
	Labels, Options map[string]string
}

// Image is an image, or a part of it, that a container mounts.
type Image struct {
	Name, Target, Subpath string
}

// Mounts are the mounts of a request.
type Mounts struct {
	List  []*longshorev1.Mount
	Tmpfs []*longshorev1.Tmpfs
	// Directories of the host that are created if they do not exist.
	Make []string
	// Images are mounted read-only.
	Images []Image
	// Volumes have settings, by the targets of their mounts.
	Volumes map[string]Volume
}

// mounts returns the mounts of a request: those of Binds, of Mounts, of Tmpfs, and the anonymous volumes of Config.Volumes.
func (c *Create) mounts() (m Mounts, err error) {
	m.Volumes = map[string]Volume{}
	taken := map[string]bool{}
	for _, text := range c.HostConfig.Binds {
		one, err := bind(text)
		if err != nil {
			return m, err
		}
		if taken[one.GetTarget()] {
			return m, invalid.Errorf("Duplicate mount point: %s", one.GetTarget())
		}
		taken[one.GetTarget()] = true
		if path.IsAbs(one.GetSource()) {
			m.Make = append(m.Make, one.GetSource())
		}
		m.List = append(m.List, one)
	}
	for _, asked := range c.HostConfig.Mounts {
		target := path.Clean(asked.Target)
		if taken[target] {
			return m, invalid.Errorf("Duplicate mount point: %s", target)
		}
		taken[target] = true
		if err := m.add(asked); err != nil {
			return m, err
		}
	}
	for _, target := range slices.Sorted(maps.Keys(c.HostConfig.Tmpfs)) {
		switch {
		case path.Clean(target) == "/":
			return m, invalid.Errorf("invalid specification: destination can't be '/'")
		case !path.IsAbs(target):
			return m, invalid.Errorf("invalid mount path: '%s' mount path must be absolute", target)
		}
		if options := c.HostConfig.Tmpfs[target]; !taken[path.Clean(target)] {
			m.Tmpfs = append(m.Tmpfs, &longshorev1.Tmpfs{Target: target, Options: split(options, ",")})
			taken[path.Clean(target)] = true
		}
	}
	for _, target := range slices.Sorted(maps.Keys(c.Volumes)) {
		if clean := path.Clean(target); !taken[clean] {
			taken[clean] = true
			m.List = append(m.List, &longshorev1.Mount{Target: clean, Anonymous: true})
		}
	}
	return m, nil
}

// bind reads SOURCE:TARGET[:OPTIONS]. A source that is no absolute path is a volume's name.
func bind(text string) (*longshorev1.Mount, error) {
	parts := strings.Split(text, ":")
	if len(parts) == 1 {
		if !path.IsAbs(parts[0]) {
			return nil, invalid.Errorf("invalid volume specification: '%s': invalid mount config for type \"volume\": invalid mount path: '%s' mount path must be absolute", text, parts[0])
		}
		return &longshorev1.Mount{Target: path.Clean(parts[0]), Anonymous: true}, nil
	}
	if len(parts) > 3 || parts[0] == "" || !path.IsAbs(parts[1]) {
		return nil, invalid.Errorf("invalid volume specification: '%s'", text)
	}
	if path.Clean(parts[1]) == "/" {
		return nil, invalid.Errorf("invalid volume specification: '%s': invalid mount config for type \"bind\": invalid specification: destination can't be '/'", text)
	}
	m := &longshorev1.Mount{Source: parts[0], Target: path.Clean(parts[1])}
	if path.IsAbs(m.GetSource()) {
		m.Source = path.Clean(m.GetSource())
	}
	if len(parts) < 3 {
		return m, nil
	}
	for _, o := range strings.Split(parts[2], ",") {
		switch o {
		case "z", "Z":
			m.Relabel = o
		case "", "rw", "cached", "delegated", "consistent", "default":
		case "ro":
			m.ReadOnly = true
		case "nocopy":
			m.NoCopy = true
		case "shared", "rshared", "slave", "rslave", "private", "rprivate":
			m.Propagation = o
		default:
			return nil, invalid.Errorf("invalid volume specification: '%s': invalid mode: %s", text, parts[2])
		}
	}
	return m, nil
}

// add adds a mount of Mounts.
func (m *Mounts) add(asked dockertypes.Mount) error {
	wrong := func(text string) error {
		return invalid.Errorf("invalid mount config for type \"%s\": %s", asked.Type, text)
	}
	if !path.IsAbs(asked.Target) {
		if asked.Target == "" {
			return wrong("field Target must not be empty")
		}
		return wrong("invalid mount path: '" + asked.Target + "' mount path must be absolute")
	}
	if path.Clean(asked.Target) == "/" {
		return wrong("invalid specification: destination can't be '/'")
	}
	one := &longshorev1.Mount{Source: asked.Source, Target: path.Clean(asked.Target), ReadOnly: asked.ReadOnly, ByMount: true}
	switch asked.Type {
	case "bind":
		if asked.Source == "" {
			return wrong("field Source must not be empty")
		}
		if !path.IsAbs(asked.Source) {
			return wrong("invalid mount path: '" + asked.Source + "' mount path must be absolute")
		}
		if asked.VolumeOptions != nil || asked.TmpfsOptions != nil {
			return wrong("field VolumeOptions and TmpfsOptions must not be specified")
		}
		if o := asked.BindOptions; o != nil {
			switch force := o.ReadOnlyForceRecursive; {
			case force && !asked.ReadOnly:
				return wrong("mount options conflict: ReadOnlyForceRecursive needs ReadOnly")
			case force && (o.NonRecursive || o.ReadOnlyNonRecursive):
				return wrong("mount options conflict: ReadOnlyForceRecursive cannot be combined with NonRecursive or ReadOnlyNonRecursive")
			case force && o.Propagation != "" && o.Propagation != "rprivate":
				return wrong("mount options conflict: ReadOnlyForceRecursive needs the propagation rprivate")
			}
			one.Propagation = o.Propagation
			if o.CreateMountpoint {
				m.Make = append(m.Make, path.Clean(asked.Source))
			}
		}
	case "volume":
		one.Anonymous = asked.Source == ""
		if asked.BindOptions != nil || asked.TmpfsOptions != nil {
			return wrong("field BindOptions and TmpfsOptions must not be specified")
		}
		if o := asked.VolumeOptions; o != nil {
			if one.NoCopy, one.SubPath = o.NoCopy, o.Subpath; o.Subpath != "" && !filepath.IsLocal(o.Subpath) {
				return wrong("subpath must be a relative path within the volume")
			}
			v := Volume{Labels: o.Labels}
			if d := o.DriverConfig; d != nil {
				v.Options = d.Options
			}
			m.Volumes[one.GetTarget()] = v
		}
	case "tmpfs":
		if asked.Source != "" {
			return wrong("field Source must not be specified")
		}
		m.Tmpfs = append(m.Tmpfs, tmpfs(asked))
		return nil
	case "image":
		if asked.Source == "" {
			return wrong("field Source must not be empty")
		}
		if asked.BindOptions != nil || asked.VolumeOptions != nil {
			return wrong("field BindOptions and VolumeOptions must not be specified")
		}
		i := Image{Name: asked.Source, Target: one.GetTarget()}
		if o := asked.ImageOptions; o != nil {
			i.Subpath = o.Subpath
		}
		if i.Subpath != "" && !filepath.IsLocal(i.Subpath) {
			return wrong("subpath must be a relative path within the image")
		}
		m.Images = append(m.Images, i)
		return nil
	case "npipe", "cluster":
		return wrong("mounts of this type are not possible on this node")
	default:
		return invalid.Errorf("invalid mount config for type \"%s\": mount type unknown: \"%s\"", asked.Type, asked.Type)
	}
	m.List = append(m.List, one)
	return nil
}

// recursion returns the targets of binds. The kernel makes the mounts below those in readOnly read-only, and a container does not get
// the mounts below those in alone.
func (c *Create) recursion() (readOnly, alone map[string]bool) {
	readOnly, alone = map[string]bool{}, map[string]bool{}
	for _, text := range c.HostConfig.Binds {
		if m, err := bind(text); err == nil && m.GetReadOnly() && private(m.GetPropagation()) && !c.flat {
			readOnly[m.GetTarget()] = true
		}
	}
	for _, m := range c.HostConfig.Mounts {
		o := m.BindOptions
		if m.Type != "bind" {
			continue
		}
		if o == nil {
			o = &dockertypes.BindOptions{}
		}
		alone[path.Clean(m.Target)] = o.NonRecursive
		readOnly[path.Clean(m.Target)] = m.ReadOnly && private(o.Propagation) && !o.NonRecursive && !o.ReadOnlyNonRecursive && !c.flat
	}
	return readOnly, alone
}

// private reports whether no mount of the host appears in a bind later, which would be writable.
func private(propagation string) bool {
	return propagation == "" || propagation == "private" || propagation == "rprivate"
}

func tmpfs(asked dockertypes.Mount) *longshorev1.Tmpfs {
	t := &longshorev1.Tmpfs{Target: asked.Target}
	if asked.ReadOnly {
		t.Options = append(t.Options, "ro")
	}
	if o := asked.TmpfsOptions; o != nil {
		if o.SizeBytes > 0 {
			t.Options = append(t.Options, "size="+strconv.FormatInt(o.SizeBytes, 10))
		}
		if o.Mode != 0 {
			t.Options = append(t.Options, "mode="+strconv.FormatUint(uint64(o.Mode), 8))
		}
		for _, pair := range o.Options {
			t.Options = append(t.Options, strings.Join(pair, "="))
		}
	}
	return t
}

// split is strings.Split without empty parts.
func split(text, sep string) []string {
	return slices.DeleteFunc(strings.Split(text, sep), func(s string) bool { return s == "" })
}
