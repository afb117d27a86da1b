// Package checkpoint is core.Checkpointer by CRIU, a program that stores processes in files and makes them again.
//
// A checkpoint is a directory below Root, as Podman and CRI-O write their archives of one: package archive has the names. CRIU runs
// as the keeper's child (package criurun) and so outlives the agent; a locked file shows that it works. Start at Dump.
package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/checkpoint/archive"
	"github.com/longshore/longshore/internal/core"
)

// Cgroups are the operations on cgroups that a Checkpointer needs.
type Cgroups interface {
	Dirs(ref core.CgroupRef) (v1 []string, unified string, own map[string]string)
	Pids(ctx context.Context, ref core.CgroupRef) ([]int, error)
	Stats(ctx context.Context, ref core.CgroupRef, want core.StatsFields) (core.Stats, error)
	Mode() core.CgroupMode
	Kill(ctx context.Context, ref core.CgroupRef) error
}

// Layers reads the changes of root file systems.
type Layers struct {
	Changes func(ctx context.Context, container core.ID, use core.RootUse, fn func(core.FileChange) error) error
	Pack    func(ctx context.Context, container core.ID, use core.RootUse, w io.Writer) error
}

// Options configure a Checkpointer.
type Options struct {
	// Root is the directory of checkpoints, and State that of files that live as long as a call of CRIU.
	Root, State string
	// Program is CRIU; "" is criu in $PATH, of version MinVersion at least.
	Program string
	// Command is the beginning of a command line that runs criurun.Main.
	Command  []string
	Launcher core.Launcher
	Cgroups  Cgroups
	Layers   Layers
	// Restorable reports whether containers of a runtime can be restored. nil allows all.
	Restorable func(runtime string) bool
	// Filter compiles the seccomp filter of a container. nil compares no filters.
	Filter func(*specs.LinuxSeccomp) ([]unix.SockFilter, error)
	// ImageName returns the name of a container's image, "" if it has none. nil knows none.
	ImageName func(ctx context.Context, c *core.Container) string
	// Reserve is how many bytes of Root's file system stay free.
	Reserve uint64
	Logger  *slog.Logger
}

// Checkpointer implements core.Checkpointer.
type Checkpointer struct {
	o     Options
	probe probe
}

var _ core.Checkpointer = (*Checkpointer)(nil)

// New returns a Checkpointer. It makes no directory and runs nothing.
func New(o Options) *Checkpointer {
	return &Checkpointer{o: o, probe: probe{program: o.Program}}
}

// Able implements core.Checkpointer.
func (c *Checkpointer) Able(ctx context.Context) error {
	_, err := c.probe.path(ctx)
	return err
}

func (c *Checkpointer) dir(id core.ID) string { return filepath.Join(c.o.Root, string(id)) }

// whole is the file that a complete checkpoint has.
const whole = "complete"

// description is the content of archive.Meta.
type description struct {
	Version int `json:"version"`
	core.CheckpointMeta
	Runtime string    `json:"runtime,omitempty"`
	Mounts  []mount   `json:"mounts,omitempty"`
	Files   []extFile `json:"files,omitempty"`
	// Net and Pid are the names of namespaces that belong to the sandbox.
	Net, Pid  string   `json:",omitempty"`
	UTS, IPC  bool     `json:",omitempty"` // these belong to the sandbox, too
	FileLocks bool     `json:"file_locks,omitempty"`
	Command   []string `json:"command,omitempty"`
}

// version is that of description.
const version = 1

// mount is a mount that a restored container gets from its new mount namespace.
type mount struct {
	Name   string `json:"name"`
	Target string `json:"target"`
}

// extFile is a file outside of the container that its processes have open.
type extFile struct {
	Name   string `json:"name"`   // in CRIU's form
	Stream string `json:"stream"` // stdin, stdout, stderr or null
}

func (c *Checkpointer) describe(dir string) (d description, err error) {
	b, err := os.ReadFile(filepath.Join(dir, archive.Meta))
	if errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("the checkpoint has no %s: it was not made by longshore: %w", archive.Meta, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return d, err
	}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, fmt.Errorf("read %s: %w: %w", archive.Meta, err, errdefs.ErrInvalidArgument)
	}
	if d.Version != version {
		return d, fmt.Errorf("the checkpoint has the format %d of another longshore, this one knows %d: %w", d.Version, version, errdefs.ErrInvalidArgument)
	}
	return d, d.valid()
}

