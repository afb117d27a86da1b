// Package layer unpacks one layer of an image, a compressed tar, into a directory that overlayfs
// can stack: whiteouts become character devices 0:0, opaque directories get
// trusted.overlay.opaque.
//
// It knows no registries, no names and no layers but those below the one at hand. It handles
// bytes from outside and runs in the confined worker; its checks that no entry leaves the
// directory do not rely on the confinement. Start reading at Apply.
package layer

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	opaqueXattr    = "trusted.overlay.opaque"
	blockSize      = 4096
)

// Options are the limits of a layer.
type Options struct {
	// MaxBytes is how much the layer may have uncompressed; 0 is no limit.
	MaxBytes int64
	// MinFree is how many bytes of the filesystem stay free; 0 is none.
	MinFree int64
	// MaxEntries is how many entries the layer may have, including directories that it only
	// implies; 0 is no limit. Budget limits it together with other layers; nil does not.
	MaxEntries int64
	Budget     *Budget
	// MinFreeInodes is how many inodes of the filesystem stay free; 0 is none.
	MinFreeInodes int64
	// Lower waits for the layers below and returns their directories, nearest first. It is called
	// at most once, when an entry links to a file of a layer below or needs the attributes of one
	// of its directories. With nil there are none.
	Lower func(ctx context.Context) ([]string, error)
}

// Result describes an unpacked layer.
type Result struct {
	DiffID digest.Digest // of the uncompressed tar
	Bytes  int64         // on disk, in whole blocks
	Inodes int64
	// Opaque says that the layer hides all layers below.
	Opaque bool
}

// Apply unpacks the layer that r reads, compressed or not, into dir, which must exist and be
// empty. After an error the content of dir is undefined.
func Apply(ctx context.Context, dir string, r io.Reader, opts Options) (Result, error) {
	plain, err := decompress(r)
	if err != nil {
		return Result{}, classify(err)
	}
	defer plain.Close()
	a := &applier{ctx: ctx, dir: filepath.Clean(dir), opts: opts, seen: map[string]byte{}, shadow: map[string]bool{}, unnamed: map[string]bool{}}
	digester := digest.Canonical.Digester()
	limited := &limitedReader{r: plain, left: opts.MaxBytes, limit: opts.MaxBytes, dir: a.dir, minFree: opts.MinFree}
	tee := io.TeeReader(limited, digester.Hash())
	_, err = archive.Apply(ctx, a.dir, tee, archive.WithFilter(a.filter), archive.WithConvertWhiteout(a.whiteout))
	if err == nil {
		// The diff ID also covers the bytes behind the archive's end.
		_, err = io.Copy(io.Discard, tee)
	}
	if err == nil {
		err = a.finish()
	}
	if err != nil {
		return Result{}, classify(err)
	}
	return Result{DiffID: digester.Digest(), Bytes: a.bytes, Inodes: a.inodes, Opaque: a.opaque}, nil
}

// classify gives an error its class; a malformed archive is InvalidArgument.
func classify(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errdefs.IsResourceExhausted(err),
		errdefs.IsUnavailable(err), errdefs.IsDataLoss(err), errdefs.IsInvalidArgument(err):
		return fmt.Errorf("unpack layer: %w", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("unpack layer: %w: %w", errdefs.ErrResourceExhausted, err)
	}
	return fmt.Errorf("unpack layer: %w: %w", errdefs.ErrInvalidArgument, err)
}

// applier is the state of Apply between entries.
type applier struct {
	ctx    context.Context //nolint:containedctx // of the one call to Apply
	dir    string
	opts   Options
	lower  []string
	asked  bool
	seen   map[string]byte // every path the tar named, with its type
	shadow map[string]bool // paths below which a whiteout of this layer hides everything
	root   *tar.Header
	bytes  int64
	inodes int64
	opaque bool
	count  int64 // of entries, and of directories that they imply

	unnamed   map[string]bool // directories that no entry has named so far
	unchecked int64           // bytes until the free space is checked again
}

// clean returns the path of an entry relative to the root: "." for the root itself.
func clean(name string) string {
	return strings.TrimPrefix(path.Clean("/"+name), "/")
}

