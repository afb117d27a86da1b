package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// PackOptions say how a container's layer becomes one of an image.
type PackOptions struct {
	// MaxBytes is how much the layer may have; 0 is no limit.
	MaxBytes int64
}

// The limits of memory for packing a layer.
const (
	maxLinked = 1 << 20 // files with several names
	maxXattrs = 1 << 20 // bytes of a file's extended attributes: the limit of tar readers
)

// Pack writes the layer as an uncompressed tar, with the marker files of an image's layer for
// deletions. Sockets are left out. InvalidArgument for files that a layer cannot have.
func (u Upper) Pack(ctx context.Context, w io.Writer, o PackOptions) error {
	p := &packer{u: u, ctx: ctx, tw: tar.NewWriter(w), o: o, linked: map[[2]uint64]string{}}
	if err := u.walk(ctx, p.add); err != nil {
		return fmt.Errorf("pack layer: %w", err)
	}
	return p.tw.Close()
}

type packer struct {
	u      Upper
	ctx    context.Context //nolint:containedctx // of the one call to Pack
	tw     *tar.Writer
	o      PackOptions
	linked map[[2]uint64]string // the first name of each file that has several, by device and inode
	bytes  int64
	hidden []string // opaque directories above the present entry: their deletions need no marker
}

func (p *packer) add(e *upperEntry) error {
	base := path.Base(e.rel)
	if strings.HasPrefix(base, whiteoutPrefix) {
		return fmt.Errorf("the file %q: its name would be read as a deletion: %w", e.rel, errdefs.ErrInvalidArgument)
	}
	for len(p.hidden) > 0 && !strings.HasPrefix(e.rel, p.hidden[len(p.hidden)-1]+"/") {
		p.hidden = p.hidden[:len(p.hidden)-1]
	}
	if e.deleted {
		if len(p.hidden) > 0 {
			return nil
		}
		return p.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(path.Dir(e.rel), whiteoutPrefix+base), Format: tar.FormatPAX})
	}
	h, err := p.header(e)
	if err != nil || h == nil {
		return err
	}
	if h.Typeflag == tar.TypeReg {
		return p.file(e, h)
	}
	if err := p.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", e.rel, err)
	}
	if e.opaque {
		p.hidden = append(p.hidden, e.rel)
		return p.tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: path.Join(e.rel, opaqueMarker), Format: tar.FormatPAX})
	}
	return nil
}

// header returns the header of a file, nil for a socket.
func (p *packer) header(e *upperEntry) (*tar.Header, error) {
	h := &tar.Header{
		Name: e.rel, Mode: int64(e.st.Mode & 0o7777), Uid: int(e.st.Uid), Gid: int(e.st.Gid), ModTime: time.Unix(e.st.Mtim.Sec, e.st.Mtim.Nsec), Format: tar.FormatPAX,
	}
	h.Uid, h.Gid = p.u.owner(&e.st)
	switch e.kind() {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, e.rel+"/"
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, e.st.Size
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(int(e.f.Fd()), "", buf)
		if err != nil {
			return nil, &os.PathError{Op: "readlink", Path: e.rel, Err: err}
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, string(buf[:n])
	case unix.S_IFCHR, unix.S_IFBLK:
		h.Typeflag, h.Devmajor, h.Devminor = tar.TypeChar, int64(unix.Major(e.st.Rdev)), int64(unix.Minor(e.st.Rdev))
		if e.kind() == unix.S_IFBLK {
			h.Typeflag = tar.TypeBlock
		}
	case unix.S_IFIFO:
		h.Typeflag = tar.TypeFifo
	default:
		return nil, nil //nolint:nilnil // a socket
	}
	if e.kind() != unix.S_IFDIR && e.st.Nlink > 1 {
		key := [2]uint64{e.st.Dev, e.st.Ino}
		if first, ok := p.linked[key]; ok {
			return &tar.Header{Typeflag: tar.TypeLink, Name: e.rel, Linkname: first, Format: tar.FormatPAX, ModTime: h.ModTime, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid}, nil
		}
		if len(p.linked) == maxLinked {
			return nil, fmt.Errorf("more than %d files have several names: %w", maxLinked, errdefs.ErrResourceExhausted)
		}
		p.linked[key] = e.rel
	}
	if h.Typeflag == tar.TypeSymlink {
		return h, nil
	}
	var err error
	h.PAXRecords, err = p.xattrs(e)
	return h, err
}

// file writes a regular file: one that grows meanwhile as long as it was, and one that shrinks is
// filled up with zeros.
func (p *packer) file(e *upperEntry, h *tar.Header) error {
	if p.bytes += h.Size; p.o.MaxBytes > 0 && (h.Size > p.o.MaxBytes || p.bytes > p.o.MaxBytes) {
		return fmt.Errorf("with %q more than %d bytes uncompressed: %w", e.rel, p.o.MaxBytes, errdefs.ErrResourceExhausted)
	}
	f, err := reopen(e, 0)
	if f == nil {
		delete(p.linked, [2]uint64{e.st.Dev, e.st.Ino})
		return err
	}
	defer func() { _ = f.Close() }()
	if err := p.tw.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", e.rel, err)
	}
	n, err := io.Copy(p.tw, io.LimitReader(reads{p.ctx, f}, h.Size))
	if err != nil {
		return fmt.Errorf("%q: %w", e.rel, err)
	}
	_, err = io.CopyN(p.tw, nothing{}, h.Size-n)
	return err
}

