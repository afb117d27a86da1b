package enginetest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// fault lets a test make a port fail.
type fault struct {
	mu   sync.Mutex // guards fail
	fail func(call string) error
}

// Fail sets a function that is called before each call of the port: its error is the call's
// error. nil removes it.
func (f *fault) Fail(fn func(call string) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = fn
}

func (f *fault) check(ctx context.Context, call string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	fn := f.fail
	f.mu.Unlock()
	if fn == nil {
		return nil
	}
	return fn(call)
}

// Pinner is a fake core.Pinner. Its paths do not exist.
type Pinner struct {
	fault
	lock   sync.Mutex // guards pinned
	dir    string
	pinned map[core.ID][]specs.LinuxNamespaceType
}

var _ core.Pinner = (*Pinner)(nil)

// Pin returns a path for each kind.
func (p *Pinner) Pin(ctx context.Context, req core.PinRequest) (map[specs.LinuxNamespaceType]string, error) {
	if err := p.check(ctx, "Pin"); err != nil {
		return nil, err
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	paths := map[specs.LinuxNamespaceType]string{}
	for _, k := range req.Kinds {
		paths[k] = filepath.Join(p.dir, string(req.Sandbox), string(k))
	}
	for k := range req.Join {
		paths[k] = filepath.Join(p.dir, string(req.Sandbox), string(k))
	}
	if !req.Rest {
		p.pinned[req.Sandbox] = req.Kinds
	}
	return paths, nil
}

// Unpin forgets a sandbox's paths.
func (p *Pinner) Unpin(ctx context.Context, sandbox core.ID) error {
	if err := p.check(ctx, "Unpin"); err != nil {
		return err
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	delete(p.pinned, sandbox)
	return nil
}

// Pinned returns the sandboxes.
func (p *Pinner) Pinned(ctx context.Context) ([]core.ID, error) {
	p.lock.Lock()
	defer p.lock.Unlock()
	return slices.Sorted(maps.Keys(p.pinned)), p.check(ctx, "Pinned")
}

// Reboot drops all pinned namespaces, as a boot does.
func (p *Pinner) Reboot() {
	p.lock.Lock()
	defer p.lock.Unlock()
	clear(p.pinned)
}

// Cgroups is a fake core.Cgroups.
type Cgroups struct {
	fault
	lock   sync.Mutex // guards groups, frozen, stats
	groups map[string]*specs.LinuxResources
	frozen map[string]bool
	stats  map[string]core.Stats
	killed func(path string)
	pids   func(path string) []int
}

var _ core.Cgroups = (*Cgroups)(nil)

func newCgroups() *Cgroups {
	return &Cgroups{groups: map[string]*specs.LinuxResources{}, frozen: map[string]bool{}, stats: map[string]core.Stats{}}
}

// Mode returns v2.
func (c *Cgroups) Mode() core.CgroupMode { return core.CgroupV2 }

// Place places objects below /longshore, below the cgroup above, or below the requested parent.
func (c *Cgroups) Place(parent core.Cgroup, above core.CgroupRef, name string) (core.CgroupRef, error) {
	if len(parent.Adopt) > 0 {
		return core.CgroupRef{Adopted: maps.Clone(parent.Adopt)}, nil
	}
	base := "/longshore"
	if above.Path != "" {
		base = above.Path
	}
	if parent.Parent != "" {
		base = parent.Parent
	}
	return core.CgroupRef{Path: base + "/" + name}, nil
}

// Create makes a group with limits.
func (c *Cgroups) Create(ctx context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	if err := c.check(ctx, "Create"); err != nil {
		return err
	}
	if ref.Path == "" {
		return nil
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if res == nil {
		res = &specs.LinuxResources{}
	}
	c.groups[ref.Path] = res
	return nil
}

// Update changes limits.
func (c *Cgroups) Update(ctx context.Context, ref core.CgroupRef, res *specs.LinuxResources) error {
	if err := c.check(ctx, "Update"); err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if _, ok := c.groups[ref.Path]; !ok {
		return fmt.Errorf("update cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	if res != nil {
		c.groups[ref.Path] = res
	}
	return nil
}

// Resources returns the limits.
func (c *Cgroups) Resources(ctx context.Context, ref core.CgroupRef) (*specs.LinuxResources, error) {
	if err := c.check(ctx, "Resources"); err != nil {
		return nil, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.groups[ref.Path] == nil {
		return nil, fmt.Errorf("cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	return c.groups[ref.Path], nil
}

// MemoryLimit returns the memory limit.
func (c *Cgroups) MemoryLimit(ctx context.Context, ref core.CgroupRef) (uint64, error) {
	res, err := c.Resources(ctx, ref)
	if err != nil || res.Memory == nil || res.Memory.Limit == nil || *res.Memory.Limit < 0 {
		return 0, err
	}
	return uint64(*res.Memory.Limit), nil
}

// Freeze records the state.
func (c *Cgroups) Freeze(ctx context.Context, ref core.CgroupRef, frozen bool) error {
	if err := c.check(ctx, "Freeze"); err != nil {
		return err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.frozen[ref.Path] = frozen
	return nil
}

// Frozen reports the state of the last Freeze.
func (c *Cgroups) Frozen(ref core.CgroupRef) bool {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.frozen[ref.Path]
}

// Kill ends every process launched in or below ref.
func (c *Cgroups) Kill(ctx context.Context, ref core.CgroupRef) error {
	if err := c.check(ctx, "Kill"); err != nil {
		return err
	}
	c.killed(ref.Path)
	return nil
}

// Pids returns the pids of the processes that run in ref itself.
func (c *Cgroups) Pids(ctx context.Context, ref core.CgroupRef) ([]int, error) {
	if err := c.check(ctx, "Pids"); err != nil {
		return nil, err
	}
	return c.pids(ref.Path), nil
}

// Remove removes ref and its children.
func (c *Cgroups) Remove(ctx context.Context, ref core.CgroupRef) error {
	if err := c.check(ctx, "Remove"); err != nil {
		return err
	}
	if ref.Path == "" {
		return nil
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	for path := range c.groups {
		if path == ref.Path || strings.HasPrefix(path, ref.Path+"/") {
			delete(c.groups, path)
			delete(c.frozen, path)
		}
	}
	return nil
}

func (c *Cgroups) reboot() {
	c.lock.Lock()
	defer c.lock.Unlock()
	clear(c.groups)
	clear(c.frozen)
}

// SetStats sets the result of Stats.
func (c *Cgroups) SetStats(ref core.CgroupRef, s core.Stats) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.stats[ref.Path] = s
}

// Stats returns the value of SetStats.
func (c *Cgroups) Stats(ctx context.Context, ref core.CgroupRef, _ core.StatsFields) (core.Stats, error) {
	if err := c.check(ctx, "Stats"); err != nil {
		return core.Stats{}, err
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	if ref.Path != "" && c.groups[ref.Path] == nil {
		return core.Stats{}, fmt.Errorf("stats of cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	s := c.stats[ref.Path]
	if s.At.IsZero() {
		s.At = time.Now()
	}
	return s, nil
}

// OOMLevel returns names of files that do not exist.
func (c *Cgroups) OOMLevel(ref core.CgroupRef) (level core.OOMLevel, peak string) {
	return core.OOMLevel{Path: ref.Path + "/memory.events"}, ref.Path + "/memory.peak"
}

// List returns the groups below /longshore.
func (c *Cgroups) List(ctx context.Context) ([]string, error) {
	c.lock.Lock()
	defer c.lock.Unlock()
	var list []string
	for path := range c.groups {
		if strings.HasPrefix(path, "/longshore/") {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	return list, c.check(ctx, "List")
}

// Roots is a fake core.Roots: a mount copies the image's files into the
// directory.
type Roots struct {
	fault
	lock   sync.Mutex // guards mounts
	images *Images
	mounts map[string][]core.Mount
}

var _ core.Roots = (*Roots)(nil)

// Mount copies the files.
func (r *Roots) Mount(ctx context.Context, target string, mounts []core.Mount, _ bool) error {
	if err := r.check(ctx, "Mount"); err != nil {
		return err
	}
	if _, err := os.Stat(target); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	r.mounts[target] = mounts
	for _, m := range mounts {
		if m.Type != "fake" {
			continue
		}
		for name, content := range r.images.content(core.ID(m.Source)) {
			path := filepath.Join(target, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// Unmount removes them.
func (r *Roots) Unmount(ctx context.Context, target string) error {
	if err := r.check(ctx, "Unmount"); err != nil {
		return err
	}
	r.lock.Lock()
	defer r.lock.Unlock()
	if _, ok := r.mounts[target]; !ok {
		return nil
	}
	delete(r.mounts, target)
	entries, err := os.ReadDir(target)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(target, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// Mounted returns the targets below dir.
func (r *Roots) Mounted(ctx context.Context, dir string) ([]string, error) {
	r.lock.Lock()
	defer r.lock.Unlock()
	var list []string
	for t := range r.mounts {
		if dir == "/" || strings.HasPrefix(t, dir+"/") {
			list = append(list, t)
		}
	}
	slices.Sort(list)
	return list, r.check(ctx, "Mounted")
}

// Reboot drops every mount, as a boot does.
func (r *Roots) Reboot() {
	r.lock.Lock()
	defer r.lock.Unlock()
	clear(r.mounts)
}

// OOMLog is a fake core.OOMLog. The zero value cannot read the kernel log.
type OOMLog struct {
	mu      sync.Mutex // guards victims
	victims []core.OOMVictim
}

var _ core.OOMLog = (*OOMLog)(nil)

// Report adds a line to the kernel log.
func (c *OOMLog) Report(v core.OOMVictim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.victims = append(c.victims, v)
}

// Victims returns the lines since a time.
func (c *OOMLog) Victims(_ context.Context, since time.Time) []core.OOMVictim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.victims), func(v core.OOMVictim) bool { return v.At.Before(since) })
}
