package ocispec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
)

// MountOptions is a list of mount options taken apart.
type MountOptions struct {
	// Flags are MS_* bits without propagation.
	Flags uintptr
	// Propagation is MS_PRIVATE, MS_SLAVE, MS_SHARED or MS_UNBINDABLE, with MS_REC for the
	// recursive forms; 0 for none.
	Propagation uintptr
	// RecursiveSet and RecursiveClear are MOUNT_ATTR_* bits that go to the
	// mount and everything below it ("rro" and its kind).
	RecursiveSet, RecursiveClear uint64
	// Data are the options of the filesystem itself, in order.
	Data []string
	// Below is the value of BelowOption; see Bind.Below.
	Below string
}

type mountFlag struct {
	flag  uintptr
	clear bool
}

func mountFlags() map[string]mountFlag {
	return map[string]mountFlag{
		"defaults":      {},
		"async":         {unix.MS_SYNCHRONOUS, true},
		"atime":         {unix.MS_NOATIME, true},
		"bind":          {unix.MS_BIND, false},
		"dev":           {unix.MS_NODEV, true},
		"diratime":      {unix.MS_NODIRATIME, true},
		"dirsync":       {unix.MS_DIRSYNC, false},
		"exec":          {unix.MS_NOEXEC, true},
		"iversion":      {unix.MS_I_VERSION, false},
		"lazytime":      {unix.MS_LAZYTIME, false},
		"loud":          {unix.MS_SILENT, true},
		"mand":          {unix.MS_MANDLOCK, false},
		"noatime":       {unix.MS_NOATIME, false},
		"nodev":         {unix.MS_NODEV, false},
		"nodiratime":    {unix.MS_NODIRATIME, false},
		"noexec":        {unix.MS_NOEXEC, false},
		"noiversion":    {unix.MS_I_VERSION, true},
		"nolazytime":    {unix.MS_LAZYTIME, true},
		"nomand":        {unix.MS_MANDLOCK, true},
		"norelatime":    {unix.MS_RELATIME, true},
		"nostrictatime": {unix.MS_STRICTATIME, true},
		"nosuid":        {unix.MS_NOSUID, false},
		"nosymfollow":   {unix.MS_NOSYMFOLLOW, false},
		"rbind":         {unix.MS_BIND | unix.MS_REC, false},
		"relatime":      {unix.MS_RELATIME, false},
		"remount":       {unix.MS_REMOUNT, false},
		"ro":            {unix.MS_RDONLY, false},
		"rw":            {unix.MS_RDONLY, true},
		"silent":        {unix.MS_SILENT, false},
		"strictatime":   {unix.MS_STRICTATIME, false},
		"suid":          {unix.MS_NOSUID, true},
		"symfollow":     {unix.MS_NOSYMFOLLOW, true},
		"sync":          {unix.MS_SYNCHRONOUS, false},
	}
}

func propagations() map[string]uintptr {
	return map[string]uintptr{
		"private":     unix.MS_PRIVATE,
		"slave":       unix.MS_SLAVE,
		"shared":      unix.MS_SHARED,
		"unbindable":  unix.MS_UNBINDABLE,
		"rprivate":    unix.MS_PRIVATE | unix.MS_REC,
		"rslave":      unix.MS_SLAVE | unix.MS_REC,
		"rshared":     unix.MS_SHARED | unix.MS_REC,
		"runbindable": unix.MS_UNBINDABLE | unix.MS_REC,
	}
}

func recursiveAttrs() map[string]struct {
	attr  uint64
	clear bool
} {
	return map[string]struct {
		attr  uint64
		clear bool
	}{
		"rro":      {unix.MOUNT_ATTR_RDONLY, false},
		"rrw":      {unix.MOUNT_ATTR_RDONLY, true},
		"rnosuid":  {unix.MOUNT_ATTR_NOSUID, false},
		"rsuid":    {unix.MOUNT_ATTR_NOSUID, true},
		"rnodev":   {unix.MOUNT_ATTR_NODEV, false},
		"rdev":     {unix.MOUNT_ATTR_NODEV, true},
		"rnoexec":  {unix.MOUNT_ATTR_NOEXEC, false},
		"rexec":    {unix.MOUNT_ATTR_NOEXEC, true},
		"rnoatime": {unix.MOUNT_ATTR_NOATIME, false},
	}
}

// The tables, made once: a container has dozens of mounts.
var (
	flagsByName        = mountFlags()     //nolint:gochecknoglobals // never changed
	propagationsByName = propagations()   //nolint:gochecknoglobals // never changed
	attrsByName        = recursiveAttrs() //nolint:gochecknoglobals // never changed
)

// ParseMountOptions parses mount options with the names of mount(8) and the OCI runtime spec. A
// later option wins over an earlier one. Options that are no flags go to Data unchanged.
func ParseMountOptions(options []string) MountOptions {
	var m MountOptions
	for _, o := range options {
		if base, ok := strings.CutPrefix(o, belowOption); ok {
			m.Below = base
		} else if f, ok := flagsByName[o]; ok {
			if f.clear {
				m.Flags &^= f.flag
			} else {
				m.Flags |= f.flag
			}
		} else if p, ok := propagationsByName[o]; ok {
			m.Propagation = p
		} else if a, ok := attrsByName[o]; ok {
			m.RecursiveSet &^= a.attr
			m.RecursiveClear &^= a.attr
			if a.clear {
				m.RecursiveClear |= a.attr
			} else {
				m.RecursiveSet |= a.attr
			}
		} else if o != "" {
			m.Data = append(m.Data, o)
		}
	}
	return m
}

