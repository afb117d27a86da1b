package alpha

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// Paths resolves the paths of the node that requests name, below one directory. Links are followed
// as if that directory were the root, so none leads out of it.
type Paths struct{ root string }

// NewPaths returns the paths below root, which must exist.
func NewPaths(root string) (*Paths, error) {
	at, err := filepath.EvalSymlinks(root)
	if err == nil {
		var st os.FileInfo
		if st, err = os.Stat(at); err == nil && !st.IsDir() {
			err = unix.ENOTDIR
		}
	}
	if err != nil {
		return nil, invalid.Errorf("face.cri.alpha.root_directory %q: %v", root, err)
	}
	return &Paths{at}, nil
}

// Root returns the directory.
func (p *Paths) Root() string { return p.root }

// Find returns the path of a request's name on the node. The result has no links: callers must open
// it without following any, because a workload may have changed the path meanwhile.
func (p *Paths) Find(name string) (string, error) {
	if !path.IsAbs(name) || strings.Contains(name, "\x00") {
		return "", fmt.Errorf("%q is not an absolute path", name)
	}
	root, err := os.OpenFile(p.root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	f, err := beneath.In(root, name, unix.O_PATH, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
	if err != nil {
		return "", err
	}
	if _, ok := beneath.Rel(p.root, at); !ok {
		return "", fmt.Errorf("%s has moved out of %s: %w", name, p.root, fs.ErrNotExist)
	}
	return at, nil
}

// FindOrMake is Find, and makes a directory where there is nothing. A link to nothing stays as it is.
func (p *Paths) FindOrMake(name string) (string, error) {
	at, err := p.Find(name)
	if !errors.Is(err, fs.ErrNotExist) || !path.IsAbs(name) {
		return at, err
	}
	d, made := beneath.MkdirAll(p.root, strings.TrimPrefix(path.Clean(name), "/"), 0o755)
	if made != nil {
		return "", errors.Join(err, made)
	}
	if err := d.Close(); err != nil {
		return "", err
	}
	return p.Find(name)
}

// LogDirectory is Find for a directory that need not exist before its container starts.
func (p *Paths) LogDirectory(name string) (string, error) {
	at, err := p.Find(name)
	if errors.Is(err, fs.ErrNotExist) {
		return path.Join(p.root, path.Clean(name)), nil
	}
	if err != nil {
		return "", invalid.Errorf("log directory: %v", err)
	}
	return at, nil
}

// named returns a client's path for a path of the node.
func (p *Paths) named(at string) string {
	rel, ok := beneath.Rel(p.root, at)
	if at == "" || !ok {
		return at
	}
	return path.Join("/", rel)
}

// makeLogDirectory makes the directories of a log's own path below the log directory, which must
// exist. The start reports a failure.
func (p *Paths) makeLogDirectory(dir, file string) {
	at, err := p.Find(dir)
	if err != nil || !filepath.IsLocal(file) {
		return
	}
	rel, ok := beneath.Rel(p.root, path.Join(at, path.Dir(file)))
	if !ok {
		return
	}
	if d, err := beneath.MkdirAll(p.root, rel, 0o755); err == nil {
		_ = d.Close()
	}
}

// openLog opens a container's log. A workload may own its directory.
func openLog(s core.Sink, flags int) (*os.File, error) {
	rel, ok := beneath.Rel(s.Below, s.Path)
	if !ok {
		return nil, fmt.Errorf("log %s is not below %s", s.Path, s.Below)
	}
	f, err := beneath.Open(s.Below, rel, flags|unix.O_NONBLOCK|unix.O_NOCTTY, 0o640)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("log %s is no regular file", s.Path), err, f.Close())
	}
	return f, nil
}
