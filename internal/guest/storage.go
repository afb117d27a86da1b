package guest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// The drivers of storages.
const (
	driverEphemeral = "ephemeral"        // a tmpfs
	driverLocal     = "local"            // a directory
	driverVirtioFS  = "virtio-fs"        // a share of the host, by its tag
	driverOverlay   = "overlayfs"        // layers that are mounted already
	driverBind      = "bind"             // a directory or file of the guest
	driver9P        = "9p"               // a share of the host, as of shims before virtio-fs
	driverBlock     = "blk"              // a disk, by its PCI path or device file
	driverMMIO      = "mmioblk"          // a disk, by its device file
	driverSCSI      = "scsi"             // a disk, by its id and number
	driverNVDIMM    = "nvdimm"           // memory that is a disk, by its device file
	driverPull      = "image_guest_pull" // an image, which the guest pulls
	driverWatched   = "watchable-bind"   // a directory or file of the host with changes that programs wait for
)

// Storage is something to be mounted in the guest.
type Storage struct {
	Driver  string
	Source  string
	Type    string // of the file system
	Options []string
	Target  string // absolute
	// DriverOptions are the driver's options beside the mount.
	DriverOptions []string
	// Shared keeps the mount after the removal of its last container, until the sandbox ends. The
	// caller must heed it.
	Shared bool
	// Group, unless nil, gets the storage's files when it is mounted.
	Group *Group
	// Layers, unless empty, are the layers of this storage, which is an overlay.
	Layers []Storage `json:",omitempty"`
}

// Drivers names the drivers that Mount knows.
func (m *Machine) Drivers() []string {
	list := []string{driver9P, driverBind, driverBlock, driverEphemeral, driverLayers, driverLocal, driverMMIO, driverNVDIMM, driverOverlay, driverSCSI, driverVirtioFS, driverWatched}
	if m.Puller != nil {
		list = append(list, driverPull)
		slices.Sort(list)
	}
	return list
}

// Mount mounts a storage, or adds a reference to this machine's mount at its target.
func (m *Machine) Mount(ctx context.Context, s Storage) error {
	if !filepath.IsAbs(s.Target) || filepath.Clean(s.Target) != s.Target || s.Target == "/" {
		return invalid.Errorf("storage: mount point %q: an absolute path without '.' and '..' is wanted", s.Target)
	}
	unlock, err := m.targets.Lock(ctx, s.Target)
	if err != nil {
		return err
	}
	defer unlock()
	if m.used.refer(s.Target, 1) > 0 {
		return nil
	}
	undo, err := m.mount(ctx, s)
	if err == nil && s.Group != nil {
		if err = s.Group.apply(s.Target, slices.Contains(s.Options, "ro")); err != nil {
			err = errors.Join(fmt.Errorf("give it to the group %d: %w", s.Group.ID, err), undo())
		}
	}
	if err != nil {
		return fmt.Errorf("storage at %s: %w", s.Target, err)
	}
	m.used.add(s.Target, undo)
	return nil
}

// mount mounts a storage by its driver.
func (m *Machine) mount(ctx context.Context, s Storage) (undo func() error, err error) {
	find := disks{m.sysfs, m.dev, m.PlugTime}
	if len(s.Layers) > 0 {
		return mountLayers(ctx, find, s)
	}
	switch s.Driver {
	case driverBlock:
		return m.mountDisk(ctx, s, find.blockDisk)
	case driverMMIO, driverNVDIMM:
		return m.mountDisk(ctx, s, find.namedDisk)
	case driverSCSI:
		return m.mountDisk(ctx, s, find.scsiDisk)
	}
	if s.Driver == driverPull {
		return m.Puller.mount(ctx, s, pauseBundle)
	}
	if len(s.DriverOptions) > 0 {
		return nil, fmt.Errorf("driver option %q: not served: %w", s.DriverOptions[0], errdefs.ErrNotImplemented)
	}
	switch s.Driver {
	case driverEphemeral:
		if s.Type == hugePages {
			return m.pages.mount(m.sysfs, s)
		}
		return mountTmpfs(s)
	case driverLocal:
		return makeDir(s)
	case driverVirtioFS:
		return mountAs(s, "virtiofs")
	case driver9P:
		return mountAs(s, "9p")
	case driverOverlay:
		return mountAs(s, "overlay")
	case driverBind:
		return mountAs(s, "bind")
	case driverWatched:
		return m.copies.mount(ctx, s, m.watchTime, m.Logger)
	default:
		return nil, invalid.Errorf("there is no driver %q; there are %s", s.Driver, strings.Join(m.Drivers(), ", "))
	}
}

// Unmount gives a reference on a storage back; the last one unmounts it. It succeeds when
// there is none.
func (m *Machine) Unmount(ctx context.Context, s Storage) error {
	unlock, err := m.targets.Lock(ctx, s.Target)
	if err != nil {
		return err
	}
	defer unlock()
	undo := m.used.drop(s.Target)
	if undo == nil {
		return nil
	}
	return undo()
}

// Release unmounts all that is mounted, at the agent's end. Nothing may be mounted or
// unmounted meanwhile.
func (m *Machine) Release() error {
	var errs []error
	for _, undo := range m.used.dropAll() {
		errs = append(errs, undo())
	}
	return errors.Join(errs...)
}

// mountFlags are the options of mount(8) that are flags of mount(2).
var mountFlags = map[string]uintptr{ //nolint:gochecknoglobals // a table
	"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "sync": unix.MS_SYNCHRONOUS, "dirsync": unix.MS_DIRSYNC,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME,
	"bind": unix.MS_BIND, "rbind": unix.MS_BIND | unix.MS_REC, "rw": 0, "suid": 0, "dev": 0, "exec": 0, "async": 0, "defaults": 0,
}

