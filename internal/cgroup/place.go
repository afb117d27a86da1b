package cgroup

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Place returns where an object named name goes. It makes nothing.
//   - Adopt: exactly there; controllers that are not adopted go where they would go
//     without Adopt.
//   - a cgroupfs parent, absolute or not: parent/name below the root of each
//     hierarchy.
//   - a slice ("kubepods-pod1.slice") or systemd's slice:prefix:name form: the
//     slice's whole path, and prefix-name.scope in it or, if systemd makes units, the
//     tree of a service prefix-name.service.
//   - no parent: below above, or below the engine's own tree.
func (t *Tree) Place(parent core.Cgroup, above core.CgroupRef, name string) (core.CgroupRef, error) {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00\n") {
		return core.CgroupRef{}, fmt.Errorf("place cgroup: bad name %q: %w", name, errdefs.ErrInvalidArgument)
	}
	ref := core.CgroupRef{}
	switch {
	case parent.Parent != "":
		path, err := t.below(parent.Parent, name)
		if err != nil {
			return core.CgroupRef{}, fmt.Errorf("place cgroup %s: %w", name, err)
		}
		ref.Path = path
	case above.Path != "":
		ref.Path = above.Path + "/" + name
	default:
		ref.Path = t.root + "/" + name
	}
	if len(parent.Adopt) > 0 {
		ref.Adopted = maps.Clone(parent.Adopt)
		for c, dir := range ref.Adopted {
			if !filepath.IsAbs(dir) {
				return core.CgroupRef{}, fmt.Errorf("place cgroup %s: adopted directory %q of controller %q is not absolute: %w", name, dir, c, errdefs.ErrInvalidArgument)
			}
		}
		if err := t.adopt(&ref); err != nil {
			return core.CgroupRef{}, fmt.Errorf("place cgroup %s: %w", name, err)
		}
	}
	return ref, t.valid(ref)
}

// adopt removes the Path of a ref that is adopted everywhere, or, on v2, makes it that of the
// adopted directory, so that runtimes that use the path get the right one.
func (t *Tree) adopt(ref *core.CgroupRef) error {
	if t.layout.mode == core.CgroupV2 {
		dir := ref.Adopted[""]
		if dir == "" {
			return fmt.Errorf("a v2 machine adopts its one tree, named \"\": %w", errdefs.ErrInvalidArgument)
		}
		rel, err := filepath.Rel(t.layout.unified, dir)
		if err != nil || rel == "." || strings.HasPrefix(rel, "..") {
			return fmt.Errorf("%s is not below %s: %w", dir, t.layout.unified, errdefs.ErrInvalidArgument)
		}
		ref.Path = "/" + rel
		return nil
	}
	for _, h := range t.layout.v1 {
		if _, adopted := h.dir(*ref); !adopted && !strings.HasPrefix(h.controllers[0], "name=") {
			return nil
		}
	}
	ref.Path = ""
	return nil
}

func (t *Tree) below(parent, name string) (string, error) {
	slice, unit, isUnit := parent, "", false
	if parts := strings.Split(parent, ":"); len(parts) == 3 {
		slice, isUnit = parts[0], true
		if unit = parts[2]; unit == "" {
			unit = name
		}
		if parts[1] != "" {
			unit = parts[1] + "-" + unit
		}
		if !strings.HasSuffix(unit, ".slice") && !strings.HasSuffix(unit, ".scope") {
			unit += ".scope"
		}
		if slice == "" {
			slice = "system.slice"
		}
		if strings.ContainsAny(unit, "/\x00\n") {
			return "", fmt.Errorf("unit name %q: %w", unit, errdefs.ErrInvalidArgument)
		}
	} else if strings.HasSuffix(parent, ".slice") && !strings.Contains(parent, "/") {
		unit, isUnit = "longshore-"+name+".scope", true
	}
	if isUnit {
		path, err := ExpandSlice(slice)
		if err != nil {
			return "", err
		}
		if scope, is := strings.CutSuffix(unit, ".scope"); is && t.systemd != nil {
			unit = scope + ".service/" + inUnit
		}
		return path + "/" + unit, nil
	}
	clean := filepath.Clean("/" + parent)
	if strings.Contains(parent, "..") {
		return "", fmt.Errorf("cgroup parent %q: %w", parent, errdefs.ErrInvalidArgument)
	}
	if clean == "/" {
		return "/" + name, nil
	}
	return clean + "/" + name, nil
}

// ExpandSlice returns the path of a systemd slice: a-b.slice is in a.slice, and -.slice
// is the root, "".
func ExpandSlice(slice string) (string, error) {
	base, ok := strings.CutSuffix(slice, ".slice")
	if !ok || base == "" || strings.ContainsAny(slice, "/\x00\n") {
		return "", fmt.Errorf("slice name %q: %w", slice, errdefs.ErrInvalidArgument)
	}
	if base == "-" {
		return "", nil
	}
	var path, prefix strings.Builder
	for i, part := range strings.Split(base, "-") {
		if part == "" {
			return "", fmt.Errorf("slice name %q: %w", slice, errdefs.ErrInvalidArgument)
		}
		if i > 0 {
			prefix.WriteByte('-')
		}
		prefix.WriteString(part)
		path.WriteString("/" + prefix.String() + ".slice")
	}
	return path.String(), nil
}
