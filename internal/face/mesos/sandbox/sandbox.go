// Package sandbox manages the sandboxes of containers: directories on the host, below
// the work directory. It makes, lists and removes them, reads files in them for
// clients, measures how much disk they use, and says which have expired.
//
// Containers own parts of these paths, so no link in them is ever followed. The package
// must not know the engine; it is told about containers. Start reading at Tree.
package sandbox

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// nested is the directory, in a tree and in each sandbox, that has sandboxes.
const Nested = "containers"

// removed begins the name of a sandbox that is on its way out, as no container's does.
// It stays in its place until then: another one may be on another file system.
const removedPrefix = ".removed-"

// Tree is the directory that all sandboxes are in.
type Tree struct{ root string }

// New returns the tree below a work directory, which it makes.
func New(workDir string) (Tree, error) {
	t := Tree{filepath.Clean(workDir)}
	if err := os.MkdirAll(filepath.Join(t.root, Nested), 0o755); err != nil {
		return t, fmt.Errorf("make the work directory: %w", err)
	}
	return t, nil
}

// Root is the work directory, which is trusted.
func (t Tree) Root() string { return t.root }

// Dir is the directory that has those of standalone containers.
func (t Tree) Dir() string { return filepath.Join(t.root, Nested) }

// rel is a sandbox's path in the tree, by the container's name as text.
func rel(id string) string {
	return filepath.Join(Nested, strings.ReplaceAll(id, ".", "/"+Nested+"/"))
}

// Path is where a container's sandbox is.
func (t Tree) Path(id string) string { return filepath.Join(t.root, rel(id)) }

// Open opens a container's sandbox. Containers own the directories that those of
// nested ones are in: no link is followed on the way.
func (t Tree) Open(id string) (*os.Root, error) { return beneath.Root(t.root, rel(id)) }

// parent opens the directory that a container's sandbox is in, and tells its name
// there.
func (t Tree) parent(id string) (*os.Root, string, error) {
	root, err := beneath.Root(t.root, filepath.Dir(rel(id)))
	return root, filepath.Base(rel(id)), err
}

// Make makes a container's sandbox, which must not be there, with the directory
// for those of nested ones.
func (t Tree) Make(id string) (string, error) {
	root, name, err := t.parent(id)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	if err := root.Mkdir(name, 0o755); err != nil {
		return "", err
	}
	if err := root.Mkdir(filepath.Join(name, Nested), 0o755); err != nil {
		return "", errors.Join(err, root.RemoveAll(name))
	}
	return t.Path(id), nil
}

// Remove takes a container's sandbox away, and those in it; success when there is
// none. It is there as a whole or not at all, whenever the agent dies.
func (t Tree) Remove(id string) error {
	root, name, err := t.parent(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	away := removedPrefix + rand.Text()
	if err := root.Rename(name, away); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return root.RemoveAll(away)
}

// Finish takes away what Remove had no time for when the agent died.
func (t Tree) FinishRemovals() error {
	all, err := t.List()
	dirs := []string{Nested}
	for _, s := range all {
		dirs = append(dirs, filepath.Join(rel(s.ID), Nested))
	}
	errs := []error{err}
	for _, dir := range dirs {
		if err := t.finishIn(dir); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (t Tree) finishIn(dir string) error {
	root, err := beneath.Root(t.root, dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	list, err := fs.ReadDir(root.FS(), ".")
	errs := []error{err}
	for _, e := range list {
		if strings.HasPrefix(e.Name(), removedPrefix) {
			errs = append(errs, root.RemoveAll(e.Name()))
		}
	}
	return errors.Join(errs...)
}

// Sandbox is one that is there.
type Sandbox struct {
	ID string // its container's name as text
	// Used is when it was last said to be in use: when it was made, at the least.
	LastUsed time.Time
}

// List tells of all, parents before what is nested in them.
func (t Tree) List() ([]Sandbox, error) { return t.listBelow(Nested, "") }

func (t Tree) listBelow(dir, parent string) (all []Sandbox, err error) {
	root, err := beneath.Root(t.root, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it goes
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		id := parent + e.Name()
		if !e.IsDir() || api.CheckID(api.ParseID(id)) != nil || rel(id) != filepath.Join(dir, e.Name()) {
			continue // not ours
		}
		st, err := root.Lstat(filepath.Join(e.Name(), Nested))
		if errors.Is(err, fs.ErrNotExist) {
			st, err = e.Info() // it goes, or was cut when it was made
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, Sandbox{id, st.ModTime()})
		if st.IsDir() {
			more, err := t.listBelow(filepath.Join(dir, e.Name(), Nested), id+".")
			if err != nil {
				return nil, err
			}
			all = append(all, more...)
		}
	}
	return all, nil
}

// Use says that a sandbox is in use now. This is kept with the directory for nested
// ones, which nobody else can write to.
func (t Tree) Touch(id string, now time.Time) error {
	root, err := beneath.Root(t.root, filepath.Join(rel(id), Nested))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return root.Chtimes(".", now, now)
}
