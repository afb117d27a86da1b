// Package imagevol shows the content of images, read-only, to a container that
// has another root: each is checked out under a name made of the container's,
// and mounted below its bundle.
//
// It knows how, not when: the engine's verbs call it. Start at Mount.
package imagevol

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Ports are what it takes.
type Ports struct {
	Images core.Images
	Roots  core.Roots
}

func checkout(container core.ID, i int) core.ID {
	return container + core.ID("."+strconv.Itoa(i))
}

// Checkouts are the names of c's.
func Checkouts(c *core.Container) (ids []core.ID) {
	for i := range c.Config.Images {
		ids = append(ids, checkout(c.ID, i))
	}
	return ids
}

// Container is whose checkout id is: that of a root, or of an image volume.
func Container(id core.ID) core.ID {
	c, _, _ := strings.Cut(string(id), ".")
	return core.ID(c)
}

func dir(c *core.Container) string { return filepath.Join(c.Bundle, "images") }

// Mount makes all that c asks for and returns the path of each on the host, its
// sub-path taken. After an error Release takes back what was made. NotFound when
// a sub-path is not in its image, InvalidArgument when it leads out of it.
func (p Ports) Mount(ctx context.Context, c *core.Container, uids, gids []core.IDRange) (paths []string, err error) {
	for i, m := range c.Config.Images {
		co, err := p.Images.Checkout(ctx, core.CheckoutRequest{Container: checkout(c.ID, i), Image: m.Image, ReadOnly: true, UIDs: uids, GIDs: gids})
		if err != nil {
			return nil, fmt.Errorf("image volume %s: %w", m.Image, err)
		}
		target := filepath.Join(dir(c), strconv.Itoa(i))
		if err := os.MkdirAll(target, 0o700); err != nil {
			return nil, err
		}
		if err := p.Roots.Mount(ctx, target, co.Mounts, true); err != nil {
			return nil, fmt.Errorf("image volume %s: %w", m.Image, err)
		}
		path, err := below(target, m.SubPath)
		if err != nil {
			return nil, fmt.Errorf("image volume %s: %w", m.Image, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// below is where sub leads in an image mounted at target, which nobody can
// change any more. Links that lead out of the image are not followed.
func below(target, sub string) (string, error) {
	if sub == "" {
		return target, nil
	}
	root, err := os.OpenRoot(target)
	if err != nil {
		return "", err
	}
	defer func() { _ = root.Close() }()
	name := filepath.Clean(strings.TrimPrefix(sub, "/"))
	fi, err := root.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("sub-path %s: %w", sub, errdefs.ErrNotFound)
	}
	if err != nil || !fi.IsDir() && !fi.Mode().IsRegular() {
		return "", fmt.Errorf("sub-path %s is no file or directory of the image: %v: %w", sub, err, errdefs.ErrInvalidArgument) //nolint:errorlint // os.Root has no class for it
	}
	f, err := root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(int(f.Fd())))
}

// Release takes everything back; it succeeds when nothing is there.
func (p Ports) Release(ctx context.Context, c *core.Container) error {
	var errs []error
	for i := range c.Config.Images {
		target := filepath.Join(dir(c), strconv.Itoa(i))
		err := p.Roots.Unmount(ctx, target)
		if err == nil {
			// Should it still be mounted, this fails and nothing in it is deleted.
			err = ignoreMissing(os.Remove(target))
		}
		errs = append(errs, err, p.Images.Discard(ctx, checkout(c.ID, i)))
	}
	return errors.Join(errs...)
}

// Clear unmounts what a bundle without a record has of them.
func (p Ports) Clear(ctx context.Context, bundle string) error {
	c := &core.Container{Bundle: bundle}
	entries, err := os.ReadDir(dir(c))
	if err != nil {
		return ignoreMissing(err)
	}
	var errs []error
	for _, e := range entries {
		target := filepath.Join(dir(c), e.Name())
		errs = append(errs, p.Roots.Unmount(ctx, target), ignoreMissing(os.Remove(target)))
	}
	return errors.Join(errs...)
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
