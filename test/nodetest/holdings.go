package nodetest

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Holdings is everything that could leak, by kind, sorted.
type Holdings map[string][]string

// descriptors begins the names of kinds that may shrink later, such as an idle worker's.
const descriptors = "descriptors "

// Baseline is Holdings, once the trash of the image store is empty: files that were just removed
// are there until the store's own sweep, and would be missed later.
func (n *Node) Baseline(t *testing.T) Holdings {
	t.Helper()
	Eventually(t, "the trash is emptied", func() bool {
		return len(Tree(t, filepath.Join(n.Root, "image", "trash"))) <= 1 // itself
	})
	return n.Holdings(t)
}

// Holdings lists the node's objects in the kernel and on the disk. The space that the agent
// reserves for a full disk is left out: it takes and releases that at any time.
func (n *Node) Holdings(t *testing.T) Holdings {
	t.Helper()
	h := Holdings{"nft": Lines(t, "nft", "list", "ruleset"), "links": Lines(t, "ip", "-o", "link", "show")}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		h["mounts"] = append(h["mounts"], strings.Fields(line)[4])
	}
	for i, l := range h["links"] {
		h["links"][i] = strings.Fields(l)[1]
	}
	for i, l := range h["nft"] {
		h["nft"][i] = passing.ReplaceAllString(l, "")
	}
	for _, dir := range []string{n.State, n.Root} {
		reserve := filepath.Base(dir) + "/reserve/"
		h["files "+filepath.Base(dir)] = slices.DeleteFunc(Tree(t, dir), func(path string) bool { return strings.HasPrefix(path, reserve) })
	}
	h["cgroups"] = Cgroups(t, n.Cgroup)
	h.Descriptors(t, "agent", n.Pid())
	for _, role := range []string{"keeper", "nest"} {
		for _, pid := range Pair(role) {
			h.Descriptors(t, role, pid)
		}
	}
	for _, v := range h {
		slices.Sort(v)
	}
	return h
}

var passing = regexp.MustCompile(`# handle \d+|counter packets \d+ bytes \d+|expires \S+`)

// Descriptors adds those of a process under a name.
func (h Holdings) Descriptors(t *testing.T, name string, pid int) {
	t.Helper()
	h[descriptors+name] = Descriptors(t, pid)
	slices.Sort(h[descriptors+name])
}

// Lasting is the part that only removals change: no descriptors.
func (h Holdings) Lasting() Holdings {
	h = maps.Clone(h)
	maps.DeleteFunc(h, func(kind string, _ []string) bool { return strings.HasPrefix(kind, descriptors) })
	return h
}

// Since describes the difference between h and before; "" is none.
func (h Holdings) Since(before Holdings) string {
	diff := cmp.Diff(before.Lasting(), h.Lasting())
	for kind, has := range h {
		if more := More(has, before[kind]); strings.HasPrefix(kind, descriptors) && len(more) > 0 {
			diff += fmt.Sprintf("%s: +%v\n", kind, more)
		}
	}
	return diff
}

// Cgroups names the cgroups of a path below the root of every hierarchy.
func Cgroups(t *testing.T, path string) []string {
	t.Helper()
	roots, err := filepath.Glob("/sys/fs/cgroup/*" + path)
	if err != nil {
		t.Fatal(err)
	}
	unified, _ := filepath.Glob("/sys/fs/cgroup" + path)
	var found []string
	for _, c := range append(roots, unified...) {
		found = append(found, Tree(t, c)...)
	}
	found = slices.DeleteFunc(found, func(p string) bool { return !strings.HasSuffix(p, "/") })
	slices.Sort(found)
	return found
}

// Lines runs a command and returns the lines of its output.
func Lines(t *testing.T, name string, args ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	var found []string
	for l := range strings.Lines(string(out)) {
		found = append(found, strings.TrimSpace(l))
	}
	return found
}

// Tree names the files below dir, directories with a slash; logs, databases and records of events
// may grow, and are named but not sized.
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

// Descriptors names the kinds of a process's open files; numbers of pipes and sockets are left out,
// so that only their count matters.
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

// More is the difference of two lists of descriptors.
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
