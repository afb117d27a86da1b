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
	"syscall"

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

// secrets are the mounts by which the orchestrator delivered a container's secrets, and who reads them.
type secrets struct {
	mounts map[string]specs.Mount
	user   specs.User // as the host sees it
}

func secretsOf(c core.RuntimeCreate, mounts map[string]specs.Mount) secrets {
	s := secrets{mounts: map[string]specs.Mount{}, user: specs.User{UID: c.UID, GID: c.GID}}
	if len(c.Spec.Linux.GIDMappings) == 0 {
		s.user.AdditionalGids = c.Spec.Process.User.AdditionalGids
	}
	for _, name := range c.Grants.Secrets {
		name = filepath.Clean(name)
		if m, ok := mounts[name]; ok {
			s.mounts[name] = m
		}
	}
	return s
}

// named returns those names for which doc asks and of which there is one secret.
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

// open finds a secret: by its path in the container, or by its name below the mounts, of which then only one may have it.
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

// at opens one file of a mount as the container's user could, without reading it. rel is "." or its own name for a mount of one file.
func (s secrets) at(target, rel string) (*os.File, error) {
	m := s.mounts[target]
	base, below, err := ocispec.Below(m)
	if err != nil {
		return nil, err
	}
	var f *os.File
	if base != "" {
		f, err = beneath.Open(base, below, unix.O_PATH, 0)
	} else {
		f, err = os.OpenFile(m.Source, unix.O_PATH, 0)
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err == nil && st.IsDir() {
		dir := f
		if f, err = beneath.In(dir, rel, unix.O_PATH, 0); err == nil {
			st, err = f.Stat()
		}
		err = errors.Join(err, dir.Close())
	} else if err == nil && rel != "." && rel != path.Base(target) {
		return nil, errors.Join(os.ErrNotExist, f.Close())
	}
	if err != nil {
		return nil, errors.Join(err, closed(f))
	}
	if !st.Mode().IsRegular() {
		return nil, errors.Join(errors.New("it is no regular file"), f.Close())
	}
	if !readable(st, s.user) {
		return nil, errors.Join(fmt.Errorf("the container's user may not read it: %w", os.ErrPermission), f.Close())
	}
	return f, nil
}

// readable reports whether a user may read a file by its mode.
func readable(st os.FileInfo, u specs.User) bool {
	owner, ok := st.Sys().(*syscall.Stat_t)
	mode := st.Mode().Perm()
	switch {
	case !ok:
		return false
	case u.UID == 0:
		return true
	case owner.Uid == u.UID:
		return mode&0o400 != 0
	case owner.Gid == u.GID || slices.Contains(u.AdditionalGids, owner.Gid):
		return mode&0o040 != 0
	}
	return mode&0o004 != 0
}

// copied returns a secret's text as it is now, in a file of the program's own that nobody can change: the orchestrator's own file need
// not stay for it.
func (s secrets) copied(name string) (*os.File, error) {
	at, err := s.open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = at.Close() }()
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(int(at.Fd())))
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
