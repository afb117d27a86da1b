package granted

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/ocispec"
)

// maxSecret is how many bytes a secret may have: Kubernetes' have no more either.
const maxSecret = 1 << 20

// secrets are the orchestrator's mounts with a container's secrets, and the user who reads them.
type secrets struct {
	mounts map[string]specs.Mount
	user   specs.User // as the host sees it
}

func secretsOf(c core.RuntimeCreate, mounts map[string]specs.Mount) secrets {
	s := secrets{mounts: map[string]specs.Mount{}, user: userOf(c)}
	for _, name := range c.Grants.Secrets {
		name = filepath.Clean(name)
		if m, ok := mounts[name]; ok {
			s.mounts[name] = m
		}
	}
	return s
}

// named returns the names of doc that have one secret.
func (s secrets) named(doc *grant.Document) (names []string, err error) {
	err = doc.Root.Walk(func(_ string, v *grant.Value) error {
		if v.Grant.Kind != grant.Secret {
			return nil
		}
		f, err := s.open(v.Grant.Name)
		if errors.Is(err, os.ErrNotExist) {
			return nil // Resolve says so
		}
		if err != nil {
			return grant.Errorf(v.Pos, "secret %q: %v", v.Grant.Name, err)
		}
		names = append(names, v.Grant.Name)
		return f.Close()
	})
	return names, err
}

// open finds a secret: by its path in the container, or by its name below the mounts; only one mount may have that.
func (s secrets) open(name string) (found *os.File, err error) {
	if path.Clean(name) != name {
		return nil, os.ErrNotExist
	}
	for _, target := range slices.Sorted(maps.Keys(s.mounts)) {
		rel := name
		if path.IsAbs(name) {
			var ok bool
			if rel, ok = beneath.Rel(target, name); !ok {
				continue
			}
		}
		f, err := s.at(target, rel)
		switch {
		case errors.Is(err, os.ErrNotExist):
		case err != nil:
			return nil, errors.Join(err, closed(found))
		case found != nil:
			return nil, errors.Join(errors.New("several mounts have it: name it by its path in the container"), closed(found), f.Close())
		default:
			found = f
		}
	}
	if found == nil {
		return nil, os.ErrNotExist
	}
	return found, nil
}

func closed(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// at opens one file of a mount as the container's user, with the mount's source as root. rel is "." or its own name for
// a mount of one file.
func (s secrets) at(target, rel string) (f *os.File, err error) {
	m := s.mounts[target]
	base, below, err := ocispec.Below(m)
	if err != nil {
		return nil, err
	}
	var source *os.File
	if base != "" {
		source, err = beneath.Open(base, below, unix.O_PATH, 0)
	} else {
		source, err = os.OpenFile(m.Source, unix.O_PATH, 0)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = source.Close() }()
	err = as(s.user, func() error {
		f, err = readBelow(source, rel, path.Base(target))
		return err
	})
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("the container's user may not read it: %w", os.ErrPermission)
	}
	return f, err
}

// readBelow opens a regular file for reading: rel below a directory, or source itself, with the name own.
func readBelow(source *os.File, rel, own string) (*os.File, error) {
	st, err := source.Stat()
	if err != nil {
		return nil, err
	}
	at := source
	if st.IsDir() {
		if at, err = beneath.In(source, rel, unix.O_PATH, 0); err != nil {
			return nil, err
		}
		defer func() { _ = at.Close() }()
		if st, err = at.Stat(); err != nil {
			return nil, err
		}
	} else if rel != "." && rel != own {
		return nil, os.ErrNotExist
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("it is no regular file")
	}
	return os.Open("/proc/self/fd/" + strconv.Itoa(int(at.Fd())))
}

// copied returns a secret's text as it is now, in a file of the program's own that nobody can change: the orchestrator's own file need
// not stay for it.
func (s secrets) copied(name string) (*os.File, error) {
	f, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxSecret {
		return nil, fmt.Errorf("it has more than %d bytes: %w", maxSecret, errdefs.ErrFailedPrecondition)
	}
	return sealed("secret", text)
}
