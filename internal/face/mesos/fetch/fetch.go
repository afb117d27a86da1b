// Package fetch downloads or copies the files of a command's URIs into the container's sandbox, as
// Mesos' fetcher does, and unpacks archives.
//
// The agent itself writes nothing to the sandbox: the confined process of package store
// does, as the container's user. Start reading at Fetcher.
package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/face/mesos/fetch/store"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

// stall is how long a server may send nothing, as in Mesos.
const stall = time.Minute

// Fetcher fetches URIs.
type Fetcher struct {
	// Limit bounds the files for one container, in bytes after unpacking.
	Limit int64
	// Cache is used for the URIs that ask for it.
	Cache *Cache
	// Dirs are the directories of the host with files that may be fetched.
	Dirs []string
	// Command is executed as the storing process; nil is this program.
	Command []string
	// Work is the directory above all sandboxes, which is trusted; "" trusts the
	// sandbox's own path.
	Work string
}

// open opens a sandbox. It follows no link, because containers own the directories of
// nested sandboxes.
func (f Fetcher) open(dir string) (*os.Root, error) {
	base, rel := dir, "."
	if f.Work != "" {
		var ok bool
		if rel, ok = beneath.Rel(f.Work, dir); !ok {
			return nil, fmt.Errorf("%s is not below %s", dir, f.Work)
		}
		base = f.Work
	}
	return beneath.Root(base, rel)
}

// User is the user of a container.
type User struct {
	UID, GID uint32
	Groups   []uint32
}

// Fetch fetches uris into the sandbox dir, one after the other. Files of the host are read as the
// user, and the result belongs to the user. It stops at the first error, which names the URI.
func (f Fetcher) Fetch(ctx context.Context, dir string, u User, uris []*mesosv1.CommandInfo_URI) error {
	root, err := f.open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	before, err := protectedFiles(root)
	if err != nil {
		return err
	}
	left := f.Limit
	for _, uri := range uris {
		n, err := f.fetchOne(ctx, root, u, uri, left)
		if err != nil {
			return fmt.Errorf("'%s': %w", uri.GetValue(), err)
		}
		left -= n
	}
	return checkProtected(root, before)
}

