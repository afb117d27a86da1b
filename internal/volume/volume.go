// Package volume is core.Volumes on local directories: for each owner and name
// one directory that outlives containers.
//
// It must not know containers; who uses a volume is the engine's to say. Start
// at Local.
package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// Local keeps volumes below Dir/OWNER/NAME: the content in _data, the record in
// volume.json. A directory without a record is a half-made or half-removed
// volume and counts as none.
type Local struct {
	dir string
	mu  sync.Mutex // serializes what makes and removes volumes
}

var _ core.Volumes = (*Local)(nil)

const (
	dataDir    = "_data"
	recordFile = "volume.json"
)

// New returns the volumes below dir, which is made if need be.
func New(dir string) (*Local, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("volumes at %q: not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	// For nobody else: a container's root may leave setuid files in a volume.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	return &Local{dir: dir}, nil
}

var validName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,254}$`)

func (l *Local) path(owner core.Owner, name string) (string, error) {
	if !validName.MatchString(name) {
		return "", fmt.Errorf("volume name %q: letters, digits and _.- are allowed: %w", name, errdefs.ErrInvalidArgument)
	}
	if !validName.MatchString(string(owner)) {
		return "", fmt.Errorf("volume of owner %q: %w", owner, errdefs.ErrInvalidArgument)
	}
	return filepath.Join(l.dir, string(owner), name), nil
}

// Create makes a volume; AlreadyExists, with the first one, when there is one.
func (l *Local) Create(_ context.Context, owner core.Owner, name string, labels map[string]string) (core.Volume, error) {
	dir, err := l.path(owner, name)
	if err != nil {
		return core.Volume{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if v, err := read(dir); err == nil {
		return v, fmt.Errorf("create volume %s: %w", name, errdefs.ErrAlreadyExists)
	} else if !errdefs.IsNotFound(err) {
		return core.Volume{}, err
	}
	v := core.Volume{Owner: owner, Name: name, Path: filepath.Join(dir, dataDir), Labels: maps.Clone(labels), Created: time.Now().Round(0).UTC()}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return core.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	if err := os.MkdirAll(v.Path, 0o755); err != nil {
		return core.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	if err := write(dir, v); err != nil {
		return core.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	return v, nil
}

func write(dir string, v core.Volume) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, recordFile), b, 0o600)
}

func read(dir string) (v core.Volume, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return v, fmt.Errorf("volume %s: %w", filepath.Base(dir), errdefs.ErrNotFound)
	}
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err != nil {
		return v, fmt.Errorf("volume %s: %w", filepath.Base(dir), err)
	}
	v.Path = filepath.Join(dir, dataDir) // the root may have moved
	return v, nil
}

// Get returns one volume.
func (l *Local) Get(_ context.Context, owner core.Owner, name string) (core.Volume, error) {
	dir, err := l.path(owner, name)
	if err != nil {
		return core.Volume{}, err
	}
	return read(dir)
}

// List lists an owner's volumes by name; owner "" lists all.
func (l *Local) List(_ context.Context, owner core.Owner) ([]core.Volume, error) {
	pattern := string(owner)
	if owner == "" {
		pattern = "*"
	} else if !validName.MatchString(pattern) {
		return nil, fmt.Errorf("volumes of owner %q: %w", owner, errdefs.ErrInvalidArgument)
	}
	dirs, err := filepath.Glob(filepath.Join(l.dir, pattern, "*"))
	if err != nil {
		return nil, err
	}
	var list []core.Volume
	for _, dir := range dirs {
		v, err := read(dir)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	slices.SortFunc(list, func(a, b core.Volume) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Remove removes a volume with its content; NotFound when there is none.
func (l *Local) Remove(_ context.Context, owner core.Owner, name string) error {
	dir, err := l.path(owner, name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := read(dir); err != nil {
		return err
	}
	// The record goes first: what is left after a crash counts as none.
	if err := os.Remove(filepath.Join(dir, recordFile)); err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// Filled records that the first use has copied the image's content in.
func (l *Local) Filled(_ context.Context, owner core.Owner, name string) error {
	dir, err := l.path(owner, name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	v, err := read(dir)
	if err != nil {
		return err
	}
	v.Filled = true
	return write(dir, v)
}
