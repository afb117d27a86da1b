// Package disk measures a directory, as du does, and divides its bytes among objects. It knows no object: the caller places
// files into a tree. Start at Measure.
package disk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/hostinfo"
)

// Part is a node of a tree of disk usage.
type Part struct {
	Name string
	// Note describes the part's users to people.
	Note string
	// Bytes are those on the disk, with those of Parts. Frees are those of them that a removal of unused objects frees.
	Bytes, Frees uint64
	Parts        []*Part
}

// Place is a position in a tree.
type Place struct {
	Path []string // the names of the parts, from the root
	Note string   // of the last one
	// Unused means that a removal of unused objects frees the part.
	Unused bool
}

// depth bounds the components of the paths that place gets. Deeper files are in the same part.
const depth = 5

// Measure returns the tree of a directory. place returns the position of a path, relative to dir, of at most five components. Each file is
// counted once, in the blocks that it occupies, and files of other file systems are left out, as `du -x` does.
func Measure(ctx context.Context, dir, name string, place func(path string) Place) (*Part, error) {
	top := &Part{Name: name}
	t := tree{top: top, places: map[string]*Part{}, frees: map[*Part]bool{}}
	err := hostinfo.Tree(ctx, dir, func(path string, bytes uint64) { t.part(head(path), place).Bytes += bytes })
	if err != nil {
		return nil, fmt.Errorf("measure %s: %w", dir, err)
	}
	t.sum(top)
	return top, nil
}

// head returns the first components of a path.
func head(path string) string {
	at := 0
	for range depth {
		i := strings.IndexByte(path[at:], '/')
		if i < 0 {
			return path
		}
		at += i + 1
	}
	return path[:at-1]
}

// tree finds parts by path.
type tree struct {
	top    *Part
	places map[string]*Part
	frees  map[*Part]bool
}

// part returns the part of a path of the directory, and makes it if necessary.
func (t *tree) part(path string, place func(string) Place) *Part {
	if p := t.places[path]; p != nil {
		return p
	}
	at, to := t.top, place(path)
	for _, name := range to.Path {
		i := slices.IndexFunc(at.Parts, func(p *Part) bool { return p.Name == name })
		if i < 0 {
			i = len(at.Parts)
			at.Parts = append(at.Parts, &Part{Name: name})
		}
		at = at.Parts[i]
	}
	if to.Note != "" {
		at.Note = to.Note
	}
	t.frees[at] = to.Unused
	t.places[path] = at
	return at
}

// sum adds the parts up, and orders them by size.
func (t *tree) sum(p *Part) {
	if t.frees[p] {
		p.Frees = p.Bytes
	}
	for _, c := range p.Parts {
		t.sum(c)
		p.Bytes += c.Bytes
		p.Frees += c.Frees
	}
	slices.SortStableFunc(p.Parts, func(a, b *Part) int {
		if a.Bytes != b.Bytes {
			return int(min(max(int64(b.Bytes)-int64(a.Bytes), -1), 1))
		}
		return strings.Compare(a.Name, b.Name)
	})
}

// Deleted returns the files of a directory's file system that have no name any more and that processes hold open: du does not see them,
// and their bytes are not free. proc is /proc. container returns the container
// of a process, "" for others: its overlay has a device of its own, and its files are on the directory's file system.
func Deleted(ctx context.Context, proc, dir string, container func(pid string) string) (*Part, error) {
	var here syscall.Stat_t
	if err := syscall.Stat(dir, &here); err != nil {
		return nil, fmt.Errorf("measure %s: %w", dir, err)
	}
	all := &Part{Name: "deleted files", Note: "open in processes; on the whole file system"}
	pids, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return nil, err
	}
	seen := map[[2]uint64]bool{}
	for _, pid := range pids {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		entries, err := os.ReadDir(filepath.Join(pid, "fd"))
		if err != nil {
			continue // it has ended
		}
		one := &Part{}
		for _, e := range entries {
			var st syscall.Stat_t
			path := filepath.Join(pid, "fd", e.Name())
			if syscall.Stat(path, &st) != nil || st.Nlink > 0 || st.Mode&syscall.S_IFMT != syscall.S_IFREG || seen[[2]uint64{st.Dev, st.Ino}] {
				continue
			}
			if st.Dev != here.Dev && (container(filepath.Base(pid)) == "" || !onOverlay(path)) {
				continue
			}
			seen[[2]uint64{st.Dev, st.Ino}] = true
			one.Bytes += uint64(st.Blocks) * 512
		}
		if one.Bytes == 0 {
			continue
		}
		comm, _ := os.ReadFile(filepath.Join(pid, "comm"))
		one.Name = fmt.Sprintf("process %s (%s)", filepath.Base(pid), strings.TrimSpace(string(comm)))
		if of := container(filepath.Base(pid)); of != "" {
			one.Name += " of " + of
		}
		all.Parts = append(all.Parts, one)
	}
	t := tree{}
	t.sum(all)
	return all, nil
}

func onOverlay(path string) bool {
	var st syscall.Statfs_t
	return syscall.Statfs(path, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC
}
