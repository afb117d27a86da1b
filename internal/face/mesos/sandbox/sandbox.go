// Package sandbox manages the sandboxes of containers: directories on the host, below the work
// directory. It makes, lists and removes them, reads files in them for clients, measures how much
// disk they use, and finds expired ones.
//
// Containers own parts of these paths, so no link in them is ever followed. The package must not
// know the engine; callers pass containers. Start reading at Tree.
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

// Nested is the directory, in the work directory and in each sandbox, that the
// sandboxes of (nested) containers are in.
const Nested = "containers"

// removedPrefix begins the name of a sandbox that is being removed; no container's name
// begins so. It is renamed in place, because another directory may be on another file
// system.
const removedPrefix = ".removed-"

// Tree is the work directory with all sandboxes.
type Tree struct{ root string }

// New returns the tree below a work directory, which it creates if necessary.
func New(workDir string) (Tree, error) {
	t := Tree{filepath.Clean(workDir)}
	if err := os.MkdirAll(filepath.Join(t.root, Nested), 0o755); err != nil {
		return t, fmt.Errorf("make the work directory: %w", err)
	}
	return t, nil
}

// Root is the work directory. Its path is trusted.
func (t Tree) Root() string { return t.root }

// Dir is the directory with the sandboxes of standalone containers.
func (t Tree) Dir() string { return filepath.Join(t.root, Nested) }

// rel is a sandbox's path relative to the work directory. id is the container's id in
// text form, here and in all methods.
func rel(id string) string {
	return filepath.Join(Nested, strings.ReplaceAll(id, ".", "/"+Nested+"/"))
}

// Path is the absolute path of a container's sandbox.
func (t Tree) Path(id string) string { return filepath.Join(t.root, rel(id)) }

// Open opens a container's sandbox. It follows no link, because containers own the
// directories that the sandboxes of nested containers are in.
func (t Tree) Open(id string) (*os.Root, error) { return beneath.Root(t.root, rel(id)) }

// parent opens the directory that a container's sandbox is in, and returns the
// sandbox's name there.
func (t Tree) parent(id string) (*os.Root, string, error) {
	root, err := beneath.Root(t.root, filepath.Dir(rel(id)))
	return root, filepath.Base(rel(id)), err
}

// Make creates a container's sandbox, which must not exist, with the directory for
// nested ones.
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

// Remove deletes a container's sandbox with those of nested containers; it succeeds if
// there is none. The sandbox is renamed first, so that it is never there in part if the
// agent dies.
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

// FinishRemovals completes removals that were interrupted when the agent died.
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

// finishIn completes the removals in one directory.
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

// Sandbox is an entry of a list of sandboxes.
type Sandbox struct {
	ID string // the container's id in text form
	// LastUsed is the time of the last Touch, or of the creation.
	LastUsed time.Time
}

// List returns all sandboxes, parents before those nested in them.
func (t Tree) List() ([]Sandbox, error) { return t.listBelow(Nested, "") }

func (t Tree) listBelow(dir, parent string) (all []Sandbox, err error) {
	root, err := beneath.Root(t.root, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // it is being removed
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
			continue // not a sandbox
		}
		st, err := root.Lstat(filepath.Join(e.Name(), Nested))
		if errors.Is(err, fs.ErrNotExist) {
			st, err = e.Info() // it is being removed, or the agent died while creating it
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

// Touch records that a sandbox is in use now. The time is that of the directory for
// nested sandboxes, which only root can change.
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