// valid checks the fields of a description from another node.
func (d *description) valid() error {
	for i, m := range d.Mounts {
		if m.Name != mountName(i) || !filepath.IsAbs(m.Target) || strings.ContainsAny(m.Target, "\x00") {
			return fmt.Errorf("%s: mounts[%d]: %q, %q: %w", archive.Meta, i, m.Name, m.Target, errdefs.ErrInvalidArgument)
		}
	}
	for i, f := range d.Files {
		if !fileName.MatchString(f.Name) || streamFD(f.Stream) == "" {
			return fmt.Errorf("%s: files[%d]: %q, %q: %w", archive.Meta, i, f.Name, f.Stream, errdefs.ErrInvalidArgument)
		}
	}
	for _, n := range []string{d.Net, d.Pid} {
		if n != "" && n != netName && n != pidName {
			return fmt.Errorf("%s: namespace %q: %w", archive.Meta, n, errdefs.ErrInvalidArgument)
		}
	}
	_, err := core.ParseTCPMode(string(d.TCP))
	if err != nil {
		return fmt.Errorf("%s: %w: %w", archive.Meta, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Describe implements core.Checkpointer.
func (c *Checkpointer) Describe(_ context.Context, id core.ID) (core.CheckpointMeta, error) {
	d, err := c.complete(id)
	return d.CheckpointMeta, err
}

// complete returns the description of a container's checkpoint.
func (c *Checkpointer) complete(id core.ID) (description, error) {
	if _, err := os.Lstat(filepath.Join(c.dir(id), whole)); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("container %s has no checkpoint on this node: %w", id.Short(), errdefs.ErrNotFound)
		}
		return description{}, err
	}
	return c.describe(c.dir(id))
}

// Export implements core.Checkpointer.
func (c *Checkpointer) Export(_ context.Context, id core.ID, w io.Writer) error {
	if _, err := c.complete(id); err != nil {
		return err
	}
	root, err := os.OpenRoot(c.dir(id))
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return archive.Write(w, root)
}

// importPrefix begins the names of directories of checkpoints that are no container's.
const importPrefix = "import-"

// imported implements core.Imported.
type imported struct {
	c    *Checkpointer
	dir  string
	meta core.CheckpointMeta
}

// Import implements core.Checkpointer.
func (c *Checkpointer) Import(_ context.Context, r io.Reader) (_ core.Imported, err error) {
	if err := os.MkdirAll(c.o.Root, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(c.o.Root, importPrefix)
	if err != nil {
		return nil, err
	}
	in := &imported{c: c, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, in.Close())
		}
	}()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	if err := archive.Read(r, root, archive.Limits{Room: func() error { return c.room(16 << 20) }}); err != nil {
		return nil, err
	}
	d, err := c.describe(dir)
	if err != nil {
		return nil, err
	}
	if _, err := root.Stat(archive.Images + "/inventory.img"); err != nil {
		return nil, fmt.Errorf("the checkpoint has no images of CRIU: %w", errdefs.ErrInvalidArgument)
	}
	in.meta = d.CheckpointMeta
	return in, nil
}

// Meta implements core.Imported.
func (i *imported) Meta() core.CheckpointMeta { return i.meta }

// Give implements core.Imported.
func (i *imported) Give(ctx context.Context, id core.ID) error {
	if err := i.c.Remove(ctx, id); err != nil {
		return err
	}
	if err := atomicfile.Replace(filepath.Join(i.dir, whole), nil, 0o600); err != nil {
		return err
	}
	return os.Rename(i.dir, i.c.dir(id))
}

// Close implements core.Imported.
func (i *imported) Close() error { return os.RemoveAll(i.dir) }

// Remove implements core.Checkpointer.
func (c *Checkpointer) Remove(_ context.Context, id core.ID) error {
	// Without this file it is no checkpoint any more, whenever the agent dies.
	if err := os.Remove(filepath.Join(c.dir(id), whole)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(os.RemoveAll(c.dir(id)), os.RemoveAll(c.work(id)))
}

// Stored implements core.Checkpointer. It removes imported checkpoints that no container has.
func (c *Checkpointer) Stored(context.Context) (list []core.ID, err error) {
	for _, dir := range []string{c.o.Root, c.o.State} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), importPrefix) {
				if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
					return nil, err
				}
				continue
			}
			list = append(list, core.ID(e.Name()))
		}
	}
	return list, nil
}

// work is the directory of the files of a call of CRIU.
func (c *Checkpointer) work(id core.ID) string { return filepath.Join(c.o.State, string(id)) }

// The times of a program: of CRIU without a limit of its own, and of an earlier agent's program.
const (
	defaultTimeout = 10 * time.Minute
	settleEvery    = 50 * time.Millisecond
)

// Settle implements core.Checkpointer.
func (c *Checkpointer) Settle(ctx context.Context, ct *core.Container) error {
	if cp := ct.LastCheckpoint(); cp != nil && cp.Phase == core.CheckpointRestoring {
		return c.settle(ctx, ct.ID, func() error { return c.o.Cgroups.Kill(ctx, ct.Cgroup) })
	}
	return c.settle(ctx, ct.ID, func() error { return nil })
}

// settle waits for the end of CRIU. It calls kill again and again: CRIU joins the cgroup of a restored container.
func (c *Checkpointer) settle(ctx context.Context, id core.ID, kill func() error) error {
	ctx, cancel := context.WithTimeout(ctx, defaultTimeout)
	defer cancel()
	f, err := os.OpenFile(filepath.Join(c.work(id), lockFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) {
			if err == nil {
				c.adopt(id)
			}
			return err
		}
		if err := kill(); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("CRIU still works on container %s: %w", id.Short(), ctx.Err())
		case <-time.After(settleEvery):
		}
	}
}

// adopt completes a dump that CRIU has finished without an agent.
func (c *Checkpointer) adopt(id core.ID) {
	b, err := os.ReadFile(filepath.Join(c.dir(id), archive.Log))
	if err != nil || !strings.Contains(string(b[max(0, len(b)-200):]), "Dumping finished successfully") {
		return
	}
	if err := c.finish(id); err != nil {
		c.o.Logger.Warn("could not complete a checkpoint that an earlier agent began", "container", id, "error", err)
	}
}

// room checks that the disk has so much more space than Reserve.
func (c *Checkpointer) room(more uint64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(c.o.Root, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", c.o.Root, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < more+c.o.Reserve {
		return fmt.Errorf("%s has %d MiB of free space, and %d are needed: %w", c.o.Root, free>>20, (more+c.o.Reserve)>>20, errdefs.ErrResourceExhausted)
	}
	return nil
}
