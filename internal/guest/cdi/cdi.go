// Package cdi reads the files of the Container Device Interface in a guest, and adds the devices in them to containers'
// specs. The agent of a node has internal/adjust/cdi for that, by CNCF's library, which is too large
// for a guest.
//
// It knows nothing about Kata. Start at Dir.
package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// annotationPrefix begins the annotations that list devices.
const annotationPrefix = "cdi.k8s.io/"

// variable lists devices in a container's environment.
const variable = "VISIBLE_CDI_DEVICES="

// maxFile is the size of the largest file that is read.
const maxFile = 4 << 20

// Names returns the devices that annotations name, such as "vendor.com/gpu=0", in the order of the annotations' names.
func Names(annotations map[string]string) (list []string, err error) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if !strings.HasPrefix(key, annotationPrefix) {
			continue
		}
		for name := range strings.SplitSeq(annotations[key], ",") {
			if _, _, err := split(name); err != nil {
				return nil, fmt.Errorf("annotation %s: %w", clip(key), err)
			}
			list = appendNew(list, name)
		}
	}
	return list, nil
}

// Visible returns the devices that a container's environment names: kinds with numbers, as "vendor.com/gpu=0,1:vendor.com/nic=all".
func Visible(env []string) (list []string, err error) {
	value := ""
	for _, v := range env {
		if rest, ok := strings.CutPrefix(v, variable); ok {
			value = strings.TrimSpace(rest)
			break
		}
	}
	if value == "" || value == "none" || value == "void" {
		return nil, nil
	}
	for entry := range strings.SplitSeq(value, ":") {
		kind, numbers, _ := strings.Cut(entry, "=")
		kind = strings.TrimSpace(kind)
		parts := strings.Split(numbers, ",")
		for _, n := range parts {
			n = strings.TrimSpace(n)
			if n == "all" && len(parts) > 1 {
				return nil, invalid.Errorf("%s%s: all and numbers of one kind", variable, clip(value))
			}
			if n != "all" {
				u, err := strconv.ParseUint(n, 10, 32)
				if err != nil {
					return nil, invalid.Errorf("%s%s: KIND=NUMBERS or KIND=all is wanted", variable, clip(value))
				}
				n = strconv.FormatUint(u, 10)
			}
			name := kind + "=" + n
			if _, _, err := split(name); err != nil {
				return nil, fmt.Errorf("%s%s: %w", variable, clip(value), err)
			}
			list = appendNew(list, name)
		}
	}
	return list, nil
}

func appendNew(list []string, name string) []string {
	if slices.Contains(list, name) {
		return list
	}
	return append(list, name)
}

// split splits a device's name into its kind and its name among those.
func split(name string) (kind, device string, err error) {
	kind, device, ok := strings.Cut(name, "=")
	vendor, class, has := strings.Cut(kind, "/")
	if !ok || !has || !isWord(vendor) || !isWord(class) || !isWord(device) {
		return "", "", invalid.Errorf("device %q: VENDOR/CLASS=NAME is wanted", clip(name))
	}
	return kind, device, nil
}

// isWord reports whether s is letters, digits and some marks, and begins and ends with a letter or digit.
func isWord(s string) bool {
	letter := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' }
	if s == "" || !letter(rune(s[0])) || !letter(rune(s[len(s)-1])) {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return !letter(r) && !strings.ContainsRune("._-:", r) })
}

func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "…"
	}
	return s
}

// file is the content of a CDI file.
type file struct {
	Kind           string   `yaml:"kind"`
	ContainerEdits edits    `yaml:"containerEdits"`
	Devices        []device `yaml:"devices"`
}

type device struct {
	Name           string `yaml:"name"`
	ContainerEdits edits  `yaml:"containerEdits"`
}

// edits are changes to a container.
type edits struct {
	Env            []string `yaml:"env"`
	DeviceNodes    []node   `yaml:"deviceNodes"`
	Mounts         []mount  `yaml:"mounts"`
	Hooks          []hook   `yaml:"hooks"`
	AdditionalGids []uint32 `yaml:"additionalGids"`
	IntelRdt       any      `yaml:"intelRdt"`
	NetDevices     any      `yaml:"netDevices"`
}