// reads ends with its context: a sparse file may have any size.
type reads struct {
	ctx context.Context //nolint:containedctx // a reader has no other way
	r   io.Reader
}

func (r reads) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(b)
}

type nothing struct{}

func (nothing) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// xattrs returns the extended attributes of a file that mean something on another machine: its
// users', access control lists, and the capabilities of a program.
func (p *packer) xattrs(e *upperEntry) (map[string]string, error) {
	list := make([]byte, 64<<10)
	n, err := unix.Listxattr(fdPath(e.f), list)
	if errors.Is(err, unix.ENOTSUP) || n == 0 && err == nil {
		return nil, nil //nolint:nilnil // it has none
	}
	if err != nil {
		return nil, &os.PathError{Op: "listxattr", Path: e.rel, Err: err}
	}
	records, total := map[string]string{}, 0
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(string(list[:n]), "\x00") {
		acl := strings.HasPrefix(name, "system.posix_acl_")
		if !strings.HasPrefix(name, "user.") && name != capsXattr && (!acl || p.u.Inside != nil) {
			continue
		}
		if strings.Contains(name, "=") {
			return nil, fmt.Errorf("the attribute %q of %q cannot be in a tar: %w", name, e.rel, errdefs.ErrInvalidArgument)
		}
		size, err := unix.Getxattr(fdPath(e.f), name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, &os.PathError{Op: "getxattr", Path: e.rel, Err: err}
		}
		v := value[:size]
		if name == capsXattr {
			v = p.caps(v)
		}
		if total += len(name) + len(v) + len(xattrRecord); total > maxXattrs {
			return nil, fmt.Errorf("%q has more than %d bytes of extended attributes: %w", e.rel, maxXattrs, errdefs.ErrResourceExhausted)
		}
		records[xattrRecord+name] = string(v)
	}
	return records, nil
}

const (
	capsXattr   = "security.capability"
	xattrRecord = "SCHILY.xattr."

	capsRevision  = 0xff000000
	capsRevision2 = 0x02000000
	capsRevision3 = 0x03000000
	capsLength3   = 24 // with the user id of the namespace's root at the end
)

// caps returns the capabilities of a program without the id of the user namespace's root: in the
// image they are for the root of any namespace.
func (p *packer) caps(v []byte) []byte {
	if len(v) != capsLength3 {
		return v
	}
	magic := binary.LittleEndian.Uint32(v)
	if magic&capsRevision != capsRevision3 || p.u.Inside == nil {
		return v
	}
	out := bytes.Clone(v[:capsLength3-4])
	binary.LittleEndian.PutUint32(out, magic&^uint32(capsRevision)|capsRevision2)
	return out
}
