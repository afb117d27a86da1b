package volumes

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
	"github.com/longshore/longshore/internal/engine/owned"
)

// Images mounts the content of images, read-only, for a container with another root. Each image is
// checked out under a name made from the container's ID, and mounted below the container's bundle.
type Images struct {
	Images core.Images
	Roots  core.Roots
}

func imageCheckout(container core.ID, i int) core.ID {
	return container + core.ID("."+strconv.Itoa(i))
}

// Checkouts returns the names of a container's checkouts for its image volumes.
func Checkouts(c *core.Container) (ids []core.ID) {
	for i := range c.Config.Images {
		ids = append(ids, imageCheckout(c.ID, i))
	}
	return ids
}

// CheckoutContainer returns the container of the checkout id, which is its root or an image volume.
func CheckoutContainer(id core.ID) core.ID {
	c, _, _ := strings.Cut(string(id), ".")
	return core.ID(c)
}

func imageDir(c *core.Container) string { return filepath.Join(c.Bundle, "images") }

// Mount mounts all images that c asks for and returns the host path of each, sub-path included. After an
// error the caller calls Release. It returns NotFound when a sub-path is not in its image,
// InvalidArgument when it leads out of it.
func (v Images) Mount(ctx context.Context, c *core.Container, uids, gids []core.IDRange) (paths []string, err error) {
	for i, m := range c.Config.Images {
		co, err := v.Images.Checkout(ctx, core.CheckoutRequest{Container: imageCheckout(c.ID, i), Image: m.Image, ReadOnly: true, UIDs: uids, GIDs: gids})
		if err != nil {
			return nil, fmt.Errorf("image volume %s: %w", m.Image, err)
		}
		target := filepath.Join(imageDir(c), strconv.Itoa(i))
		if err := os.MkdirAll(target, 0o700); err != nil {
			return nil, err
		}
		if err := v.Roots.Mount(ctx, target, owned.Labelled(co.Mounts, c.Config.FileLabel), true); err != nil {
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

// below returns the path of sub in an image that is mounted at target and that nobody can change
// any more. Links that lead out of the image are not followed.
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

// Release unmounts and discards everything. It succeeds when there is nothing.
func (v Images) Release(ctx context.Context, c *core.Container) error {
	var errs []error
	for i := range c.Config.Images {
		target := filepath.Join(imageDir(c), strconv.Itoa(i))
		err := v.Roots.Unmount(ctx, target)
		if err == nil {
			// If something is still mounted here, this fails and deletes nothing in it.
			err = ignoreMissing(os.Remove(target))
		}
		errs = append(errs, err, v.Images.Discard(ctx, imageCheckout(c.ID, i)))
	}
	return errors.Join(errs...)
}

// Clear unmounts the image volumes of a bundle that has no record.
func (v Images) Clear(ctx context.Context, bundle string) error {
	c := &core.Container{Bundle: bundle}
	entries, err := os.ReadDir(imageDir(c))
	if err != nil {
		return ignoreMissing(err)
	}
	var errs []error
	for _, e := range entries {
		target := filepath.Join(imageDir(c), e.Name())
		errs = append(errs, v.Roots.Unmount(ctx, target), ignoreMissing(os.Remove(target)))
	}
	return errors.Join(errs...)
}