// filter checks each entry before it is unpacked.
func (a *applier) filter(hdr *tar.Header) (bool, error) {
	if err := a.more(hdr); err != nil {
		return false, err
	}
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return false, nil
	}
	if slashed := filepath.ToSlash(hdr.Name); slashed == ".." || strings.HasPrefix(slashed, "../") {
		return false, fmt.Errorf("entry %q leads out of the root: %w", hdr.Name, errdefs.ErrInvalidArgument)
	}
	name := clean(hdr.Name)
	if name == "" {
		if hdr.Typeflag != tar.TypeDir {
			return false, fmt.Errorf("the root is not a directory: %w", errdefs.ErrInvalidArgument)
		}
		a.root = hdr
		return false, nil
	}
	if strings.HasPrefix(path.Base(name), whiteoutPrefix) {
		// Some tools replace a directory by a file and then still delete the directory's files.
		return !a.belowFile(name), nil
	}
	if err := a.uncover(name); err != nil {
		return false, err
	}
	switch hdr.Typeflag {
	case tar.TypeLink:
		if err := a.linkTarget(hdr); err != nil {
			return false, err
		}
	case tar.TypeReg:
		if err := a.room(hdr); err != nil {
			return false, err
		}
		a.bytes += (hdr.Size + blockSize - 1) / blockSize * blockSize
		a.inodes++
	default:
		if hdr.Typeflag == tar.TypeDir {
			a.bytes += blockSize
		}
		a.inodes++
	}
	a.seen[name] = hdr.Typeflag
	return true, nil
}

// room checks a file's size against the limits before it is written: a sparse file of a few bytes
// in the tar can have any size.
func (a *applier) room(hdr *tar.Header) error {
	if hdr.Size < 0 {
		return fmt.Errorf("entry %q has %d bytes: %w", hdr.Name, hdr.Size, errdefs.ErrInvalidArgument)
	}
	if a.opts.MaxBytes > 0 && hdr.Size > a.opts.MaxBytes-a.bytes {
		return fmt.Errorf("with %q more than %d bytes uncompressed: %w", hdr.Name, a.opts.MaxBytes, errdefs.ErrResourceExhausted)
	}
	if a.unchecked -= hdr.Size; a.opts.MinFree > 0 && a.unchecked < 0 {
		a.unchecked = statEvery
		if hdr.Size > statEvery {
			a.unchecked = 0
		}
		return CheckFree(a.dir, a.opts.MinFree+hdr.Size)
	}
	return nil
}

// belowFile reports whether this layer has something other than a directory above name.
func (a *applier) belowFile(name string) bool {
	for p := path.Dir(name); p != "."; p = path.Dir(p) {
		if typ, ok := a.seen[p]; ok && typ != tar.TypeDir && typ != tar.TypeSymlink {
			return true
		}
	}
	return false
}

// uncover prepares for an entry below a path that this layer has deleted earlier without
// describing the new directory; finish makes that directory opaque.
func (a *applier) uncover(name string) error {
	if len(a.shadow) == 0 {
		return nil
	}
	for p := path.Dir(name); p != "."; p = path.Dir(p) {
		full := filepath.Join(a.dir, p)
		if !a.shadow[full] {
			continue
		}
		if fi, err := os.Lstat(full); err == nil && isWhiteout(fi) {
			a.inodes--
			return os.Remove(full)
		}
	}
	return nil
}

// linkTarget ensures that the target of a hard link is in this layer: one that only a layer below
// has is copied up.
func (a *applier) linkTarget(hdr *tar.Header) error {
	target := clean(hdr.Linkname)
	if strings.HasPrefix(path.Clean(hdr.Linkname), "../") {
		return fmt.Errorf("hard link %q to %q leads out of the root: %w", hdr.Name, hdr.Linkname, errdefs.ErrInvalidArgument)
	}
	own, err := fs.RootPath(a.dir, target)
	if err != nil {
		return err
	}
	if _, err := os.Lstat(own); err == nil || !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if _, ok := a.seen[target]; ok {
		return nil // for example a symlink: RootPath has followed it; link(2) will not
	}
	dirs, err := a.below()
	if err != nil {
		return err
	}
	from, fi, err := find(dirs, target)
	if err != nil {
		return err
	}
	if fi == nil || fi.IsDir() {
		return fmt.Errorf("hard link %q: there is no file %q: %w", hdr.Name, hdr.Linkname, errdefs.ErrInvalidArgument)
	}
	if err := a.parents(path.Dir(target)); err != nil {
		return err
	}
	a.seen[target] = tar.TypeReg
	a.inodes++
	a.bytes += (fi.Size() + blockSize - 1) / blockSize * blockSize
	return copyUp(filepath.Join(a.dir, target), from, fi)
}

