// Package volume implements core.Volumes with local directories: a directory for each owner and
// name, which outlives containers, or a mount that the volume's options define.
//
// It knows nothing about containers and mounts nothing; the engine knows the users of a volume.
// Start at Local.
package volume

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// Local stores volumes in Dir/OWNER/NAME: the content in _data, the record in volume.json. A
// directory without a record was not completely created or removed, and does not count. A volume
// with options has a record only: nothing is ever mounted here, so that a removal here never
// deletes a server's files.
type Local struct {
	dir string
	mu  sync.Mutex // serializes the creation and removal of volumes
}

var _ core.Volumes = (*Local)(nil)

const (
	dataDir    = "_data"
	recordFile = "volume.json"
)

// removedPrefix is before the name of a volume that is being removed. No volume's name begins so.
const removedPrefix = ".removed-"

// New returns the volumes below dir, which is created if necessary.
func New(dir string) (*Local, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("volumes at %q: not absolute: %w", dir, errdefs.ErrInvalidArgument)
	}
	// Nobody else may enter it: a container's root may leave setuid files in a volume.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("volumes: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, "*", removedPrefix+"*"))
	if err != nil {
		return nil, err
	}
	for _, d := range left {
		if err := os.RemoveAll(d); err != nil {
			return nil, fmt.Errorf("volumes: %w", err)
		}
	}
	return &Local{dir: dir}, nil
}

func validName(name string) bool { return core.IsName(name, "_.-", 255) }

func (l *Local) path(owner core.Owner, name string) (string, error) {
	if !validName(name) {
		return "", fmt.Errorf("volume name %q: letters, digits and _.- are allowed: %w", name, errdefs.ErrInvalidArgument)
	}
	if !validName(string(owner)) {
		return "", fmt.Errorf("volume of owner %q: %w", owner, errdefs.ErrInvalidArgument)
	}
	return filepath.Join(l.dir, string(owner), name), nil
}

// record is a volume as it is stored. Only root can read it: the options may have a password.
type record struct {
	core.Volume
	Options map[string]string `json:"options,omitempty"`
}

// shown is the volume without secrets.
func (r record) shown() core.Volume {
	r.Volume.Options = Mask(r.Options)
	return r.Volume
}

// Create creates a volume. If it exists, Create returns it with AlreadyExists, or with
// FailedPrecondition when it has other options.
func (l *Local) Create(_ context.Context, owner core.Owner, cfg core.VolumeConfig) (core.Volume, error) {
	name := cfg.Name
	dir, err := l.path(owner, name)
	if err != nil {
		return core.Volume{}, err
	}
	what, err := parseOptions(cfg.Options)
	if err != nil {
		return core.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch r, err := read(dir); {
	case err == nil && maps.Equal(r.Options, cfg.Options):
		return r.shown(), fmt.Errorf("create volume %s: %w", name, errdefs.ErrAlreadyExists)
	case err == nil:
		return r.shown(), fmt.Errorf("create volume %s: it exists with other options (%s): remove it first, or take another name: %w", name, list(Mask(r.Options)), errdefs.ErrFailedPrecondition)
	case !errdefs.IsNotFound(err):
		return core.Volume{}, err
	}
	r := record{core.Volume{Owner: owner, Name: name, Labels: maps.Clone(cfg.Labels), Created: time.Now().Round(0).UTC()}, maps.Clone(cfg.Options)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return core.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	if what == nil {
		r.Path = filepath.Join(dir, dataDir)
		if err := os.MkdirAll(r.Path, 0o755); err != nil {
			return core.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
		}
	}
	if err := write(dir, r); err != nil {
		return core.Volume{}, fmt.Errorf("create volume %s: %w", name, err)
	}
	return r.shown(), nil
}

// list is a volume's options for a message.
func list(o map[string]string) string {
	if len(o) == 0 {
		return "none"
	}
	var words []string
	for _, key := range slices.Sorted(maps.Keys(o)) {
		words = append(words, key+"="+o[key])
	}
	return strings.Join(words, " ")
}

func write(dir string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	// A copy counts more than the record, so an old one must not outlive it.
	if err := os.RemoveAll(filepath.Join(dir, copyFile)); err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(dir, recordFile), b, 0o600); err != nil {
		return err
	}
	return writeCopy(dir, b)
}

// maxRecord bounds the size of a record: labels and options of a volume.
const maxRecord = 64 << 20

// copyFile is beside recordFile: the checksum of the record, a space, and the record. It counts
// when the two differ.
const copyFile = recordFile + ".copy"

func writeCopy(dir string, b []byte) error {
	path := filepath.Join(dir, copyFile)
	if fi, err := os.Lstat(path); err == nil && fi.IsDir() { // no file can be renamed to it
		if err := atomicfile.SetAside(path); err != nil {
			return err
		}
	}
	return atomicfile.Replace(path, fmt.Appendf(nil, "%s %s", sumOf(b), b), 0o600)
}

func sumOf(b []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

// sound returns the record's file as it was written, by its copy where that is sound.
func sound(dir string, b []byte) []byte {
	copied, err := atomicfile.Read(filepath.Join(dir, copyFile), maxRecord)
	sum, body, found := bytes.Cut(copied, []byte{' '})
	switch {
	case err == nil && found && string(sum) == sumOf(body):
		if !bytes.Equal(body, b) {
			path := filepath.Join(dir, recordFile)
			if fi, err := os.Lstat(path); err == nil && fi.IsDir() { // no file can be renamed to it
				_ = atomicfile.SetAside(path)
			}
			_ = atomicfile.Write(path, body, 0o600) // otherwise the next reader mends it
		}
		return body
	case json.Valid(b):
		_ = writeCopy(dir, b) // as above
	}
	return b
}

func read(dir string) (r record, err error) {
	b, err := atomicfile.Read(filepath.Join(dir, recordFile), maxRecord)
	b = sound(dir, b)
	if len(b) == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)) { // or there is a foreign file
		return r, fmt.Errorf("volume %s: %w", filepath.Base(dir), errdefs.ErrNotFound)
	}
	if err != nil && len(b) == 0 && !errors.Is(err, atomicfile.ErrUnreadable) {
		return r, fmt.Errorf("volume %s: %w", filepath.Base(dir), err)
	}
	if damage := readable(b, &r); damage != nil {
		err = errors.Join(err, damage)
		return r, fmt.Errorf("volume %s: %s is damaged, and so is its copy: move %s away, create the volume again with its options, and move its content back: %w: %w",
			filepath.Base(dir), filepath.Join(dir, recordFile), dir, errdefs.ErrDataLoss, err)
	}
	if r.Path = ""; len(r.Options) == 0 {
		r.Path = filepath.Join(dir, dataDir) // the root directory may have been moved
	}
	return r, nil
}

