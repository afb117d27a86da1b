package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/guest/mirror"
	"github.com/longshore/longshore/internal/invalid"
)

// watchTime is the interval at which a shared source is compared with its copy; the kernel
// reports no changes of the host.
const watchTime = 2 * time.Second

// watched is the name of the directory of the copies. The host shares it, and
// perhaps not for writing: a tmpfs is mounted there while there are copies.
const watched = "watchable"

// copies are the storages of the driver watchable-bind. The zero value has none.
type copies struct {
	mu   sync.Mutex             // guards dirs; serializes mounts on the directories
	dirs map[string]*copiesHere // by the directory of copies
}

// copiesHere is a directory of copies.
type copiesHere struct {
	users int
	tmpfs *os.File // open (O_PATH), so that a later mount over its path changes nothing
}

// mount makes a copy of a storage's source at its target, which follows the source until
// undo. A source that is too large is mounted itself.
func (c *copies) mount(ctx context.Context, s Storage, every time.Duration, log *slog.Logger) (undo func() error, err error) {
	dir := filepath.Dir(s.Target)
	if filepath.Base(dir) != watched {
		return nil, invalid.Errorf("a storage of the driver %s is in a directory %q", s.Driver, watched)
	}
	tmpfs, err := c.acquire(dir)
	if err != nil {
		return nil, err
	}
	one := &copied{storage: s, at: filepath.Join(byNumber(tmpfs), filepath.Base(s.Target)), log: log}
	end := func() error {
		return errors.Join(one.remove(), c.release(dir))
	}
	if one.mirror, err = mirror.New(s.Source, one.at, openRoot); err != nil {
		return nil, errors.Join(err, end())
	}
	err = one.begin(ctx, every)
	if errors.Is(err, mirror.ErrTooLarge) {
		if err = one.bind(); err == nil {
			return end, nil
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy %s: %w", s.Source, err), end())
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	var follower sync.WaitGroup
	follower.Go(func() { one.follow(following, every) })
	return func() error {
		stop()
		follower.Wait()
		return end()
	}, nil
}

// openRoot opens a directory that the host names, through no link.
func openRoot(dir string) (*os.Root, error) {
	f, err := openPlace(dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return os.OpenRoot(byNumber(f))
}

// acquire mounts the tmpfs of a directory of copies for its first user.
func (c *copies) acquire(dir string) (tmpfs *os.File, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if here := c.dirs[dir]; here != nil {
		here.users++
		return here.tmpfs, nil
	}
	on, err := makePlace(dir, 0o755)
	if err != nil {
		return nil, err
	}
	defer on.close()
	if err := unix.Mount("tmpfs", byNumber(on.on), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return nil, fmt.Errorf("mount a tmpfs at %s: %w", dir, err)
	}
	if tmpfs, err = on.mounted(); err != nil {
		return nil, err
	}
	if c.dirs == nil {
		c.dirs = map[string]*copiesHere{}
	}
	c.dirs[dir] = &copiesHere{users: 1, tmpfs: tmpfs}
	return tmpfs, nil
}

// release unmounts the tmpfs of a directory of copies after its last user. The directory
// is the host's, and stays.
func (c *copies) release(dir string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	here := c.dirs[dir]
	if here.users--; here.users > 0 {
		return nil
	}
	delete(c.dirs, dir)
	err := unix.Unmount(byNumber(here.tmpfs), unix.MNT_DETACH)
	_ = here.tmpfs.Close() // only named something
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount the tmpfs at %s: %w", dir, err)
	}
	return nil
}

// copied is one copy. It is its follower's, and after that its remover's.
type copied struct {
	mirror  *mirror.Mirror
	storage Storage
	at      string // the target in the open tmpfs
	log     *slog.Logger
	bound   bool // its source itself is mounted
	failed  bool
}

// beginTries bounds the attempts at the first copy of a source that changes all the time.
const beginTries = 5

// begin makes the first copy.
func (c *copied) begin(ctx context.Context, every time.Duration) error {
	pause := time.NewTicker(every / beginTries)
	defer pause.Stop()
	for try := 1; ; try++ {
		_, err := c.mirror.Sync()
		if !errors.Is(err, mirror.ErrBusy) || try == beginTries {
			return err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// follow makes the copy anew when the source has changed.
func (c *copied) follow(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		changed, err := c.mirror.Sync()
		if changed && err == nil && c.storage.Group != nil {
			err = c.storage.Group.apply(c.storage.Target, slices.Contains(c.storage.Options, "ro"))
		}
		if errors.Is(err, mirror.ErrTooLarge) {
			if err = c.bind(); err == nil {
				c.log.WarnContext(ctx, "a shared directory has become too large to follow; running containers keep its last copy, and new ones get the directory itself", "source", c.storage.Source)
				return
			}
		}
		if err != nil && !errors.Is(err, mirror.ErrBusy) && !c.failed {
			c.log.WarnContext(ctx, "cannot follow a shared directory; will retry", "source", c.storage.Source, "error", err)
		}
		c.failed = err != nil
	}
}

// bind mounts the source in the copy's place.
func (c *copied) bind() error {
	from, err := openPlace(c.storage.Source, unix.O_PATH)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	st, err := from.Stat()
	if err != nil {
		return err
	}
	if st.IsDir() {
		err = os.Mkdir(c.at, 0o755)
	} else {
		err = os.WriteFile(c.at, nil, 0o644)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := unix.Mount(byNumber(from), c.at, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mount %s: %w", c.storage.Source, err)
	}
	c.bound = true
	return nil
}

// remove removes the copy.
func (c *copied) remove() error {
	if c.bound {
		if err := unix.Unmount(c.at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return err // its content is the host's
		}
	}
	return os.RemoveAll(c.at)
}
