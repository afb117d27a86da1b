// Package cgroup makes, limits, watches, kills and removes cgroups on v1, v2
// and hybrid machines. It is the engine's core.Cgroups.
//
// It writes plain files. It never moves a process from one cgroup to another, because that stalls
// the whole machine for a grace period; processes are started in their cgroup. It must not know
// containers, nor link D-Bus, which the package systemd below it does. Start reading at Tree, then
// layout.go for how a path becomes directories.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup/device"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/stats"
)

// Options configure a Tree.
type Options struct {
	// Root is the engine's own tree, an absolute path below the root of each hierarchy.
	// "" means "/longshore" or, with systemd, a delegated unit.
	Root string
	// Systemd (systemd.Bus), unless nil, makes units over D-Bus instead of directories
	// by mkdir, as systemd demands for everything outside a delegated tree.
	Systemd Systemd
	// Former stops units that an agent with Systemd has made, if this one has none: the
	// configuration may change while sandboxes exist. nil leaves these units.
	Former Systemd
	// Mountinfo is the file that says where cgroups are mounted; "" means
	// /proc/self/mountinfo.
	Mountinfo string
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Tree implements core.Cgroups on this machine.
type Tree struct {
	root    string
	layout  layout
	systemd Systemd
	former  Systemd
	program func(dir string, rules []device.Rule) error // on v2: device.Attach
	kept    *stats.Kept
	log     *slog.Logger
}

var _ core.Cgroups = (*Tree)(nil)

// New finds out where cgroups are mounted. It fails with FailedPrecondition if they are
// not.
func New(o Options) (*Tree, error) {
	if o.Mountinfo == "" {
		o.Mountinfo = "/proc/self/mountinfo"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Root == "" {
		o.Root = "/longshore"
		if o.Systemd != nil {
			o.Root = systemdRoot
		}
	}
	if !strings.HasPrefix(o.Root, "/") || filepath.Clean(o.Root) != o.Root || o.Root == "/" {
		return nil, fmt.Errorf("cgroup root %q is no absolute path below /: %w", o.Root, errdefs.ErrInvalidArgument)
	}
	f, err := os.Open(o.Mountinfo)
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	defer func() { _ = f.Close() }()
	l, err := parseLayout(f)
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	return &Tree{root: o.Root, layout: l, systemd: o.Systemd, former: o.Former, program: device.Attach, kept: stats.NewKept(), log: o.Logger}, nil
}

// Mode returns how cgroups are mounted on this node.
func (t *Tree) Mode() core.CgroupMode { return t.layout.mode }

// Root returns the path of the engine's own tree.
func (t *Tree) Root() string { return t.root }

// Controllers returns the names of this node's controllers, sorted.
func (t *Tree) Controllers() []string {
	set := map[string]bool{}
	for _, h := range t.layout.v1 {
		for _, c := range h.controllers {
			set[c] = true
		}
	}
	if t.layout.unified != "" {
		b, err := os.ReadFile(filepath.Join(t.layout.unified, "cgroup.controllers"))
		if err == nil {
			for _, c := range strings.Fields(string(b)) {
				set[c] = true
			}
		}
	}
	out := make([]string, 0, len(set))
	for c := range set {
		out = append(out, c)
	}
	slices.Sort(out)
	return out
}

// Create makes ref in every hierarchy and sets its limits, except device rules, which the runtime
// sets. Existing directories are used as they are. If Create fails, it removes the new directories.
func (t *Tree) Create(ctx context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	if err := t.valid(ref); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	// A unit is made as a whole; made has the new ones of the other directories.
	there := t.systemd != nil && slices.ContainsFunc(t.layout.owned(ref), exists)
	made, err := t.make(ctx, ref)
	if err == nil {
		err = t.limit(ref, res)
	}
	if err != nil {
		err = fmt.Errorf("create cgroup %s: %w", ref.Path, err)
		strange := func(dir string) bool { return !slices.Contains(made, dir) && exists(dir) }
		if !there && (t.systemd != nil || !slices.ContainsFunc(t.layout.owned(ref), strange)) {
			err = errors.Join(err, t.Remove(context.WithoutCancel(ctx), ref))
		}
	}
	return err
}

// Update changes the limits that res names and leaves the others. Device rules are set
// by the runtime.
func (t *Tree) Update(_ context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	if err := t.valid(ref); err != nil {
		return fmt.Errorf("update cgroup: %w", err)
	}
	if err := t.limit(ref, res); err != nil {
		return fmt.Errorf("update cgroup %s: %w", ref.Path, err)
	}
	return nil
}

func (t *Tree) valid(ref core.CgroupRef) error {
	if ref.IsZero() {
		return fmt.Errorf("no cgroup named: %w", errdefs.ErrInvalidArgument)
	}
	if p := ref.Path; p != "" && (!strings.HasPrefix(p, "/") || filepath.Clean(p) != p || p == "/") {
		return fmt.Errorf("cgroup path %q: %w", p, errdefs.ErrInvalidArgument)
	}
	for c, dir := range ref.Adopted {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("adopted cgroup %q of controller %q is not absolute: %w", dir, c, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// OOMLevel returns the files with ref's out-of-memory counters and its peak, whether
// they exist yet or not. All are "" if there is no memory controller.
func (t *Tree) OOMLevel(ref core.CgroupRef) (level core.OOMLevel, peak string) {
	if dir, ok := t.layout.v1Dir(ref, "memory"); ok {
		return core.OOMLevel{Path: filepath.Join(dir, "memory.oom_control")}, filepath.Join(dir, "memory.max_usage_in_bytes")
	}
	if t.layout.mode != core.CgroupV2 {
		return core.OOMLevel{}, ""
	}
	dir := t.layout.v2Dir(ref)
	return core.OOMLevel{
		Path:      filepath.Join(dir, "memory.events"),
		LocalPath: filepath.Join(dir, "memory.events.local"),
	}, filepath.Join(dir, "memory.peak")
}

// List returns the cgroups below the engine's own tree, in any hierarchy, sorted.
func (t *Tree) List(ctx context.Context) ([]string, error) {
	mounts := t.layout.mounts()
	if len(mounts) == 0 {
		return nil, nil
	}
	first := listing{mount: mounts[0], below: map[string][]string{}}
	err := first.add(ctx, t.root, unknown)
	found := make([][]string, len(mounts))
	found[0] = first.found
	g, ctx := errgroup.WithContext(ctx)
	for i, mount := range mounts[1:] {
		g.Go(func() error {
			l := listing{mount: mount, like: first.below}
			err := l.add(ctx, t.root, unknown)
			found[1+i] = l.found
			return err
		})
	}
	if err := errors.Join(err, g.Wait()); err != nil {
		return nil, fmt.Errorf("list cgroups: %w", err)
	}
	out := slices.Concat(found...)
	slices.Sort(out)
	return slices.Compact(out), nil
}

// unknown stands for a link count that was not read.
const unknown = 0

// listing has the existing cgroups of one hierarchy.
type listing struct {
	mount string
	found []string
	// below, unless nil, gets the names of the subdirectories of each directory
	below map[string][]string
	// like is the listing of another hierarchy. Most hierarchies are alike, and checking
	// whether a known name exists costs a sixth of listing a directory.
	like map[string][]string
}

// add lists the directories below path. links is its link count: a directory has two links and one
// more for each subdirectory.
func (l *listing) add(ctx context.Context, path string, links int) error {
	if err := ctx.Err(); err != nil || links == 2 {
		return err
	}
	names := l.like[path]
	below, all := l.links(path, names)
	if !all || links != len(names)+2 {
		var err error
		if names, err = subdirs(l.mount + path); err != nil {
			return err
		}
		below, _ = l.links(path, names)
	}
	if l.below != nil {
		l.below[path] = names
	}
	for i, name := range names {
		l.found = append(l.found, path+"/"+name)
		if err := l.add(ctx, path+"/"+name, below[i]); err != nil {
			return err
		}
	}
	return nil
}

// links returns the link counts of the named directories in path, 0 for one that does
// not exist; all reports whether all exist.
func (l *listing) links(path string, names []string) (counts []int, all bool) {
	counts = make([]int, len(names))
	all = true
	for i, name := range names {
		var st unix.Stat_t
		if err := unix.Stat(l.mount+path+"/"+name, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			all = false
			continue
		}
		counts[i] = int(st.Nlink)
	}
	return counts, all
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// subdirs returns the directories in dir; none if dir does not exist.
func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	// A workload may have nested its cgroups deeper than a path can be long. None of those is ours.
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENAMETOOLONG) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}
