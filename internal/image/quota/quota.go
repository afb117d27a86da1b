// Package quota limits the space of a directory with all that is made in it, by the project quotas of its file
// system: those of xfs, and of ext4 with the feature "project". A program that exceeds the limit gets ENOSPC from xfs and EDQUOT
// from ext4, and nobody else notices it. A process with root's rights in the node's user namespace can take its files out of
// the project, so the space must be measured too. Start at Open.
package quota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrOff says that a file system has no project quotas, or does not enforce them.
var ErrOff = errors.New("project quotas are off: mount the file system with the option prjquota (xfs, or ext4 that was made with -O quota,project)")

// Tree is a file system with project quotas.
type Tree struct{ dir *os.File }

// Open returns the file system of a directory. Its error wraps ErrOff if that has no project quotas.
func Open(dir string) (*Tree, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	t := &Tree{dir: f}
	var state stat
	err = t.control(xGetQuotaStat, 0, unsafe.Pointer(&state))
	switch {
	case err == nil && state.Flags&projectEnforced != 0:
		return t, nil
	// Linux before 5.14 has no such call. Without quotas the file system has no such operation, or the kernel says that none is on.
	case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTBLK), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EPERM):
		err = ErrOff
	}
	return nil, fmt.Errorf("quotas of %s: %w", dir, errors.Join(err, f.Close()))
}

// Close closes the file system. Limits stay. t may be nil.
func (t *Tree) Close() error {
	if t == nil {
		return nil
	}
	return t.dir.Close()
}

// firstProject is above the numbers that other programs use: people and dockerd begin with small ones, kubelet
// with 2^20.
const firstProject = 1 << 30

// Limit gives an empty directory a project of its own, with a limit in bytes, and returns the project's number. All
// that is made in the directory belongs to the project.
func (t *Tree) Limit(dir string, bytes int64) (uint32, error) {
	id, err := t.unused()
	if err != nil {
		return 0, err
	}
	if err := t.set(id, bytes); err != nil {
		return 0, err
	}
	f, err := os.Open(dir)
	if err == nil {
		err = errors.Join(enter(f, id), f.Close())
	}
	if err != nil {
		return 0, errors.Join(fmt.Errorf("put %s into project %d: %w", dir, id, err), t.set(id, 0))
	}
	return id, nil
}

// unused returns the number of a project without files and without a limit. It is chosen by chance, because others may use the
// same file system.
func (t *Tree) unused() (uint32, error) {
	for range 100 {
		id := firstProject + rand.Uint32N(firstProject) //nolint:gosec // it is no secret
		q, err := t.get(id)
		if err != nil {
			return 0, err
		}
		if q.Blocks == 0 && q.Inodes == 0 && q.BlockHard == 0 {
			return id, nil
		}
	}
	return 0, errors.New("found no unused project: a hundred numbers have files or limits")
}

// Release removes a project's limit. The files stay in the project until they are deleted.
func (t *Tree) Release(id uint32) error { return t.set(id, 0) }

func (t *Tree) get(id uint32) (q quota, err error) {
	err = t.control(xGetQuota, id, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) { // xfs has no record of it
		return quota{}, nil
	}
	if err != nil {
		err = fmt.Errorf("quota of project %d: %w", id, err)
	}
	return q, err
}

func (t *Tree) set(id uint32, bytes int64) error {
	blocks := uint64(bytes+blockSize-1) / blockSize
	q := quota{Version: 1, Flags: projectQuota, Fields: fieldSoft | fieldHard, ID: id, BlockHard: blocks, BlockSoft: blocks}
	if err := t.control(xSetLimit, id, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("limit project %d to %d bytes: %w", id, bytes, err)
	}
	return nil
}

// The calls of quotactl for xfs, which ext4 answers too, and their arguments: linux/dqblk_xfs.h.
const (
	xGetQuota     = 'X'<<8 + 3
	xSetLimit     = 'X'<<8 + 4
	xGetQuotaStat = 'X'<<8 + 5

	project         = 2      // the kind of quota
	projectQuota    = 1 << 1 // in quota.Flags
	projectEnforced = 1 << 5 // in stat.Flags
	fieldSoft       = 1 << 2
	fieldHard       = 1 << 3
	blockSize       = 512
)

type quota struct {
	Version, Flags       int8
	Fields               uint16
	ID                   uint32
	BlockHard, BlockSoft uint64
	InodeHard, InodeSoft uint64
	Blocks, Inodes       uint64
	_                    [48]byte // timers, warnings, and the limits of real-time files
}

type stat struct {
	Version int8
	Flags   uint16
	_       [76]byte
}

func (t *Tree) control(call int, id uint32, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, t.dir.Fd(), uintptr(call<<8|project), uintptr(id), uintptr(arg), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// attributes is struct fsxattr of linux/fs.h.
type attributes struct {
	Flags, ExtentSize, Extents, Project, CowExtentSize uint32
	_                                                  [8]byte
}

const (
	getAttributes  = 0x801c581f // FS_IOC_FSGETXATTR
	setAttributes  = 0x401c5820 // FS_IOC_FSSETXATTR
	projectInherit = 0x200      // FS_XFLAG_PROJINHERIT
)

// enter makes a directory and all that will be made in it part of a project.
func enter(dir *os.File, id uint32) error {
	var a attributes
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), getAttributes, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return errno
	}
	a.Project, a.Flags = id, a.Flags|projectInherit
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dir.Fd(), setAttributes, uintptr(unsafe.Pointer(&a))); errno != 0 {
		return errno
	}
	return nil
}