// parents makes the missing directories of rel; finish gives them their attributes.
func (a *applier) parents(rel string) error {
	if rel == "." || rel == "" {
		return nil
	}
	full, err := fs.RootPath(a.dir, rel)
	if err != nil {
		return err
	}
	return os.MkdirAll(full, 0o755)
}

func (a *applier) below() ([]string, error) {
	if a.asked || a.opts.Lower == nil {
		return a.lower, nil
	}
	var err error
	a.lower, err = a.opts.Lower(a.ctx)
	a.asked = err == nil
	return a.lower, err
}

// whiteout converts the marker files of a layer to overlayfs' form.
func (a *applier) whiteout(hdr *tar.Header, full string) (bool, error) {
	base, parent := filepath.Base(full), filepath.Dir(full)
	if base == opaqueMarker {
		if parent == a.dir {
			a.opaque = true
			return false, nil
		}
		return false, unix.Setxattr(parent, opaqueXattr, []byte{'y'}, 0)
	}
	hidden, ok := strings.CutPrefix(base, whiteoutPrefix)
	if !ok {
		return true, nil
	}
	if strings.HasPrefix(hidden, whiteoutPrefix) {
		return false, nil // internal files of aufs
	}
	target := filepath.Join(parent, hidden)
	a.shadow[target] = true
	if _, err := os.Lstat(target); err == nil {
		return false, nil // this layer's own entry already hides the lower one
	}
	a.inodes++
	if err := unix.Mknod(target, unix.S_IFCHR, 0); err != nil {
		return false, fmt.Errorf("hide %q: %w", hdr.Name, err)
	}
	return false, os.Lchown(target, hdr.Uid, hdr.Gid)
}

// finish gives directories that the tar only implied their attributes of a lower layer, makes
// directories that replaced deleted ones opaque, and sets the root's own attributes.
func (a *applier) finish() error {
	for full := range a.shadow {
		if fi, err := os.Lstat(full); err == nil && fi.IsDir() {
			if err := unix.Setxattr(full, opaqueXattr, []byte{'y'}, 0); err != nil {
				return fmt.Errorf("hide the lower layers below %s: %w", full, err)
			}
		}
	}
	for _, rel := range a.implied() {
		if err := a.inherit(rel); err != nil {
			return err
		}
	}
	return a.setRoot()
}

// implied returns the directories on disk that no entry of the tar described.
func (a *applier) implied() []string {
	missing := map[string]bool{}
	for name := range a.seen {
		a.missingParents(missing, name)
	}
	for full := range a.shadow {
		if rel, err := filepath.Rel(a.dir, full); err == nil {
			a.missingParents(missing, rel)
		}
	}
	dirs := make([]string, 0, len(missing))
	for d := range missing {
		dirs = append(dirs, d)
	}
	return dirs
}

func (a *applier) missingParents(missing map[string]bool, name string) {
	for p := path.Dir(name); p != "." && p != "/"; p = path.Dir(p) {
		if _, ok := a.seen[p]; ok || missing[p] {
			return
		}
		missing[p] = true
	}
}

// inherit copies the attributes of the directory rel from the nearest layer below that has it.
func (a *applier) inherit(rel string) error {
	dirs, err := a.below()
	if err != nil {
		return err
	}
	from, fi, err := find(dirs, rel)
	if err != nil || fi == nil || !fi.IsDir() {
		return err
	}
	own := filepath.Join(a.dir, rel)
	if cur, err := os.Lstat(own); err != nil || !cur.IsDir() {
		return nil //nolint:nilerr // reached through a symlink: its own entry had attributes
	}
	return copyAttributes(own, from, fi)
}

// setRoot sets the attributes that the tar gives to the root directory; without an entry the root
// stays as the layer below has it.
func (a *applier) setRoot() error {
	if hdr := a.root; hdr != nil {
		if err := os.Lchown(a.dir, hdr.Uid, hdr.Gid); err != nil {
			return err
		}
		for key, value := range hdr.PAXRecords {
			if key, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && !strings.HasPrefix(key, "trusted.") {
				if err := unix.Lsetxattr(a.dir, key, []byte(value), 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
					return err
				}
			}
		}
		if err := os.Chmod(a.dir, hdr.FileInfo().Mode()); err != nil {
			return err
		}
		return os.Chtimes(a.dir, hdr.ModTime, hdr.ModTime)
	}
	dirs, err := a.below()
	if err != nil || len(dirs) == 0 {
		return err
	}
	fi, err := os.Lstat(dirs[0])
	if err != nil {
		return err
	}
	return copyAttributes(a.dir, dirs[0], fi)
}
