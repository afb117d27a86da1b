package cgroup

import (
	"path/filepath"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// Frozen reports whether ref is frozen or freezing, by itself or through a parent. It is
// false if ref does not exist.
func (t *Tree) Frozen(ref core.CgroupRef) bool {
	if t.layout.mode == core.CgroupV2 {
		events, _ := readText(filepath.Join(t.layout.v2Dir(ref), "cgroup.events"))
		asked, _ := readText(filepath.Join(t.layout.v2Dir(ref), "cgroup.freeze"))
		return asked == "1" || strings.Contains(events, "frozen 1")
	}
	dir, ok := t.layout.v1Dir(ref, "freezer")
	if !ok {
		return false
	}
	state, _ := readText(filepath.Join(dir, "freezer.state"))
	return state == "FROZEN" || state == "FREEZING"
}