// fsgid is the option that names the group of a directory.
const fsgid = "fsgid="

// tmpfsOptions reads the options of a tmpfs; gid is -1 when there is no fsgid.
func tmpfsOptions(options []string) (flags uintptr, data string, gid int, err error) {
	gid = -1
	var rest []string
	for _, o := range options {
		if id, ok := strings.CutPrefix(o, fsgid); ok {
			if gid, err = parseGID(id); err != nil {
				return 0, "", -1, err
			}
			continue
		}
		if flag, ok := mountFlags[o]; ok {
			flags |= flag
			continue
		}
		if key, _, _ := strings.Cut(o, "="); !slices.Contains([]string{"size", "mode", "nr_inodes", "nr_blocks", "huge", "uid", "gid", "mpol"}, key) {
			return 0, "", -1, invalid.Errorf("option %q: a tmpfs has none of that name", o)
		}
		rest = append(rest, o)
	}
	return flags, strings.Join(rest, ","), gid, nil
}

// mountTmpfs mounts a tmpfs with all of its options. An existing mount there, as the /dev/shm of a
// machine that is no guest, stays.
func mountTmpfs(s Storage) (undo func() error, err error) {
	flags, data, gid, err := tmpfsOptions(s.Options)
	if err != nil {
		return nil, err
	}
	if s.Type != "" && s.Type != "tmpfs" {
		return nil, invalid.Errorf("file system %q: an ephemeral storage is a tmpfs", s.Type)
	}
	on, err := makePlace(s.Target, 0o755)
	if err != nil {
		return nil, err
	}
	defer on.close()
	already, err := mountinfo.Mounted(s.Target)
	if err != nil {
		return nil, err
	}
	if already {
		return func() error { return nil }, nil
	}
	if undo, err = on.mount("tmpfs", "tmpfs", flags, data); err != nil {
		return nil, fmt.Errorf("mount tmpfs with %q: %w", strings.Join(s.Options, ","), err)
	}
	if err := setGroup(s.Target, gid); err != nil {
		return nil, errors.Join(err, undo())
	}
	return undo, nil
}

// mountAs mounts a file system of one type with its options. An existing mount of that type there
// stays.
func mountAs(s Storage, fstype string) (undo func() error, err error) {
	if s.Type != "" && s.Type != fstype {
		return nil, invalid.Errorf("file system %q: a storage of the driver %s has %s", s.Type, s.Driver, fstype)
	}
	if s.Source == "" {
		return nil, invalid.Errorf("no source")
	}
	var flags uintptr
	var data []string
	for _, o := range s.Options {
		if flag, ok := mountFlags[o]; ok {
			flags |= flag
		} else {
			data = append(data, o)
		}
	}
	if fstype == "bind" {
		flags |= unix.MS_BIND
	} else if flags&unix.MS_BIND != 0 {
		return nil, invalid.Errorf("option bind: a storage of the driver %s is no bind mount", s.Driver)
	}
	source := s.Source
	var on *place
	if flags&unix.MS_BIND != 0 {
		from, err := openPlace(s.Source, unix.O_PATH)
		if err != nil {
			return nil, err
		}
		defer func() { _ = from.Close() }()
		source = byNumber(from)
		st, err := from.Stat()
		if err != nil {
			return nil, err
		}
		if !st.IsDir() {
			if on, err = makeFile(s.Target); err != nil {
				return nil, err
			}
		}
	}
	if on == nil {
		if on, err = makePlace(s.Target, 0o755); err != nil {
			return nil, err
		}
	}
	defer on.close()
	already, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(s.Target))
	if err != nil {
		return nil, err
	}
	if len(already) > 0 && already[0].FSType == fstype {
		return func() error { return nil }, nil
	}
	kind := fstype
	if flags&unix.MS_BIND != 0 {
		kind = ""
	}
	if undo, err = on.mount(source, kind, flags, strings.Join(data, ",")); err != nil {
		return nil, fmt.Errorf("mount %s %s with %q: %w", fstype, s.Source, strings.Join(s.Options, ","), err)
	}
	// The kernel applies the other flags of a bind mount only at a remount.
	if rest := flags &^ (unix.MS_BIND | unix.MS_REC); kind == "" && rest != 0 {
		if err := remountPlace(s.Target, "", rest|unix.MS_BIND, ""); err != nil {
			return nil, errors.Join(fmt.Errorf("mount options %q: %w", strings.Join(s.Options, ","), err), undo())
		}
	}
	return undo, nil
}

// makeDir makes a directory, which stays when it is not empty at the end.
func makeDir(s Storage) (undo func() error, err error) {
	mode, gid := fs.FileMode(0o755), -1
	for _, o := range s.Options {
		if v, ok := strings.CutPrefix(o, "mode="); ok {
			n, err := strconv.ParseUint(v, 8, 12)
			if err != nil {
				return nil, invalid.Errorf("option %q: an octal mode is wanted", o)
			}
			mode = fs.FileMode(n) & fs.ModePerm
			continue
		}
		id, ok := strings.CutPrefix(o, fsgid)
		if !ok {
			return nil, invalid.Errorf("option %q: a local storage has mode= and fsgid=", o)
		}
		if gid, err = parseGID(id); err != nil {
			return nil, err
		}
	}
	dir, err := makePlace(s.Target, mode)
	if err != nil {
		return nil, err
	}
	defer dir.close()
	undo = func() error { return removeEmpty(s.Target) }
	if err := os.Chmod(byNumber(dir.on), mode); err != nil { // the umask may have taken bits away
		return nil, errors.Join(err, undo())
	}
	return undo, setGroup(s.Target, gid)
}

func parseGID(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, invalid.Errorf("fsgid %q: a group's number is wanted", s)
	}
	return int(n), nil
}
