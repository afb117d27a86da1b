package nodetest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Tree names what is below dir, directories with a slash; logs, databases and
// records of what happened may grow, and are named but not sized.
func Tree(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) {
				return nil
			}
			return err
		}
		rel := strings.TrimPrefix(path, dir)
		if d.IsDir() {
			rel += "/"
		}
		found = append(found, filepath.Base(dir)+rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// Descriptors names the kinds of what a process has open; numbers of pipes and
// sockets are left out, so that only their count matters.
func Descriptors(t *testing.T, pid int) []string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if kind, _, ok := strings.Cut(to, ":["); ok && kind != "anon_inode" {
			to = kind
		}
		found = append(found, to)
	}
	return found
}

// More is what a list of descriptors has beyond another.
func More(has, had []string) []string {
	left := map[string]int{}
	for _, h := range had {
		left[h]++
	}
	// The Go runtime makes its poller when it first needs one.
	left["anon_inode:[eventfd]"]++
	left["anon_inode:[eventpoll]"]++
	var beyond []string
	for _, h := range has {
		if left[h]--; left[h] < 0 {
			beyond = append(beyond, h)
		}
	}
	return beyond
}
