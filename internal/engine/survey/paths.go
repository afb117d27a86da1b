package survey

import (
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// pathSet is a set of absolute paths. The zero value is empty and ready to use.
type pathSet struct {
	members map[string]bool
	above   map[string]bool // the members and all directories above them
}

// add adds a path, unless it is "".
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

// relates reports whether path is a member, or is above or below one.
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

// parentPath returns the directory of path; "" when that is the root.
func parentPath(path string) string { return path[:max(0, strings.LastIndexByte(path, '/'))] }

// dirIDs returns the IDs that have an entry in a directory, or none when the directory does not
// exist.
func dirIDs(dir string) ([]core.ID, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	ids := make([]core.ID, 0, len(list))
	for _, e := range list {
		ids = append(ids, core.ID(e.Name()))
	}
	return ids, err
}
