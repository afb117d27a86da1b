// Package sandbox is about the directories that containers of Mesos have on the
// host: where each is, how it is made and how it goes.
//
// It must not know containers, only their names. Start at Tree.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// nested is the directory, in a tree and in each sandbox, that has sandboxes.
const nested = "containers"

// Tree is the directory that all sandboxes are in.
type Tree struct{ root string }

// New returns the tree below a work directory, which it makes.
func New(workDir string) (Tree, error) {
	t := Tree{filepath.Clean(workDir)}
	if err := os.MkdirAll(filepath.Join(t.root, nested), 0o755); err != nil {
		return t, fmt.Errorf("make the work directory: %w", err)
	}
	return t, nil
}

// Dir is the directory that has those of standalone containers.
func (t Tree) Dir() string { return filepath.Join(t.root, nested) }

// rel is a sandbox's path in the tree, by the container's name as text.
func rel(id string) string {
	return filepath.Join(nested, strings.ReplaceAll(id, ".", "/"+nested+"/"))
}

// Path is where a container's sandbox is.
func (t Tree) Path(id string) string { return filepath.Join(t.root, rel(id)) }

// Make makes a container's sandbox, which must not be there, with the directory
// for those of nested ones. No link is followed out of the tree.
func (t Tree) Make(id string) (string, error) {
	root, err := os.OpenRoot(t.root)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	if err := root.Mkdir(rel(id), 0o755); err != nil {
		return "", err
	}
	if err := root.Mkdir(filepath.Join(rel(id), nested), 0o755); err != nil {
		return "", errors.Join(err, root.RemoveAll(rel(id)))
	}
	return t.Path(id), nil
}

// Remove takes a container's sandbox away, and those in it; success when there is
// none.
func (t Tree) Remove(id string) error {
	root, err := os.OpenRoot(t.root)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return root.RemoveAll(rel(id))
}
