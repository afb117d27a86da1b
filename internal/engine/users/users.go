// Package users gives sandboxes user namespaces, each with a range of the node's ids that no other sandbox has.
//
// The ranges in use are those of the sandboxes' records, so nothing else is stored: a range is taken in the transaction
// that records its sandbox, and is free when the record is gone. Owners of files that come from the host look the same
// as without a user namespace, by id-mapped mounts. Start at Table.
package users

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/sysctl"
)

// The default pool: far above the ids of kubelet's pods, which begin at 65536, and of /etc/subuid.
const (
	DefaultFirst  = 25600 * core.UserIDs
	DefaultRanges = uint32(3072)
)

// Options configure a Table.
type Options struct {
	// Auto gives a user namespace to each sandbox that can be in one.
	Auto bool
	// First and Ranges are the node's pool.
	First, Ranges uint32
	// Make makes user namespaces. The table tries file systems with one.
	Make func(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error)
	// Roots is a directory on the file system of the containers' roots. If its owners cannot be mapped, Auto has no effect.
	Roots string
}

// Table implements core.UserTable.
type Table struct {
	o     Options
	try   func(p string, all bool) error // Mappable
	trial func() (*os.File, error)       // a user namespace to try file systems with; made once
	tried tried
	roots func() error // whether containers' roots can be in a user namespace; tried once
	last  atomic.Int64 // the number of the range of the node's pool that was taken last, from 1; 0 is none
}

var _ core.UserTable = (*Table)(nil)

// New returns a table.
func New(o Options) *Table {
	t := &Table{o: o}
	t.trial = sync.OnceValues(func() (*os.File, error) {
		made, err := o.Make(context.Background(), core.UserRange(o.First), core.UserRange(o.First), specs.UserNamespace)
		if err != nil {
			return nil, fmt.Errorf("the kernel makes no user namespace: %w", err)
		}
		return made[0], nil
	})
	t.try = t.Mappable
	t.roots = sync.OnceValue(func() error { return t.try(t.o.Roots, false) })
	return t
}

