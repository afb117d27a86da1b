// Package fetch brings what a command's URIs name into its sandbox, as Mesos'
// fetcher does: files of the host and what is had by HTTP, unpacked when it is an
// archive.
//
// Nothing is written outside the sandbox, whatever an archive says. Start at Fetcher.
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
)

// nested is the directory of a sandbox that has those of nested containers.
const nested = "containers"

// stall is how long a server may send nothing, as with Mesos.
const stall = time.Minute

// sandbox is the directory that things are fetched into.
type sandbox struct {
	*os.Root
	left  int64 // bytes that it may still take
	cache *Cache
}

// Fetcher fetches.
type Fetcher struct {
	// Limit bounds what is fetched for one container, in bytes as it is unpacked.
	Limit int64
	// Cache is for the URIs that ask for it.
	Cache *Cache
}

// All fetches uris into the sandbox dir, one after the other. What was fetched is
// root's. The error of the first that cannot be fetched says which it is.
func (f Fetcher) All(ctx context.Context, dir string, uris []*mesosv1.CommandInfo_URI) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	to := &sandbox{root, f.Limit, f.Cache}
	for _, u := range uris {
		if err := to.fetch(ctx, u); err != nil {
			return fmt.Errorf("'%s': %w", u.GetValue(), err)
		}
	}
	return unharmed(root)
}

// unharmed makes sure that what others open by its path, the files of the output
// and the directory for nested sandboxes, has not become a link: it could lead
// anywhere.
func unharmed(root *os.Root) error {
	for name, kind := range map[string]fs.FileMode{"stdout": 0, "stderr": 0, nested: fs.ModeDir} {
		st, err := root.Lstat(name)
		if err == nil && st.Mode().Type() != kind {
			err = fmt.Errorf("'%s' of the sandbox was replaced", name)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (to *sandbox) fetch(ctx context.Context, u *mesosv1.CommandInfo_URI) error {
	value := strings.TrimLeft(u.GetValue(), " \t\r\n")
	name, err := target(value, u)
	if err != nil {
		return err
	}
	cache := to.cache
	if !u.GetCache() {
		cache = nil
	}
	from, err := cache.open(ctx, value)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	if dir := path.Dir(name); dir != "." {
		if err := to.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	mode := fs.FileMode(0o644)
	if u.GetExecutable() {
		mode = 0o755
	}
	if err := to.put(name, from, mode); err != nil || u.GetExecutable() || !u.GetExtract() {
		return err
	}
	return to.unpack(ctx, name)
}

// target is the file in the sandbox that a URI becomes: what stands after its last
// slash, or what it says itself.
func target(value string, u *mesosv1.CommandInfo_URI) (string, error) {
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

// open opens what a URI names: a file of the host, or what a server has.
func open(ctx context.Context, value string) (io.ReadCloser, error) {
	scheme, rest, ok := strings.Cut(value, "://")
	switch {
	case !ok:
		return local(value)
	case scheme == "file":
		return local(strings.TrimPrefix(rest, "localhost"))
	case scheme == "http" || scheme == "https":
		return get(ctx, value)
	}
	return nil, fmt.Errorf("nothing is fetched by %s", scheme)
}

func local(name string) (io.ReadCloser, error) {
	if !path.IsAbs(name) {
		return nil, errors.New("A relative path was passed for the resource") //nolint:staticcheck // Mesos' text
	}
	// Not to wait for the other end of a FIFO.
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, errors.Join(err, f.Close(), fmt.Errorf("%s is no plain file", name))
	}
	return f, nil
}

// body is a server's answer, which is given up when nothing comes any more.
type body struct {
	io.ReadCloser
	watch  *time.Timer
	cancel context.CancelCauseFunc
	ctx    context.Context //nolint:containedctx // of this one answer
}

// errStalled is what a server ends with that sends nothing.
var errStalled = fmt.Errorf("nothing came for %s", stall) //nolint:gochecknoglobals // an error value

func get(ctx context.Context, url string) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	b := &body{ctx: ctx, cancel: cancel, watch: time.AfterFunc(stall, func() { cancel(errStalled) })}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		b.end()
		return nil, err
	}
	r.Close = true
	resp, err := http.DefaultClient.Do(r) //nolint:bodyclose // body closes it
	if err != nil {
		defer b.end()
		return nil, b.reason(err)
	}
	b.ReadCloser = resp.Body
	if resp.StatusCode != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("Error downloading resource, received HTTP return code %d", resp.StatusCode), b.Close()) //nolint:staticcheck // Mesos' text
	}
	return b, nil
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.watch.Reset(stall)
	n, err := b.ReadCloser.Read(p)
	b.watch.Stop()
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.reason(err)
	}
	return n, err
}

// reason is why the answer broke off.
func (b *body) reason(err error) error {
	if cause := context.Cause(b.ctx); cause != nil {
		return cause
	}
	return err
}

// Close implements io.Closer.
func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

func (b *body) end() {
	b.watch.Stop()
	b.cancel(nil)
}

// room makes room for a file or a link: one that is there goes, a directory stays.
func (to *sandbox) room(name string) error {
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

// put writes a file. One that is there is replaced, and so is a link: it is not
// followed.
func (to *sandbox) put(name string, from io.Reader, mode fs.FileMode) error {
	if err := to.room(name); err != nil {
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

// errTooMuch is what ends a fetch above its limit.
var errTooMuch = errors.New("more than face.mesos.max_fetch_bytes were fetched") //nolint:gochecknoglobals // an error value
