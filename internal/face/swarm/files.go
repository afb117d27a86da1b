package swarm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/translate"
)

// files have the secrets and configs of tasks, in a directory for each sandbox, on a
// tmpfs of their own: never on a disk, wherever the state directory is.
type files struct {
	dir     string
	mountAt func(dir string) error // nil is mountTmpfs
}

// mount makes the tmpfs, unless an earlier agent has: its tasks still use it.
func (f files) mount() error {
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of secrets: %w", err)
	}
	mounted, err := f.mounted()
	if err != nil || mounted {
		return err
	}
	mount := f.mountAt
	if mount == nil {
		mount = mountTmpfs
	}
	if err := mount(f.dir); err != nil {
		return fmt.Errorf("mount a tmpfs for secrets: %w", err)
	}
	return nil
}

// mountTmpfs mounts one that is not swapped out, where the kernel knows how: since 6.4.
func mountTmpfs(dir string) (err error) {
	const flags, options = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, "mode=0700,size=64m"
	for _, o := range []string{options + ",noswap", options} {
		if err = unix.Mount("tmpfs", dir, "tmpfs", flags, o); err == nil {
			return nil
		}
	}
	return err
}

func (f files) mounted() (bool, error) {
	var dir, above unix.Stat_t
	if err := unix.Stat(f.dir, &dir); err != nil {
		return false, fmt.Errorf("directory of secrets: %w", err)
	}
	if err := unix.Stat(filepath.Dir(f.dir), &above); err != nil {
		return false, fmt.Errorf("directory of secrets: %w", err)
	}
	return dir.Dev != above.Dev, nil
}

// unmount takes the tmpfs away with all that is on it.
func (f files) unmount() error {
	if _, err := os.Stat(f.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	mounted, err := f.mounted()
	if err != nil {
		return err
	}
	if mounted {
		if err := unix.Unmount(f.dir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount the tmpfs of secrets: %w", err)
		}
	}
	return os.RemoveAll(f.dir)
}

// write makes the files of a sandbox and returns their paths, in the same order.
func (f files) write(sandbox core.ID, list []translate.File, content [][]byte) (paths []string, err error) {
	if len(list) == 0 {
		return nil, nil
	}
	dir := filepath.Join(f.dir, string(sandbox))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make a directory for secrets: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of secrets: %w", err)
	}
	defer func() { _ = root.Close() }()
	for i, file := range list {
		name := strconv.Itoa(i)
		if err := writeFile(root, name, file, content[i]); err != nil {
			return nil, fmt.Errorf("write %s: %w", file.Name, errors.Join(err, os.RemoveAll(dir)))
		}
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths, nil
}

// of are the paths of a sandbox's files, in the order of list. NotFound when one is not
// there.
func (f files) of(sandbox core.ID, list []translate.File) (paths []string, err error) {
	for i := range list {
		path := filepath.Join(f.dir, string(sandbox), strconv.Itoa(i))
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", list[i].Name, errdefs.ErrNotFound)
		} else if err != nil {
			return nil, fmt.Errorf("look for %s: %w", list[i].Name, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// writeFile has the file with its owner and mode before it has its content, and by its
// name when it is whole.
func writeFile(root *os.Root, name string, file translate.File, content []byte) (err error) {
	h, err := root.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	if err := h.Chown(file.UID, file.GID); err != nil {
		return err
	}
	if err := unix.Fchmod(int(h.Fd()), file.Mode); err != nil {
		return err
	}
	if _, err := h.Write(content); err != nil {
		return err
	}
	return root.Rename(name+".new", name)
}

// remove removes those of a sandbox; success when there are none.
func (f files) remove(sandbox core.ID) error {
	if sandbox == "" {
		return nil
	}
	if err := os.RemoveAll(filepath.Join(f.dir, string(sandbox))); err != nil {
		return fmt.Errorf("remove secrets: %w", err)
	}
	return nil
}

// others removes the files of sandboxes that are not in of.
func (f files) others(of map[core.ID]bool) error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("read the directory of secrets: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if id := core.ID(e.Name()); !of[id] {
			errs = append(errs, f.remove(id))
		}
	}
	return errors.Join(errs...)
}
