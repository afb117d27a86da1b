package beneathtest

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
)

// Dangling are links of an image whose targets do not exist, and a mount whose destination is, or is
// below, the first of them.
type Dangling struct {
	Name  string
	Links [][2]string // path in the root, target
	Mount string
	File  bool   // a file is mounted, not a directory
	At    string // where the mount must appear; "": the container must be refused
}

// Outside is a directory of the host to which some of the links would lead if they were followed
// outside of the root.
const Outside = "/run/outside"

// DanglingLinks returns the cases. No two of them share a directory of the root.
func DanglingLinks() []Dangling {
	return []Dangling{
		{"absolute", [][2]string{{"l1/localtime", "/zone1/UTC"}}, "/l1/localtime", true, "/zone1/UTC"},
		{"relative", [][2]string{{"l2/localtime", "../share2/UTC"}}, "/l2/localtime", true, "/share2/UTC"},
		{"a directory", [][2]string{{"l3/run", "/run3"}}, "/l3/run", false, "/run3"},
		{"below a directory", [][2]string{{"l4/run", "/run4"}}, "/l4/run/secrets/x", true, "/run4/secrets/x"},
		{"a chain", [][2]string{{"l5/a", "b"}, {"l5/b", "/l5/c"}, {"l5/c", "d/e"}}, "/l5/a", true, "/l5/d/e"},
		{"out of the root", [][2]string{{"l6/up", "../../../../../../run/outside/new"}}, "/l6/up", true, "/run/outside/new"},
		{"absolute, of the host's directory", [][2]string{{"l7/up", "/run/outside/other"}}, "/l7/up/sub", false, "/run/outside/other/sub"},
		{"through what is missing", [][2]string{{"l8/a", "gone/../b"}}, "/l8/a", true, "/l8/b"},
		{"a loop", [][2]string{{"l9/a", "b"}, {"l9/b", "a"}}, "/l9/a", true, ""},
		{"through a file", [][2]string{{"l10/a", "/bin/busybox/x"}}, "/l10/a", true, ""},
	}
}

// Make makes the case's links in a root.
func (d Dangling) Make(root string) error {
	var errs []error
	for _, l := range d.Links {
		at := filepath.Join(root, l[0])
		errs = append(errs, os.MkdirAll(filepath.Dir(at), 0o755), os.RemoveAll(at), os.Symlink(l[1], at))
	}
	return errors.Join(errs...)
}

// Source is what the case mounts: a directory in which there is "file", or this file.
func (d Dangling) Source(dir string) string {
	if d.File {
		return filepath.Join(dir, "file")
	}
	return dir
}

// Visible is where the container has the file.
func (d Dangling) Visible() string {
	if d.File {
		return d.At
	}
	return d.At + "/file"
}

// DanglingMounts returns the cases in which the mount must appear, a shell's script that prints the
// mounted file of each, and what it prints if the file is "mounted\n". One container has them all.
func DanglingMounts() (list []Dangling, script, want string) {
	paths := make([]string, 0, len(DanglingLinks()))
	for _, d := range DanglingLinks() {
		if d.At != "" {
			list, paths = append(list, d), append(paths, d.Visible())
			want += d.Visible() + " mounted\n"
		}
	}
	return list, "for f in " + strings.Join(paths, " ") + "; do echo $f $(cat $f 2>&1); done", want
}

// DanglingRefused returns the cases in which the container must be refused.
func DanglingRefused() (list []Dangling) {
	for _, d := range DanglingLinks() {
		if d.At == "" {
			list = append(list, d)
		}
	}
	return list
}