// Bind is one directory or file of the host seen in a container.
type Bind struct {
	Source, Target string
	ReadOnly       bool
	// Below, when set, is a trusted parent directory of Source: the rest of Source is resolved at
	// the moment of mounting and through no link, because a workload may own parts of it.
	Below string
	// RecursiveReadOnly makes mounts below Source read-only too; the runtime must have it
	// (core.RuntimeFeatures.RecursiveReadOnly).
	RecursiveReadOnly bool
	// Propagation is "", private, rprivate, slave, rslave, shared or rshared;
	// "" is rprivate.
	Propagation string
	// Relabel is "", or z or Z for SELinux labels of the files: see TakeRelabels.
	Relabel string
	// NonRecursive leaves out mounts below Source.
	NonRecursive bool
	// UIDs and GIDs map the owners of files ("idmap"); the runtime must have
	// it (core.RuntimeFeatures.IDMappedMounts).
	UIDs, GIDs []specs.LinuxIDMapping
}

// Mount returns b as the OCI mount. InvalidArgument when the propagation is
// unknown, a path is not absolute, or RecursiveReadOnly goes without ReadOnly.
func (b Bind) Mount() (specs.Mount, error) {
	if !strings.HasPrefix(b.Source, "/") {
		return specs.Mount{}, fmt.Errorf("mount %s: source %q is not absolute: %w", b.Target, b.Source, errdefs.ErrInvalidArgument)
	}
	if !strings.HasPrefix(b.Target, "/") {
		return specs.Mount{}, fmt.Errorf("mount %s: target is not absolute: %w", b.Target, errdefs.ErrInvalidArgument)
	}
	prop := b.Propagation
	if prop == "" {
		prop = "rprivate"
	}
	if _, ok := propagations()[prop]; !ok {
		return specs.Mount{}, fmt.Errorf("mount %s: unknown propagation %q: %w", b.Target, prop, errdefs.ErrInvalidArgument)
	}
	m := specs.Mount{Destination: b.Target, Type: "bind", Source: b.Source, UIDMappings: b.UIDs, GIDMappings: b.GIDs}
	if b.NonRecursive {
		m.Options = append(m.Options, "bind")
	} else {
		m.Options = append(m.Options, "rbind")
	}
	m.Options = append(m.Options, prop)
	if b.Relabel != "" {
		m.Options = append(m.Options, b.Relabel)
	}
	switch {
	case b.RecursiveReadOnly && !b.ReadOnly:
		return specs.Mount{}, fmt.Errorf("mount %s: recursive read-only without read-only: %w", b.Target, errdefs.ErrInvalidArgument)
	case b.RecursiveReadOnly:
		// With propagation into the container a mount could appear below that
		// is writable.
		if prop != "private" && prop != "rprivate" {
			return specs.Mount{}, fmt.Errorf("mount %s: recursive read-only with %s propagation: %w", b.Target, prop, errdefs.ErrInvalidArgument)
		}
		m.Options = append(m.Options, "rro")
	case b.ReadOnly:
		m.Options = append(m.Options, "ro")
	default:
		m.Options = append(m.Options, "rw")
	}
	if b.Below != "" {
		if _, ok := beneath.Rel(b.Below, b.Source); !ok {
			return specs.Mount{}, fmt.Errorf("mount %s: source %q is not below %q: %w", b.Target, b.Source, b.Below, errdefs.ErrInvalidArgument)
		}
		m.Options = append(m.Options, BelowOption(b.Below))
	}
	return m, nil
}

// belowOption begins the mount option that carries Bind.Below in a spec.
const belowOption = "x-longshore.below="

// BelowOption is the mount option that says which part of a bind's source is
// trusted; see Bind.Below.
func BelowOption(base string) string { return belowOption + base }

// IsBelowOption reports whether o is one. A runtime that does not know it must
// not see it.
func IsBelowOption(o string) bool { return strings.HasPrefix(o, belowOption) }

// Below splits the source of a bind into the trusted directory and the part that is resolved below
// it, through no link; base is "" if the whole source is trusted. InvalidArgument when the source
// is not below the directory named.
func Below(m specs.Mount) (base, rel string, err error) {
	base = ParseMountOptions(m.Options).Below
	if base == "" {
		return "", "", nil
	}
	rel, ok := beneath.Rel(base, m.Source)
	if !ok {
		return "", "", fmt.Errorf("source %q is not below %q: %w", m.Source, base, errdefs.ErrInvalidArgument)
	}
	return base, rel, nil
}

// RootPropagation returns the propagation of a container's root that the mounts need: shared ones
// need a shared or slave parent. It is "" when the runtime's default (rprivate) will do.
func RootPropagation(mounts []specs.Mount) string {
	need := ""
	for _, m := range mounts {
		switch ParseMountOptions(m.Options).Propagation &^ unix.MS_REC {
		case unix.MS_SHARED:
			return "rshared"
		case unix.MS_SLAVE:
			need = "rslave"
		}
	}
	return need
}

// MountOptionNames are the options that ParseMountOptions knows by name, sorted.
func MountOptionNames() []string {
	var names []string
	for n := range mountFlags() {
		names = append(names, n)
	}
	for n := range propagations() {
		names = append(names, n)
	}
	for n := range recursiveAttrs() {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
