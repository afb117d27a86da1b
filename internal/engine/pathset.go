package engine

import "strings"

// pathSet is a set of absolute paths. The zero value is empty and ready to use.
type pathSet struct {
	members map[string]bool
	above   map[string]bool // of members, and members
}

// add adds a path; "" is none.
func (s *pathSet) add(path string) {
	if path == "" || s.members[path] {
		return
	}
	if s.members == nil {
		s.members, s.above = map[string]bool{}, map[string]bool{}
	}
	s.members[path] = true
	for p := path; p != "" && !s.above[p]; p = parentPath(p) {
		s.above[p] = true
	}
}

// relates reports whether path is a member, or above or below one.
func (s *pathSet) relates(path string) bool {
	if s.above[path] {
		return true
	}
	for p := parentPath(path); p != ""; p = parentPath(p) {
		if s.members[p] {
			return true
		}
	}
	return false
}

// parentPath is "" for a path at the root.
func parentPath(path string) string { return path[:max(0, strings.LastIndexByte(path, '/'))] }
