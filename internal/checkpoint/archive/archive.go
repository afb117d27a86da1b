// Package archive writes and reads checkpoints as tars, in the form of Podman, CRI-O and checkpointctl. A tar comes from outside:
// Read accepts plain files of known names only. Start at Read.
package archive

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/decompress"
)

// The names of the files of a checkpoint.
const (
	Config  = "config.dump"    // the container, in the form of Podman and CRI-O
	Spec    = "spec.dump"      // its OCI spec
	Network = "network.status" // its addresses
	Stats   = "stats-dump"     // CRIU's times
	Log     = "dump.log"       // CRIU's messages
	Root    = "rootfs-diff.tar"
	Deleted = "deleted.files" // the files of the image that it has deleted, as JSON
	Images  = "checkpoint"    // the directory of CRIU's images
	Meta    = "longshore.json"
)

// names are the files that a checkpoint may have beside the images. Those of other programs are skipped.
var names = []string{Config, Spec, Network, Stats, Log, Root, Deleted, Meta} //nolint:gochecknoglobals // a list

// Limits are the bounds of Read.
type Limits struct {
	// Bytes bounds all files together, 0 does not. Room is called before each piece of a file, and fails when the disk is full.
	Bytes int64
	Room  func() error
}

// MaxFiles bounds the number of files in a checkpoint.
const MaxFiles = 1 << 16

// Read reads a tar, which may be compressed, into an empty directory. InvalidArgument for a tar that is no checkpoint.
func Read(r io.Reader, dir *os.Root, l Limits) error {
	plain, err := decompress.Reader(r)
	if err != nil {
		return fmt.Errorf("read the checkpoint: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	defer func() { _ = plain.Close() }()
	if err := read(tar.NewReader(plain), dir, l); err != nil {
		return fmt.Errorf("read the checkpoint: %w", err)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrInvalidArgument)
}

func read(tr *tar.Reader, dir *os.Root, l Limits) error {
	left := l.Bytes
	for files := 0; ; files++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return invalid("%v", err)
		}
		if files >= MaxFiles {
			return invalid("it has more than %d files", MaxFiles)
		}
		name, keep, err := place(h)
		if err != nil {
			return err
		}
		switch {
		case !keep:
			continue
		case h.Typeflag == tar.TypeDir:
			if err := dir.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			continue
		}
		if left -= h.Size; h.Size < 0 || l.Bytes > 0 && left < 0 {
			return fmt.Errorf("it has more than %d bytes: %w", l.Bytes, errdefs.ErrResourceExhausted)
		}
		if err := file(tr, dir, name, l.Room); err != nil {
			return err
		}
	}
}

// place returns the name of an entry in the directory, and whether it is kept.
func place(h *tar.Header) (name string, keep bool, err error) {
	name = path.Clean(strings.TrimPrefix(h.Name, "./"))
	if name == "." {
		return "", false, nil
	}
	if !fs.ValidPath(name) || strings.ContainsRune(name, 0) || len(name) > 255 {
		return "", false, invalid("the name %q", h.Name)
	}
	above, base := path.Split(name)
	image := above == Images+"/"
	switch h.Typeflag {
	case tar.TypeReg:
		if !image && !slices.Contains(names, name) {
			return "", false, nil
		}
		return name, !image || base != "", nil
	case tar.TypeDir:
		return name, name == Images, nil
	case tar.TypeXGlobalHeader:
		return "", false, nil
	}
	return "", false, invalid("%q is neither a file nor a directory", h.Name)
}

func file(r io.Reader, dir *os.Root, name string, room func() error) error {
	if above := path.Dir(name); above != "." {
		if err := dir.Mkdir(above, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	f, err := dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return invalid("it has two files %q", name)
	}
	if err != nil {
		return err
	}
	for err == nil {
		if room != nil {
			if err = room(); err != nil {
				break
			}
		}
		_, err = io.CopyN(f, r, 16<<20)
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = invalid("%q: %v", name, err)
	}
	return errors.Join(err, f.Close())
}

// Write writes the checkpoint of a directory.
func Write(w io.Writer, dir *os.Root) error {
	tw := tar.NewWriter(w)
	for _, name := range names {
		if err := add(tw, dir, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	images, err := dir.Open(Images)
	if err != nil {
		return err
	}
	list, err := images.ReadDir(-1)
	if err = errors.Join(err, images.Close()); err != nil {
		return err
	}
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: Images + "/", Mode: 0o700, ModTime: time.Now(), Format: tar.FormatPAX}); err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range list {
		if e.Type().IsRegular() {
			if err := add(tw, dir, Images+"/"+e.Name()); err != nil {
				return err
			}
		}
	}
	return tw.Close()
}

func add(tw *tar.Writer, dir *os.Root, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	err = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: st.Size(), ModTime: st.ModTime(), Format: tar.FormatPAX})
	if err != nil {
		return err
	}
	_, err = io.CopyN(tw, f, st.Size())
	return err
}

// marker begins the names of the marker files of an image's layer for deletions.
const marker = ".wh."

// WithoutMarkers copies the tar of an image's layer without its marker files: Deleted has the deletions.
func WithoutMarkers(r io.Reader, w io.Writer) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(path.Base(h.Name), marker) {
			continue
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.CopyN(tw, tr, h.Size); err != nil {
			return err
		}
	}
}