type node struct {
	Path        string  `yaml:"path"`
	HostPath    string  `yaml:"hostPath"`
	Type        string  `yaml:"type"`
	Major       int64   `yaml:"major"`
	Minor       int64   `yaml:"minor"`
	FileMode    *uint32 `yaml:"fileMode"`
	Permissions string  `yaml:"permissions"`
	UID         *uint32 `yaml:"uid"`
	GID         *uint32 `yaml:"gid"`
}

type mount struct {
	HostPath      string   `yaml:"hostPath"`
	ContainerPath string   `yaml:"containerPath"`
	Type          string   `yaml:"type"`
	Options       []string `yaml:"options"`
}

type hook struct {
	HookName string   `yaml:"hookName"`
	Path     string   `yaml:"path"`
	Args     []string `yaml:"args"`
	Env      []string `yaml:"env"`
	Timeout  *int     `yaml:"timeout"`
}

// Dir is the directory of the files.
type Dir string

// ErrNotYet means that no file describes the kind of a device. A vendor's program may write one later.
var ErrNotYet = errors.New("no file has devices of this kind")

// Find returns the edits for devices. An unreadable file fails the call only if no other file has the device. The error is
// ErrNotYet for a device of an unknown kind.
func (d Dir) Find(names []string) (Edits, error) {
	files, broken := d.read()
	var out Edits
	used := map[int]bool{}
	for _, name := range names {
		kind, device, err := split(name)
		if err != nil {
			return out, err
		}
		in, found, known := -1, edits{}, false
		for i, f := range files {
			if f.Kind != kind {
				continue
			}
			known = true
			for _, one := range f.Devices {
				if one.Name != device {
					continue
				}
				if in >= 0 {
					return out, invalid.Errorf("device %s is in two files of %s", name, d)
				}
				in, found = i, one.ContainerEdits
			}
		}
		if in < 0 {
			if known {
				return out, invalid.Errorf("there is no device %s, and %s has others of its kind", name, d)
			}
			return out, fmt.Errorf("device %s: %w", name, errors.Join(ErrNotYet, broken))
		}
		if !used[in] {
			used[in] = true
			out.list = append(out.list, files[in].ContainerEdits)
		}
		out.list = append(out.list, found)
	}
	return out, nil
}

// read reads all files, and says which cannot be.
func (d Dir) read() (list []file, broken error) {
	entries, err := os.ReadDir(string(d))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); ext != ".json" && ext != ".yaml" {
			continue
		}
		at := filepath.Join(string(d), e.Name())
		f, err := readFile(at)
		if err != nil {
			broken = errors.Join(broken, fmt.Errorf("file %s: %w", at, err))
			continue
		}
		list = append(list, f)
	}
	return list, broken
}

