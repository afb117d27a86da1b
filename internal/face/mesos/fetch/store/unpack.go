package store

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/ulikunitz/xz"
)

// unpacker writes to the sandbox.
type unpacker struct {
	*os.Root
	left    int64 // bytes that may still be written
	entries int   // of archives so far
}

// Modes of fetched files, as in Mesos: only the user may use them. Files of an archive
// have the modes of the archive.
const (
	plainMode   = 0o600
	programMode = 0o700
)

// store writes the file, unpacks it if requested, and returns how many bytes that took.
func (to *unpacker) store(ctx context.Context, from io.Reader, job Job) (written int64, err error) {
	limit := to.left
	if dir := path.Dir(job.Name); dir != "." {
		if err := to.MkdirAll(dir, 0o755); err != nil {
			return 0, err
		}
	}
	mode := fs.FileMode(plainMode)
	if job.Executable {
		mode = programMode
	}
	if err = to.writeFile(job.Name, &ctxReader{ctx, from}, mode); err == nil && job.Extract && !job.Executable {
		err = to.unpack(ctx, job.Name)
	}
	return limit - max(to.left, 0), err
}

// unpack unpacks the named file into the sandbox if its name is that of an archive. The
// archive itself remains.
func (to *unpacker) unpack(ctx context.Context, name string) error {
	f, err := to.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	has := func(suffixes ...string) bool {
		for _, s := range suffixes {
			if strings.HasSuffix(name, s) {
				return true
			}
		}
		return false
	}
	in := &ctxReader{ctx, f}
	switch {
	case has(".tar"):
		err = to.untar(in)
	case has(".tgz", ".tar.gz"):
		err = gunzip(in, func(r io.Reader) error { return to.untar(r) })
	case has(".tbz2", ".tar.bz2"):
		err = to.untar(bzip2.NewReader(in))
	case has(".txz", ".tar.xz"):
		err = unxz(in, func(r io.Reader) error { return to.untar(r) })
	case has(".zip"):
		err = to.unzip(ctx, f)
	case has(".gz"):
		// The unpacked file is at the top of the sandbox, wherever the packed one is.
		plain := path.Base(strings.TrimSuffix(name, ".gz"))
		err = gunzip(in, func(r io.Reader) error { return to.writeFile(plain, r, plainMode) })
	}
	if err != nil {
		return fmt.Errorf("Failed to extract archive '%s': %w", name, err) //nolint:staticcheck // Mesos' text
	}
	return nil
}

// ctxReader is a reader that fails when its context ends.
type ctxReader struct {
	ctx  context.Context //nolint:containedctx // for reading one archive
	from io.Reader
}

// Read implements io.Reader.
func (r *ctxReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.from.Read(p)
}

func gunzip(from io.Reader, then func(io.Reader) error) error {
	z, err := gzip.NewReader(from)
	if err != nil {
		return err
	}
	return errors.Join(then(z), z.Close())
}

func unxz(from io.Reader, then func(io.Reader) error) error {
	z, err := xz.NewReader(bufio.NewReader(from))
	if err != nil {
		return err
	}
	return then(z)
}

// cleanName is the path of an archive's entry in the sandbox; "" for the sandbox
// itself.
func cleanName(name string) (string, error) {
	name = path.Clean(strings.TrimLeft(name, "/"))
	if name == "." {
		return "", nil
	}
	if !filepath.IsLocal(name) || strings.ContainsAny(name, "\\\x00") {
		return "", fmt.Errorf("'%s' leads out of the sandbox", name)
	}
	return name, nil
}

func (to *unpacker) untar(from io.Reader) error {
	t := tar.NewReader(from)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return err
		}
		if err := to.countEntry(); err != nil {
			return err
		}
		if name == "" {
			continue
		}
		if err := to.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := to.tarEntry(name, h, t); err != nil {
			return err
		}
	}
}

func (to *unpacker) tarEntry(name string, h *tar.Header, from io.Reader) error {
	switch h.Typeflag {
	case tar.TypeDir:
		return to.MkdirAll(name, 0o755)
	case tar.TypeReg:
		return to.writeFile(name, from, fs.FileMode(h.Mode)&fs.ModePerm)
	case tar.TypeSymlink:
		return to.link(name, func() error { return to.Symlink(h.Linkname, name) })
	case tar.TypeLink:
		old, err := cleanName(h.Linkname)
		if err != nil {
			return err
		}
		return to.link(name, func() error { return to.Link(old, name) })
	case tar.TypeXGlobalHeader:
		return nil
	}
	return fmt.Errorf("'%s' is neither file, directory nor link", name)
}

// link creates a link, and replaces a file or another link.
func (to *unpacker) link(name string, do func() error) error {
	if err := to.makeRoom(name); err != nil {
		return err
	}
	return do()
}

func (to *unpacker) unzip(ctx context.Context, f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	z, err := zip.NewReader(f, st.Size())
	if err != nil {
		return err
	}
	for _, e := range z.File {
		name, err := cleanName(e.Name)
		if err == nil {
			err = to.countEntry()
		}
		if err == nil && name != "" {
			err = to.zipEntry(ctx, name, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (to *unpacker) zipEntry(ctx context.Context, name string, e *zip.File) error {
	if err := to.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := e.Mode()
	if mode.IsDir() {
		return to.MkdirAll(name, 0o755)
	}
	in, err := e.Open()
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	switch {
	case mode.IsRegular():
		if mode.Perm() == 0 { // packed on a system without file modes
			mode = 0o644
		}
		return to.writeFile(name, &ctxReader{ctx, in}, mode.Perm())
	case mode&fs.ModeSymlink != 0:
		where, err := io.ReadAll(io.LimitReader(in, maxLink))
		if err != nil {
			return err
		}
		return to.link(name, func() error { return to.Symlink(string(where), name) })
	}
	return fmt.Errorf("'%s' is neither file, directory nor link", name)
}

// maxLink is the kernel's limit of a link's target, in bytes.
const maxLink = 4096

// maxEntries limits the entries unpacked for one URI, because even an empty file uses
// disk space.
const maxEntries = 1 << 20

// countEntry counts an entry, and fails above the limit.
func (to *unpacker) countEntry() error {
	if to.entries++; to.entries > maxEntries {
		return fmt.Errorf("more than %d files and directories", maxEntries)
	}
	return nil
}

// makeRoom removes a file or link of this name. It fails for a directory, and for the
// container's output.
func (to *unpacker) makeRoom(name string) error {
	if name == "stdout" || name == "stderr" {
		return fmt.Errorf("'%s' of the sandbox is the container's output", name)
	}
	st, err := to.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.IsDir():
		return fmt.Errorf("'%s' is a directory", name)
	}
	return to.Remove(name)
}

// writeFile writes a file. An existing file or link is replaced; links are not
// followed.
func (to *unpacker) writeFile(name string, from io.Reader, mode fs.FileMode) error {
	if err := to.makeRoom(name); err != nil {
		return err
	}
	f, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.CopyN(f, from, to.left+1)
	to.left -= n
	if errors.Is(err, io.EOF) {
		err = nil
	} else if err == nil {
		err = errTooMuch
	}
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// errTooMuch is returned above the limit.
var errTooMuch = errors.New("more than face.mesos.max_fetch_bytes were fetched") //nolint:gochecknoglobals // an error value
