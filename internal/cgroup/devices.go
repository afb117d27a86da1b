package cgroup

import (
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup/device"
	"github.com/longshore/longshore/internal/core"
)

// Dirs returns ref's directories: those in v1 hierarchies in a fixed order, and the directory in
// the v2 tree for a new process, "" if v1 has the controllers. Own maps a v1 hierarchy's name (the
// last element of its mount point), or "" for v2, to ref's directory there.
func (t *Tree) Dirs(ref core.CgroupRef) (v1 []string, unified string, own map[string]string) {
	own = map[string]string{}
	for _, h := range t.layout.v1 {
		if dir, _ := h.dir(ref); dir != "" {
			v1 = append(v1, dir)
			own[filepath.Base(h.mount)] = dir
		}
	}
	if t.layout.mode == core.CgroupV2 {
		unified = t.layout.v2Dir(ref)
		own[""] = unified
	}
	return v1, unified, own
}

// Devices sets which devices the processes in ref may use. The rules apply in their
// order, as the OCI runtime spec says. On v1, ref must be new.
func (t *Tree) Devices(ref core.CgroupRef, rules []specs.LinuxDeviceCgroup) error {
	if len(rules) == 0 {
		return nil
	}
	parsed := make([]device.Rule, len(rules))
	for i, r := range rules {
		p, err := deviceRule(r)
		if err != nil {
			return fmt.Errorf("linux.resources.devices[%d]: %w", i, err)
		}
		parsed[i] = p
	}
	if t.layout.mode == core.CgroupV2 {
		dir := t.layout.v2Dir(ref)
		if dir == "" {
			return nil
		}
		if err := t.program(dir, parsed); err != nil {
			return fmt.Errorf("device rules of %s: %w", dir, err)
		}
		return nil
	}
	dir, ok := t.layout.v1Dir(ref, "devices")
	if !ok {
		return nil
	}
	return writeRules(dir, parsed)
}

// writeRules writes each rule with its own write, as the kernel demands. Consecutive
// rules that all allow, or all deny, share an open file.
func writeRules(dir string, rules []device.Rule) (err error) {
	fd, open := -1, ""
	closeAll := func() {
		if fd >= 0 {
			_ = unix.Close(fd) // each write has reported its error already
		}
	}
	defer func() { closeAll() }()
	for _, r := range rules {
		file := "devices.deny"
		if r.Allow {
			file = "devices.allow"
		}
		if file != open {
			closeAll()
			if fd, err = openToWrite(filepath.Join(dir, file)); err != nil {
				return err
			}
			open = file
		}
		if err := write(fd, r.String()); err != nil {
			return fmt.Errorf("device rule %s of %s: %w", r.String(), dir, err)
		}
	}
	return nil
}

func deviceRule(r specs.LinuxDeviceCgroup) (device.Rule, error) {
	d := device.Rule{Allow: r.Allow, Major: device.Any, Minor: device.Any, Access: device.Full}
	switch r.Type {
	case "", "a":
		d.Kind = device.All
	case "c", "b":
		d.Kind = r.Type[0]
	default:
		return d, fmt.Errorf("type %s: unknown: %w", strconv.Quote(r.Type), errdefs.ErrInvalidArgument)
	}
	if r.Major != nil {
		d.Major = *r.Major
	}
	if r.Minor != nil {
		d.Minor = *r.Minor
	}
	if r.Access != "" {
		var ok bool
		if d.Access, ok = device.ParseAccess(r.Access); !ok {
			return d, fmt.Errorf("access %s: want some of rwm, in that order: %w", strconv.Quote(r.Access), errdefs.ErrInvalidArgument)
		}
	}
	return d, nil
}