// protectedFiles are the entries of a sandbox that others open by path: the output
// files and the directory for nested sandboxes. The value is nil for one that does not
// exist.
func protectedFiles(root *os.Root) (map[string]fs.FileInfo, error) {
	found := map[string]fs.FileInfo{}
	for _, name := range []string{"stdout", "stderr", sandbox.Nested} {
		st, err := root.Lstat(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		found[name] = st // nil if it does not exist
	}
	return found, nil
}

// checkProtected checks that these are still the same files: a new one could be a link
// to anywhere.
func checkProtected(root *os.Root, before map[string]fs.FileInfo) error {
	now, err := protectedFiles(root)
	if err != nil {
		return err
	}
	for name, was := range before {
		is := now[name]
		if (was == nil) != (is == nil) || was != nil && (!os.SameFile(was, is) || was.Mode().Type() != is.Mode().Type()) {
			return fmt.Errorf("'%s' of the sandbox was replaced", name)
		}
	}
	return nil
}

// fetchOne fetches one URI, and returns how many bytes it wrote.
func (f Fetcher) fetchOne(ctx context.Context, root *os.Root, u User, uri *mesosv1.CommandInfo_URI, left int64) (int64, error) {
	// Mesos trims leading white space.
	value := strings.TrimLeft(uri.GetValue(), " \t\r\n")
	name, err := fileName(value, uri)
	if err != nil {
		return 0, err
	}
	job := store.Job{UID: u.UID, GID: u.GID, Groups: u.Groups, Name: name, Executable: uri.GetExecutable(), Extract: uri.GetExtract(), Limit: left}
	box, err := root.Open(".")
	if err != nil {
		return 0, err
	}
	defer func() { _ = box.Close() }()
	if file, ok := isLocal(value); ok {
		var dir *os.File
		if dir, job.File, err = f.openAllowed(file); err != nil {
			return 0, err
		}
		defer func() { _ = dir.Close() }()
		return f.runStore(ctx, job, dir, box)
	}
	cache := f.Cache
	if !uri.GetCache() {
		cache = nil
	}
	from, err := cache.open(ctx, value)
	if err != nil {
		return 0, err
	}
	defer func() { _ = from.Close() }()
	return f.pipe(ctx, job, from, box)
}

// isLocal returns the path of a URI that names a file of the host.
func isLocal(value string) (string, bool) {
	scheme, rest, ok := strings.Cut(value, "://")
	if !ok {
		return value, true
	}
	return strings.TrimPrefix(rest, "localhost"), scheme == "file"
}

// openAllowed opens the allowed directory that a file of the host is in, and returns
// the file's path relative to it.
func (f Fetcher) openAllowed(file string) (dir *os.File, rel string, err error) {
	if !path.IsAbs(file) {
		return nil, "", errors.New("A relative path was passed for the resource") //nolint:staticcheck // Mesos' text
	}
	for _, allowed := range f.Dirs {
		rel, err := filepath.Rel(allowed, path.Clean(file))
		if err != nil || !filepath.IsLocal(rel) || rel == "." {
			continue
		}
		fd, err := unix.Open(allowed, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, "", &os.PathError{Op: "open", Path: allowed, Err: err}
		}
		return os.NewFile(uintptr(fd), allowed), rel, nil
	}
	return nil, "", errors.New("no directory of face.mesos.fetch_dirs has this file")
}

// fileName is the path in the sandbox that a URI is stored at: its output_file, or the part after
// its last slash.
func fileName(value string, u *mesosv1.CommandInfo_URI) (string, error) {
	if strings.ContainsAny(value, "\\'\x00") {
		return "", errors.New("Illegal characters in URI") //nolint:staticcheck // Mesos' text
	}
	if u.OutputFile != nil {
		switch name := u.GetOutputFile(); {
		case name == "":
			return "", errors.New("URI output file path is empty")
		case !filepath.IsLocal(name) || strings.ContainsRune(name, 0) || path.Clean(name) == ".":
			return "", errors.New("URI output file must be within the sandbox directory")
		default:
			return path.Clean(name), nil
		}
	}
	rest := value
	if scheme, after, ok := strings.Cut(value, "://"); ok && scheme != "" {
		rest = after
	}
	name := rest[strings.LastIndexByte(rest, '/')+1:]
	if name == "" || name == "." || name == ".." || rest != value && !strings.Contains(rest, "/") {
		return "", errors.New("Malformed URI (missing path)") //nolint:staticcheck // Mesos' text
	}
	return name, nil
}

// open opens a URI of a server.
func open(ctx context.Context, value string) (io.ReadCloser, error) {
	scheme, _, _ := strings.Cut(value, "://")
	if scheme != "http" && scheme != "https" {
		return nil, fmt.Errorf("URIs of scheme %q are not supported", scheme)
	}
	return get(ctx, value)
}

// body is a server's response, which fails if nothing arrives for too long.
type body struct {
	io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
	ctx    context.Context //nolint:containedctx // for reading one response
}

// errStalled is returned if a server sends nothing for too long.
var errStalled = fmt.Errorf("nothing came for %s", stall) //nolint:gochecknoglobals // an error value

// get requests url and returns the body of a successful response.
func get(ctx context.Context, url string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	b := &body{ctx: ctx, cancel: cancel, timer: time.AfterFunc(stall, func() { cancel(errStalled) })}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		b.stop()
		return nil, err
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r) //nolint:bodyclose // body closes it
	if err != nil {
		defer b.stop()
		return nil, b.cause(err)
	}
	b.ReadCloser = resp.Body
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("Error downloading resource, received HTTP return code %d", resp.StatusCode), b.Close()) //nolint:staticcheck // Mesos' text
	}
	return b, nil
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.timer.Reset(stall)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.cause(err)
	}
	return n, err
}

// cause is why the response broke off.
func (b *body) cause(err error) error {
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	return err
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.stop()
	return b.ReadCloser.Close()
}

func (b *body) stop() {
	b.timer.Stop()
	b.cancel(nil)
}
