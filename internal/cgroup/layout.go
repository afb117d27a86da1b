package cgroup

import (
	"bufio"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// layout says where the hierarchies are mounted.
type layout struct {
	mode    core.CgroupMode
	v1      []hierarchy
	unified string // mount point of the v2 tree; "" if there is none
	// nsDelegate means that the v2 tree is mounted with nsdelegate: the processes of a cgroup namespace cannot change
	// the limits of its root.
	nsDelegate bool
}

// hierarchy is one mounted v1 tree.
type hierarchy struct {
	controllers []string // "cpu", "cpuacct", "name=systemd"
	mount       string
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// parseLayout reads a mountinfo file. Of several mounts of one hierarchy, the first that
// shows its root is used.
func parseLayout(r io.Reader) (layout, error) {
	var l layout
	seen := map[string]bool{}
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		before, after, ok := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if !ok || len(left) < 5 || len(right) < 1 {
			continue
		}
		mount := unescape(left[4])
		switch right[0] {
		case "cgroup2":
			if l.unified == "" {
				l.unified = mount
				l.nsDelegate = slices.Contains(strings.Split(right[len(right)-1], ","), "nsdelegate")
			}
		case "cgroup":
			h := hierarchy{mount: mount, controllers: controllersOf(right[len(right)-1])}
			if id := left[2]; len(h.controllers) > 0 && !seen[id] { // major:minor, one per hierarchy
				seen[id] = true
				l.v1 = append(l.v1, h)
			}
		}
	}
	if err := sc.Err(); err != nil {
		return layout{}, err
	}
	controllers := slices.ContainsFunc(l.v1, func(h hierarchy) bool { return !strings.HasPrefix(h.controllers[0], "name=") })
	switch {
	case l.unified != "" && controllers:
		l.mode = core.CgroupHybrid
	case l.unified != "":
		l.mode = core.CgroupV2
		l.v1 = nil
	case controllers:
		l.mode = core.CgroupV1
	default:
		return layout{}, fmt.Errorf("no cgroup controllers are mounted: %w", errdefs.ErrFailedPrecondition)
	}
	return l, nil
}

func controllersOf(superOptions string) []string {
	var out []string
	for o := range strings.SplitSeq(superOptions, ",") {
		switch o {
		case "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids",
			"hugetlb", "net_cls", "net_prio", "perf_event", "rdma", "misc":
			out = append(out, o)
		default:
			if strings.HasPrefix(o, "name=") {
				out = append(out, o)
			}
		}
	}
	return out
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// mounts returns every hierarchy's mount point.
func (l layout) mounts() []string {
	var out []string
	for _, h := range l.v1 {
		out = append(out, h.mount)
	}
	if l.unified != "" {
		out = append(out, l.unified)
	}
	return out
}

// v1Dir returns ref's directory in the hierarchy of a v1 controller. It reports false if
// this node does not have the controller, or ref is not in the hierarchy.
func (l layout) v1Dir(ref core.CgroupRef, controller string) (string, bool) {
	for _, h := range l.v1 {
		if h.has(controller) {
			dir, _ := h.dir(ref)
			return dir, dir != ""
		}
	}
	return "", false
}

// dir returns ref's directory in h, "" if it has none, and whether it is adopted.
func (h hierarchy) dir(ref core.CgroupRef) (dir string, adopted bool) {
	for _, c := range h.controllers {
		if d := ref.Adopted[c]; d != "" {
			return filepath.Clean(d), true
		}
	}
	if ref.Path == "" {
		return "", false
	}
	return h.mount + ref.Path, false
}

// v2Dir returns ref's directory in the v2 tree, "" if it has none.
func (l layout) v2Dir(ref core.CgroupRef) string {
	if d := ref.Adopted[""]; d != "" {
		return filepath.Clean(d)
	}
	if ref.Path == "" || l.unified == "" {
		return ""
	}
	return l.unified + ref.Path
}

// dirs returns all of ref's directories, including adopted ones.
func (l layout) dirs(ref core.CgroupRef) []string {
	var out []string
	for _, h := range l.v1 {
		if dir, _ := h.dir(ref); dir != "" {
			out = append(out, dir)
		}
	}
	if dir := l.v2Dir(ref); dir != "" {
		out = append(out, dir)
	}
	return out
}

// owned returns ref's directories that are not adopted, each once. On a hybrid node that
// includes the v2 tree's, because some runtimes make one there.
func (l layout) owned(ref core.CgroupRef) []string {
	if ref.Path == "" {
		return nil
	}
	var out []string
	for _, h := range l.v1 {
		if dir, adopted := h.dir(ref); !adopted {
			out = append(out, dir)
		}
	}
	if l.unified != "" && ref.Adopted[""] == "" {
		out = append(out, l.unified+ref.Path)
	}
	return out
}