// Get returns one volume.
func (l *Local) Get(_ context.Context, owner core.Owner, name string) (core.Volume, error) {
	dir, err := l.path(owner, name)
	if err != nil {
		return core.Volume{}, err
	}
	r, err := read(dir)
	return r.shown(), err
}

// Source returns the mount that a volume's options define. FailedPrecondition if it has none.
func (l *Local) Source(ctx context.Context, owner core.Owner, name string) (core.Mount, error) {
	dir, err := l.path(owner, name)
	if err != nil {
		return core.Mount{}, err
	}
	r, err := read(dir)
	if err != nil {
		return core.Mount{}, err
	}
	what, err := parseOptions(r.Options)
	if err == nil && what == nil {
		err = fmt.Errorf("it has no options: %w", errdefs.ErrFailedPrecondition)
	}
	var m core.Mount
	if err == nil {
		m, err = what.mount(ctx)
	}
	if err != nil {
		return core.Mount{}, fmt.Errorf("volume %s: %w", name, err)
	}
	return m, nil
}

// List returns an owner's volumes by name; owner "" returns all. A volume with a damaged record has
// only its name.
func (l *Local) List(_ context.Context, owner core.Owner) ([]core.Volume, error) {
	pattern := string(owner)
	if owner == "" {
		pattern = "*"
	} else if !validName(pattern) {
		return nil, fmt.Errorf("volumes of owner %q: %w", owner, errdefs.ErrInvalidArgument)
	}
	dirs, err := filepath.Glob(filepath.Join(l.dir, pattern, "*"))
	if err != nil {
		return nil, err
	}
	var list []core.Volume
	for _, dir := range dirs {
		if !validName(filepath.Base(dir)) {
			continue
		}
		r, err := read(dir)
		switch {
		case errdefs.IsNotFound(err):
			continue
		case errdefs.IsDataLoss(err):
			list = append(list, core.Volume{Owner: core.Owner(filepath.Base(filepath.Dir(dir))), Name: filepath.Base(dir), Damaged: err.Error()})
			continue
		case err != nil:
			return nil, err
		}
		list = append(list, r.shown())
	}
	slices.SortFunc(list, func(a, b core.Volume) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Remove removes a volume with its content, also one with a damaged record; NotFound when there is
// none.
func (l *Local) Remove(_ context.Context, owner core.Owner, name string) error {
	dir, err := l.path(owner, name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := read(dir); err != nil && !errdefs.IsDataLoss(err) {
		return err
	}
	// It gets another name first, so that a crash leaves something that does not count, and no reader
	// makes its record again.
	gone := filepath.Join(filepath.Dir(dir), removedPrefix+sumOf([]byte(name))) // a name may be as long as a name can be
	if err := errors.Join(os.RemoveAll(gone), os.Rename(dir, gone), os.RemoveAll(gone)); err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// Filled records that the first use has copied the image's content into the volume.
func (l *Local) Filled(_ context.Context, owner core.Owner, name string) error {
	dir, err := l.path(owner, name)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r, err := read(dir)
	if err != nil {
		return err
	}
	r.Filled = true
	return write(dir, r)
}
