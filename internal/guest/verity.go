package guest

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/invalid"
)

// verity says how the kernel verifies a disk's blocks when they are read: by a tree of hashes behind them; the
// host's request has its root.
type verity struct {
	root, salt, algorithm string
	version               uint64 // of the tree's format
	block, hashBlock      uint64 // sizes
	offset                uint64 // of the tree
	bare                  bool   // the tree has no superblock
}

// The options of verity. Without verityEnabled a layer must have none of them.
const (
	verityEnabled = verityOption + "-enabled=true"
	verityValue   = verityOption + "."
)

// readVerity reads the options of a layer; nil when it is not verified.
func readVerity(options []string) (*verity, error) {
	v := &verity{algorithm: "sha256", version: 1, block: 4096, hashBlock: 4096}
	enabled, some := false, false
	for _, o := range options {
		if o == verityEnabled {
			enabled = true
			continue
		}
		rest, ok := strings.CutPrefix(o, verityValue)
		if !ok {
			if strings.HasPrefix(o, verityOption) {
				return nil, invalid.Errorf("option %q: unknown", clip(o))
			}
			continue
		}
		some = true
		key, value, _ := strings.Cut(rest, "=")
		if err := v.set(key, value); err != nil {
			return nil, fmt.Errorf("option %q: %w", clip(o), err)
		}
	}
	switch {
	case !enabled && some:
		return nil, invalid.Errorf("options of dm-verity without %s", verityEnabled)
	case !enabled:
		return nil, nil //nolint:nilnil // there is none
	case v.root == "":
		return nil, invalid.Errorf("dm-verity: no root hash")
	case v.offset == 0 || v.offset%v.block != 0 || v.offset%v.hashBlock != 0:
		return nil, invalid.Errorf("dm-verity: the tree is at %d, which is no multiple of a block", v.offset)
	}
	return v, nil
}

// set sets one option of the table. Nothing that reaches the kernel's table has a space.
func (v *verity) set(key, value string) (err error) {
	size := func() (uint64, error) {
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n < 512 || n > 1<<16 || n&(n-1) != 0 {
			return 0, invalid.Errorf("a size of blocks is wanted")
		}
		return n, nil
	}
	switch key {
	case "roothash":
		v.root = value
		_, err = hex.DecodeString(value)
	case "salt":
		v.salt = value
		if value == "-" {
			v.salt = ""
		}
		_, err = hex.DecodeString(v.salt)
	case "hashoffset":
		v.offset, err = strconv.ParseUint(value, 10, 62)
	case "blocksize":
		v.block, err = size()
	case "hashsize":
		v.hashBlock, err = size()
	case "hashtype":
		v.version, err = strconv.ParseUint(value, 10, 1)
	case "no-superblock":
		v.bare, err = strconv.ParseBool(value)
	case "algorithm":
		v.algorithm = value
		if value == "" || strings.ContainsFunc(value, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }) {
			return invalid.Errorf("an algorithm's name is wanted")
		}
	default:
		return invalid.Errorf("unknown")
	}
	if err != nil && !errdefs.IsInvalidArgument(err) {
		err = invalid.Errorf("%v", err)
	}
	return err
}

// table returns the line for the kernel, in the format of its target "verity".
func (v *verity) table(disk string) (sectors uint64, line string) {
	first := v.offset / v.hashBlock
	if !v.bare {
		first += (512 + v.hashBlock - 1) / v.hashBlock
	}
	salt := v.salt
	if salt == "" {
		salt = "-"
	}
	blocks := v.offset / v.block
	return blocks * (v.block / 512), fmt.Sprintf("%d %s %s %d %d %d %d %s %s %s", v.version, disk, disk, v.block, v.hashBlock, blocks, first, v.algorithm, v.root, salt)
}

// The calls of the kernel's device mapper, and the flags of a request.
const (
	mapCreate  = 3
	mapRemove  = 4
	mapResume  = 6
	mapLoad    = 9
	mapHeader  = 312 // bytes
	mapTarget  = 40  // bytes before a target's line
	mapRead    = 1 << 0
	mapLater   = 1 << 17 // remove it when nobody uses it any more
	mapCommand = 0xc138fd00
)

// mapRequest encodes a request to the device mapper about a device, with a table of one target or none.
func mapRequest(name string, flags uint32, sectors uint64, line string) []byte {
	order := binary.NativeEndian
	b := make([]byte, mapHeader)
	order.PutUint32(b, 4) // the version of the protocol: 4.0.0
	order.PutUint32(b[16:], mapHeader)
	order.PutUint32(b[28:], flags)
	copy(b[48:48+127], name)
	if line != "" {
		order.PutUint32(b[20:], 1)
		t := make([]byte, mapTarget, mapTarget+len(line)+8)
		order.PutUint64(t[8:], sectors)
		copy(t[24:], "verity")
		t = append(append(t, line...), 0)
		for len(t)%8 != 0 {
			t = append(t, 0)
		}
		order.PutUint32(t[20:], uint32(len(t)))
		b = append(b, t...)
	}
	order.PutUint32(b[12:], uint32(len(b)))
	return b
}

// open has the kernel make a disk that reads another one and verifies it, and returns its device file. close removes
// it once it is not used any more.
func (v *verity) open(dev, disk, name string) (verified string, closed func() error, err error) {
	control, err := os.OpenFile(filepath.Join(dev, "mapper/control"), os.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, fmt.Errorf("dm-verity: this kernel has no device mapper: %w", errdefs.ErrNotImplemented)
	}
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = control.Close() }()
	made, err := mapCall(control, mapCreate, mapRequest(name, mapRead, 0, ""))
	if err != nil {
		return "", nil, fmt.Errorf("dm-verity: create: %w", err)
	}
	closed = func() error {
		control, err := os.OpenFile(filepath.Join(dev, "mapper/control"), os.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_, err = mapCall(control, mapRemove, mapRequest(name, mapLater, 0, ""))
		return errors.Join(err, control.Close())
	}
	sectors, line := v.table(disk)
	if _, err = mapCall(control, mapLoad, mapRequest(name, mapRead, sectors, line)); err == nil {
		_, err = mapCall(control, mapResume, mapRequest(name, 0, 0, ""))
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("dm-verity: the kernel refuses the table %q: %w", clip(line), err), closed())
	}
	return fmt.Sprintf("/dev/dm-%d", unix.Minor(binary.NativeEndian.Uint64(made[40:]))), closed, nil
}

// mapCall calls the device mapper, which writes its answer over the request.
func mapCall(control *os.File, call uintptr, b []byte) ([]byte, error) {
	if _, _, err := unix.Syscall(unix.SYS_IOCTL, control.Fd(), mapCommand|call, uintptr(unsafe.Pointer(&b[0]))); err != 0 {
		return nil, err
	}
	return b, nil
}
