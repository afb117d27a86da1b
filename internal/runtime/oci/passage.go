package oci

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// passages lets roots of user namespaces search directories that are closed to others,
// by entries in access control lists. Programs look up the root filesystem when they are
// already in the container's user namespace, where the host's root has no rights: crun
// does so from the bundle on, runc from /.
type passages struct {
	mu   sync.Mutex          // guards open
	open map[string]*passage // by directory
}

// passage is a directory that some users may search meanwhile.
type passage struct {
	mode  uint32         // mode of the directory before
	users map[uint32]int // number of creates that need it, by user
}

// dirsAbove is how many directories, from a bundle upwards, belong to Longshore: the
// bundle, the directory of all bundles, and the state directory.
const dirsAbove = 3

// through lets a container's root reach its bundle until done is called. The caller
// calls done once the program has made the container.
func (r *Runtime) through(c core.RuntimeCreate) (done func() error, err error) {
	none := func() error { return nil }
	uid, mapped := hostRoot(c.Spec)
	if !mapped {
		return none, nil
	}
	var granted []string
	done = func() error { return r.passages.revoke(granted, uid) }
	for i, dir := 0, c.Bundle; i < dirsAbove; i, dir = i+1, filepath.Dir(dir) {
		needed, err := r.passages.grant(dir, uid)
		if err != nil {
			return none, errors.Join(fmt.Errorf("let root of the user namespace (%d) through %s, which %s needs: %w", uid, dir, r.o.Name, err), done())
		}
		if needed {
			granted = append(granted, dir)
		}
	}
	return done, nil
}

// hostRoot returns the ID of root, outside, in the spec's user namespace, if it has one.
func hostRoot(s *specs.Spec) (uid uint32, mapped bool) {
	if s.Linux == nil {
		return 0, false
	}
	for _, m := range s.Linux.UIDMappings {
		if m.ContainerID == 0 && m.Size > 0 {
			return m.HostID, m.HostID != 0
		}
	}
	return 0, false
}

// grant lets a user search dir; needed is false if everybody may.
func (p *passages) grant(dir string, uid uint32) (needed bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	way := p.open[dir]
	if way == nil {
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil {
			return false, err
		}
		if st.Mode&0o001 != 0 {
			return false, nil
		}
		way = &passage{mode: st.Mode & 0o7777, users: map[uint32]int{}}
	}
	way.users[uid]++
	if err := setAccess(dir, way); err != nil {
		way.users[uid]--
		return false, err
	}
	if p.open == nil {
		p.open = map[string]*passage{}
	}
	p.open[dir] = way
	return true, nil
}

func (p *passages) revoke(dirs []string, uid uint32) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for _, dir := range dirs {
		way := p.open[dir]
		if way.users[uid]--; way.users[uid] == 0 {
			delete(way.users, uid)
		}
		if len(way.users) > 0 {
			errs = append(errs, setAccess(dir, way))
			continue
		}
		delete(p.open, dir)
		// The group bits of the mode were those of the list's mask.
		err := errors.Join(unix.Chmod(dir, way.mode), unix.Removexattr(dir, accessList))
		if !errors.Is(err, unix.ENOENT) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

const accessList = "system.posix_acl_access"

func setAccess(dir string, way *passage) error {
	err := unix.Setxattr(dir, accessList, aclOf(way.mode, slices.Sorted(maps.Keys(way.users))), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("its file system has no access control lists: use another runtime: %w: %w", err, errdefs.ErrNotImplemented)
	}
	return err
}

// aclOf returns the access control list, in the format of acl(5) and
// linux/posix_acl_xattr.h, of a directory with that mode which these users may search.
func aclOf(mode uint32, users []uint32) []byte {
	const (
		version                              = 2
		ownerTag, userTag, groupTag, maskTag = 0x01, 0x02, 0x04, 0x10
		otherTag                             = 0x20
		search                               = 1
		nobody                               = ^uint32(0)
	)
	b := binary.LittleEndian.AppendUint32(nil, version)
	entry := func(tag uint16, perm, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, uint16(perm&7))
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	entry(ownerTag, mode>>6, nobody)
	for _, uid := range users {
		entry(userTag, search, uid)
	}
	entry(groupTag, mode>>3, nobody)
	entry(maskTag, mode>>3|search, nobody)
	entry(otherTag, mode, nobody)
	return b
}