// CheckPool refuses a pool that is empty, has the node's own ids, or reaches the last id, which is nobody's.
func CheckPool(first, ranges uint32) error {
	switch end := uint64(first) + uint64(ranges)*uint64(core.UserIDs); {
	case first < core.UserIDs:
		return fmt.Errorf("the first id, %d, is below %d, where the node's own users are: %w", first, core.UserIDs, errdefs.ErrInvalidArgument)
	case ranges == 0:
		return fmt.Errorf("the pool has no range of ids: %w", errdefs.ErrInvalidArgument)
	case end > 1<<32-1:
		return fmt.Errorf("%d ranges of %d ids from %d end at %d, above the last id: %w", ranges, core.UserIDs, first, end, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Auto reports whether sandboxes get user namespaces that they do not ask for, and why none can have one.
func (t *Table) Auto() (bool, error) {
	if !t.o.Auto {
		return false, nil
	}
	return true, t.roots()
}

// Resolve implements core.UserTable.
func (t *Table) Resolve(cfg *core.SandboxConfig, runtime string, f core.RuntimeFeatures) error {
	u := &cfg.Users
	if len(cfg.UIDs) > 0 {
		return nil // the caller, such as kubelet, has chosen them
	}
	lacks := without(runtime, f)
	switch {
	case u.Own && lacks != "":
		return fmt.Errorf("%s: %w", lacks, errdefs.ErrInvalidArgument)
	case u.Own:
		u.Host = ""
	case !t.o.Auto:
		u.Host = ""
		return nil
	default:
		if u.Host = cmp.Or(u.Host, shared(&cfg.Namespaces), lacks); u.Host == "" {
			if err := t.roots(); err != nil {
				u.Host = fmt.Sprintf("the files of images cannot be in one: %v", err)
			}
		}
		if u.Host = cmp.Or(u.Host, t.needs(&u.UserNeeds)); u.Host != "" {
			return nil
		}
		u.Chosen = true
	}
	cfg.Namespaces.User = core.Namespace{Mode: core.Shared}
	return nil
}

// Exempt implements core.UserTable.
func (t *Table) Exempt(sb *core.SandboxConfig, c *core.ContainerConfig, runtime string, f core.RuntimeFeatures) string {
	if !sb.Users.Chosen {
		return ""
	}
	directory := ""
	if c.Root.Image == "" {
		directory = "its root is a directory of the node"
	}
	return cmp.Or(c.Users.Host, directory, without(runtime, f), t.needs(&c.Users))
}

func without(runtime string, f core.RuntimeFeatures) string {
	if f.UserNamespaces && f.IDMappedMounts {
		return ""
	}
	return "runtime " + runtime + " has no user namespaces or no id-mapped mounts"
}

// needs returns why containers need the node's ids, or "".
func (t *Table) needs(n *core.UserNeeds) string {
	for _, c := range n.Caps {
		if slices.Contains(initial, c) {
			return "it has " + c + ", which the kernel honours with the node's ids only"
		}
	}
	for _, d := range n.Devices {
		if d.FileMode != nil && *d.FileMode&0o006 != 0o006 {
			return "its device " + d.Path + " is not open to all users"
		}
	}
	for _, p := range n.Paths {
		if err := t.try(p, true); err != nil {
			return err.Error()
		}
	}
	return ""
}

// initial are the capabilities that the kernel honours in the initial user namespace only, or by their larger part. Those that
// containers have by default are not among them, although two of these, MKNOD and AUDIT_WRITE, belong here: few programs use them.
var initial = []string{ //nolint:gochecknoglobals // never changed
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_BLOCK_SUSPEND", "CAP_BPF", "CAP_DAC_READ_SEARCH", "CAP_IPC_LOCK", "CAP_LINUX_IMMUTABLE", "CAP_MAC_ADMIN",
	"CAP_MAC_OVERRIDE", "CAP_PERFMON", "CAP_SYSLOG", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_MODULE", "CAP_SYS_NICE", "CAP_SYS_PACCT", "CAP_SYS_RAWIO",
	"CAP_SYS_RESOURCE", "CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_WAKE_ALARM",
}

// shared returns why a sandbox with these namespaces needs the node's ids, or "". The kernel decides about the network, IPC and so on
// by the user namespace that owns them: in another one, root may not mount them, change them, or listen at low ports. A cgroup
// namespace only hides names.
func shared(ns *core.Namespaces) string {
	for _, n := range []struct {
		name string
		ns   core.Namespace
	}{{"network", ns.Net}, {"IPC namespace", ns.IPC}, {"pid namespace", ns.PID}} {
		switch n.ns.Mode {
		case core.Host:
			return "it has the node's " + n.name
		case core.Joined:
			return "it has the " + n.name + " of another container"
		case core.Adopted:
			return "its " + n.name + " was made outside of it"
		case core.Shared, core.PerContainer:
		}
	}
	return ""
}

// Take implements core.UserTable.
func (t *Table) Take(tx core.Tx, cfg *core.SandboxConfig) error {
	if len(cfg.UIDs)+len(cfg.GIDs) > 0 {
		return free(tx, append(slices.Clone(cfg.UIDs), cfg.GIDs...))
	}
	if !cfg.Users.Own && !cfg.Users.Chosen {
		return nil
	}
	first, ranges, last, setting := t.o.First, t.o.Ranges, int(t.last.Load())-1, "engine.userns_ranges"
	if cfg.Users.Ranges > 0 {
		first, ranges, last, setting = cfg.Users.First, cfg.Users.Ranges, -1, "userns.ranges of Nomad's plugin"
	}
	taken := make([]bool, ranges)
	for sb := range tx.Sandboxes().Stored("") {
		for _, m := range sb.Config.UIDs {
			mark(taken, first, m)
		}
		for _, m := range sb.Config.GIDs {
			mark(taken, first, m)
		}
	}
	i := choose(taken, last)
	if i < 0 {
		return fmt.Errorf("all %d ranges of user ids from %d are taken: enlarge %s: %w", ranges, first, setting, errdefs.ErrUnavailable)
	}
	if cfg.Users.Ranges == 0 {
		t.last.Store(int64(i) + 1)
	}
	first += uint32(i) * core.UserIDs
	cfg.UIDs, cfg.GIDs = core.UserRange(first), core.UserRange(first)
	const groups = "net.ipv4.ping_group_range"
	if cfg.Sysctls[groups] == sysctl.AnyUser()[groups] {
		// The agent writes it, so its groups are those of the node.
		cfg.Sysctls = maps.Clone(cfg.Sysctls)
		cfg.Sysctls[groups] = fmt.Sprintf("%d %d", first, first+core.UserIDs-1)
	}
	return nil
}

// choices is how many of the lowest free ranges sandboxes get in turn. A range is then not taken again before the namespaces for
// it are ready, and few enough are in use that user namespaces with their mappings can be kept for mounts.
const choices = 4

// choose returns the range after last among the lowest free ones, or -1 if all are taken.
func choose(taken []bool, last int) int {
	lowest, n := -1, 0
	for i, is := range taken {
		if is {
			continue
		}
		if lowest < 0 {
			lowest = i
		}
		if i > last {
			return i
		}
		if n++; n == choices {
			break
		}
	}
	return lowest
}

// free returns an error if a caller's own mapping, such as kubelet's, has ids that the node gave to a sandbox. Two sandboxes of one
// caller may have the same ids, as the next sandbox of a pod has before kubelet removes the last.
func free(tx core.Tx, mapping []specs.LinuxIDMapping) error {
	for sb := range tx.Sandboxes().Stored("") {
		if !sb.Config.Users.Own && !sb.Config.Users.Chosen {
			continue
		}
		for _, m := range mapping {
			for _, has := range slices.Concat(sb.Config.UIDs, sb.Config.GIDs) {
				if uint64(m.HostID) < uint64(has.HostID)+uint64(has.Size) && uint64(has.HostID) < uint64(m.HostID)+uint64(m.Size) {
					return fmt.Errorf("the ids %d to %d are those of sandbox %s: give the node other ids by engine.userns_first_id: %w",
						m.HostID, uint64(m.HostID)+uint64(m.Size)-1, sb.ID.Short(), errdefs.ErrFailedPrecondition)
				}
			}
		}
	}
	return nil
}

// mark marks the ranges of a pool that overlap with m, which may begin and end within one.
func mark(taken []bool, pool uint32, m specs.LinuxIDMapping) {
	begin, end := int64(m.HostID)-int64(pool), int64(m.HostID)+int64(m.Size)-1-int64(pool)
	if end < 0 || m.Size == 0 {
		return
	}
	for i := max(begin, 0) / int64(core.UserIDs); i <= end/int64(core.UserIDs) && i < int64(len(taken)); i++ {
		taken[i] = true
	}
}

// Map implements core.UserTable.
func (t *Table) Map(spec *specs.Spec, recursive bool, skip func(source string) bool) error {
	for i := range spec.Mounts {
		m := &spec.Mounts[i]
		o := ocispec.ParseMountOptions(m.Options)
		bind := m.Type == "bind" || o.Flags&unix.MS_BIND != 0
		if !bind || len(m.UIDMappings)+len(m.GIDMappings) > 0 || slices.Contains(o.Data, "idmap") || slices.Contains(o.Data, "ridmap") || skip(m.Source) {
			continue
		}
		p := cmp.Or(o.Below, m.Source)
		// A mount below that cannot be mapped, such as one of sysfs, shows other owners.
		all := recursive && o.Flags&unix.MS_REC != 0 && t.try(p, true) == nil
		if !all {
			switch err := t.try(p, false); {
			case err == nil:
			case ofKernel(p):
				continue
			default:
				return fmt.Errorf("mount %s: %w", m.Destination, err)
			}
		}
		m.UIDMappings, m.GIDMappings = spec.Linux.UIDMappings, spec.Linux.GIDMappings
		if all {
			m.Options = append(slices.Clone(m.Options), "ridmap")
		}
	}
	return nil
}

// ofKernel reports whether the kernel makes the files at p. Their owners cannot be mapped, and no program has stored a secret there.
func ofKernel(p string) bool {
	var st unix.Statfs_t
	return unix.Statfs(p, &st) == nil && slices.Contains([]int64{unix.SYSFS_MAGIC, unix.PROC_SUPER_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC}, st.Type)
}

// tried has mounts with owners that the kernel can map: closing a mount that was made to try takes the kernel's
// lock of all mounts, and a container's files in /etc are on the same one each time.
type tried struct {
	mu     sync.Mutex // guards mounts
	mounts map[mountID]bool
}

// mountID is a mount of a file system. The kernel uses the number of a removed mount again.
type mountID struct{ mount, major, minor uint64 }

// maxTried is the limit of the mounts in it.
const maxTried = 1024

// mountOf returns the mount of the file at p, and whether other mounts may be below it.
func mountOf(p string) (id mountID, dir bool, err error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_TYPE|unix.STATX_MNT_ID, &st); err != nil {
		return id, false, fmt.Errorf("open %s: %w", p, err)
	}
	return mountID{st.Mnt_id, uint64(st.Dev_major), uint64(st.Dev_minor)}, st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

func (t *tried) known(id mountID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mounts[id]
}

func (t *tried) add(id mountID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.mounts) >= maxTried || t.mounts == nil {
		t.mounts = map[mountID]bool{}
	}
	t.mounts[id] = true
}

// Mappable returns an error if the owners of the files at p cannot be mapped; with all also those of the mounts below it.
func (t *Table) Mappable(p string, all bool) error {
	id, dir, err := mountOf(p)
	if err != nil {
		return err
	}
	if all = all && dir; !all && t.tried.known(id) {
		return nil
	}
	if err := t.mappable(p, all); err != nil {
		return err
	}
	t.tried.add(id)
	return nil
}

// mappable tries to map the owners of a copy of the mount at p.
func (t *Table) mappable(p string, all bool) error {
	trial, err := t.trial()
	if err != nil {
		return err
	}
	flags, at := uint(unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC), uint(unix.AT_EMPTY_PATH)
	if all {
		flags, at = flags|unix.AT_RECURSIVE, at|unix.AT_RECURSIVE
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, p, flags)
	if err != nil {
		return fmt.Errorf("open %s: %w", p, err)
	}
	defer func() { _ = unix.Close(tree) }()
	err = unix.MountSetattr(tree, "", at, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(trial.Fd())})
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM):
		return fmt.Errorf("the kernel cannot map the owners of files at %s: %w", p, errdefs.ErrFailedPrecondition)
	case err != nil:
		return fmt.Errorf("map the owners of files at %s: %w", p, err)
	}
	return nil
}