func readFile(at string) (file, error) {
	st, err := os.Stat(at)
	if err != nil {
		return file{}, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxFile {
		return file{}, invalid.Errorf("a regular file of at most %d MiB is wanted", maxFile>>20)
	}
	b, err := os.ReadFile(at)
	if err != nil {
		return file{}, err
	}
	return decode(b)
}

// decode reads a file's content. JSON is YAML, too.
func decode(b []byte) (f file, err error) {
	if err := yaml.Unmarshal(b, &f); err != nil {
		return f, err
	}
	if _, _, err := split(f.Kind + "=x"); err != nil {
		return f, invalid.Errorf("kind %q: VENDOR/CLASS is wanted", clip(f.Kind))
	}
	return f, nil
}

// Edits are the changes to a container for its devices.
type Edits struct{ list []edits }

// Apply changes a container's spec.
func (e Edits) Apply(s *specs.Spec) error {
	for _, one := range e.list {
		if one.IntelRdt != nil || one.NetDevices != nil {
			return invalid.Errorf("a device's edits have intelRdt or netDevices, which are not served in a guest")
		}
		for _, n := range one.DeviceNodes {
			if err := n.add(s); err != nil {
				return err
			}
		}
		s.Process.Env = withVariables(s.Process.Env, one.Env)
		for _, m := range one.Mounts {
			m.add(s)
		}
		for _, h := range one.Hooks {
			if err := h.add(s); err != nil {
				return err
			}
		}
		for _, g := range one.AdditionalGids {
			if g != 0 && !slices.Contains(s.Process.User.AdditionalGids, g) {
				s.Process.User.AdditionalGids = append(s.Process.User.AdditionalGids, g)
			}
		}
	}
	return nil
}

// withVariables adds variables to an environment, in place of those of the same name.
func withVariables(env, more []string) []string {
	env = slices.Clone(env)
	for _, v := range more {
		name, _, _ := strings.Cut(v, "=")
		i := slices.IndexFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		if i < 0 {
			env = append(env, v)
		} else {
			env[i] = v
		}
	}
	return env
}

// add gives a container a device file, and the right to use it.
func (n node) add(s *specs.Spec) error {
	from := n.HostPath
	if from == "" {
		from = n.Path
	}
	d := specs.LinuxDevice{Path: n.Path, Type: n.Type, Major: n.Major, Minor: n.Minor, UID: n.UID, GID: n.GID}
	var st unix.Stat_t
	if n.Type == "" || n.Type != "p" && n.Major == 0 && n.Minor == 0 {
		if err := unix.Stat(from, &st); err != nil {
			return fmt.Errorf("device file %s: %w", clip(from), err)
		}
		kind := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFBLK:
			kind = "b"
		case unix.S_IFCHR:
			kind = "c"
		case unix.S_IFIFO:
			kind = "p"
		}
		if kind == "" || n.Type != "" && n.Type != kind && (n.Type != "u" || kind != "c") {
			return invalid.Errorf("device file %s: it has another type", clip(from))
		}
		d.Type = kind
		if kind != "p" {
			d.Major, d.Minor = int64(unix.Major(st.Rdev)), int64(unix.Minor(st.Rdev))
		}
	}
	mode := fs.FileMode(st.Mode) & fs.ModePerm
	if n.FileMode != nil {
		mode = fs.FileMode(*n.FileMode) & fs.ModePerm
	}
	if n.FileMode != nil || st.Mode != 0 {
		d.FileMode = &mode
	}
	if s.Process.User.UID != 0 && d.UID == nil {
		d.UID = new(s.Process.User.UID)
	}
	if s.Process.User.GID != 0 && d.GID == nil {
		d.GID = new(s.Process.User.GID)
	}
	l := s.Linux
	l.Devices = append(slices.DeleteFunc(slices.Clone(l.Devices), func(o specs.LinuxDevice) bool { return o.Path == d.Path }), d)
	if d.Type == "b" || d.Type == "c" {
		access := n.Permissions
		if access == "" {
			access = "rwm"
		}
		if l.Resources == nil {
			l.Resources = &specs.LinuxResources{}
		}
		l.Resources.Devices = append(slices.Clone(l.Resources.Devices), specs.LinuxDeviceCgroup{Allow: true, Type: d.Type, Major: new(d.Major), Minor: new(d.Minor), Access: access})
	}
	return nil
}

// add gives a container a mount, in place of one at the same path.
func (m mount) add(s *specs.Spec) {
	one := specs.Mount{Destination: m.ContainerPath, Source: m.HostPath, Type: m.Type, Options: m.Options}
	if one.Type == "" {
		one.Type = "bind"
	}
	s.Mounts = append(slices.DeleteFunc(slices.Clone(s.Mounts), func(o specs.Mount) bool { return o.Destination == one.Destination }), one)
}

// add gives a container a hook.
func (h hook) add(s *specs.Spec) error {
	if s.Hooks == nil {
		s.Hooks = &specs.Hooks{}
	}
	to := map[string]*[]specs.Hook{
		"prestart":      &s.Hooks.Prestart, //nolint:staticcheck // files have it
		"createRuntime": &s.Hooks.CreateRuntime, "createContainer": &s.Hooks.CreateContainer, "startContainer": &s.Hooks.StartContainer,
		"poststart": &s.Hooks.Poststart, "poststop": &s.Hooks.Poststop,
	}[h.HookName]
	if to == nil {
		return invalid.Errorf("hook %q: there is no such kind", clip(h.HookName))
	}
	*to = append(slices.Clone(*to), specs.Hook{Path: h.Path, Args: h.Args, Env: h.Env, Timeout: h.Timeout})
	return nil
}
