// Package cgroup makes, limits, watches, kills and removes cgroups on v1, v2
// and hybrid machines. It is the engine's core.Cgroups.
//
// It writes plain files: nothing here moves a process from one cgroup to
// another, which costs the whole machine a grace period; processes are started
// where they belong. It must not know what a container is, nor link D-Bus, which
// packages systemd and device below it do. Start reading at Tree, then layout.go for how a path becomes directories.
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
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/stats"
)

// Options go with New.
type Options struct {
	// Root is the engine's own tree, an absolute path below the root of each
	// hierarchy. "" is "/longshore"; with systemd a delegated unit.
	Root string
	// Systemd (systemd.Bus) has units made by systemd over D-Bus and not by mkdir,
	// which it wants for everything outside a delegated tree.
	Systemd Systemd
	// DeviceProgram limits the devices of a v2 cgroup: device.Program. nil:
	// Devices is NotImplemented on v2.
	DeviceProgram func(dir string, rules []*devices.Rule) error
	// Mountinfo is the file that tells where cgroups are mounted; "" is
	// /proc/self/mountinfo.
	Mountinfo string
	// Logger is slog.Default() when nil.
	Logger *slog.Logger
}

// Tree is core.Cgroups on this machine.
type Tree struct {
	root    string
	layout  layout
	systemd Systemd
	program func(dir string, rules []*devices.Rule) error
	kept    *stats.Kept
	log     *slog.Logger
}

var _ core.Cgroups = (*Tree)(nil)

// New finds out where cgroups are mounted. FailedPrecondition when they are
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
	return &Tree{root: o.Root, layout: l, systemd: o.Systemd, program: o.DeviceProgram, kept: stats.NewKept(), log: o.Logger}, nil
}

// Mode says how cgroups are mounted here.
func (t *Tree) Mode() core.CgroupMode { return t.layout.mode }

// Root is the path of the engine's own tree.
func (t *Tree) Root() string { return t.root }

// Controllers names the controllers of this node, sorted.
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

// Create makes ref in every hierarchy and limits it; device rules are left to
// the runtime. What is there already is taken as it is. On failure nothing that
// it made is left.
func (t *Tree) Create(ctx context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	if err := t.valid(ref); err != nil {
		return fmt.Errorf("create cgroup: %w", err)
	}
	// A unit is made as a whole; of the rest it is known what was made.
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

// Update changes the limits that res names and leaves the others; device rules
// are the runtime's.
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

// OOMLevel names the files that tell of out-of-memory kills in ref and of its
// peak, whether they are there yet or not. All are "" without a memory
// controller.
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

// List names the cgroups below the engine's own tree, in any hierarchy, sorted.
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

// unknown is how many names link to a directory that was not looked at.
const unknown = 0

// listing is what there is in one hierarchy.
type listing struct {
	mount string
	found []string
	// below, unless nil, gets the names of the directories in each.
	below map[string][]string
	// like has those of a hierarchy that was listed before. Most are alike, and to
	// look whether what is there is there takes a sixth of listing it.
	like map[string][]string
}

// add finds what is below path, which so many names link to: each directory in it
// does, beside itself and its own name.
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

// links counts those to each of the named directories in path, 0 where there is
// none; all tells that each is there.
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

// subdirs names the directories in dir; none when dir is not there.
func subdirs(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
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
