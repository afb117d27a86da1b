// Package lineage says whether a path is on the way to, or below, one of many.
// It must not know what the paths are of. Start at Set.
package lineage

import "strings"

// Set holds absolute paths. The zero value is empty and ready.
type Set struct {
	members map[string]bool
	above   map[string]bool // of members, and members
}

// Add adds a path; "" is none.
func (s *Set) Add(path string) {
	if path == "" || s.members[path] {
		return
	}
	if s.members == nil {
		s.members, s.above = map[string]bool{}, map[string]bool{}
	}
	s.members[path] = true
	for p := path; p != "" && !s.above[p]; p = parent(p) {
		s.above[p] = true
	}
}

// Relates reports whether path is a member, or above or below one.
func (s *Set) Relates(path string) bool {
	if s.above[path] {
		return true
	}
	for p := parent(path); p != ""; p = parent(p) {
		if s.members[p] {
			return true
		}
	}
	return false
}

// parent is "" for a path at the root.
func parent(path string) string { return path[:max(0, strings.LastIndexByte(path, '/'))] }
