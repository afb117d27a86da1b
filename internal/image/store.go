// Package image stores images, the content once for all owners, the names and pinned marks per
// owner, and gives containers their root filesystems. It implements core.Images and core.ImageTransfers.
//
// It knows neither engine nor faces, nor the meaning of owners. Bytes from outside are not parsed
// here but in internal/image/worker, a confined process. Start reading at Store and at records.go,
// which describes the files; then pull.go, checkout.go and gc.go.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/flight"
	"github.com/longshore/longshore/internal/image/quota"
	"github.com/longshore/longshore/internal/image/trust"
	"github.com/longshore/longshore/internal/image/worker"
)

var (
	_ core.Images         = (*Store)(nil)
	_ core.ImageTransfers = (*Store)(nil)
)

const (
	checkoutDir = "checkouts"
	trashDir    = "trash"
)

// Options are the parameters of New. All but Root may be zero.
type Options struct {
	// Root is the image directory, for example /var/lib/longshore/image. Its filesystem must be
	// able to hold overlayfs' upper directories.
	Root   string
	Config Config // the zero value is Default()
	Logger *slog.Logger
	// Worker is the command that runs WorkerMain; nil executes this program with WorkerArg as its
	// only argument.
	Worker []string
	// UserAgent identifies this program to registries.
	UserAgent string
	// Verify returns the path of longshore-verify, which verifies signatures; with nil only
	// Config.Policy.SignatureProgram is used.
	Verify func() (string, error)
	// Pulled is called with the number of bytes that each pull has fetched, from any
	// goroutine; may be nil.
	Pulled func(bytes int64)
	// Modules keeps compiled WebAssembly modules; may be nil.
	Modules Modules
	// InProcess does the worker's work in this process, unconfined, for tests and for tools that
	// cannot execute themselves again.
	InProcess bool
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Full is called when the file system of Root is full, and reports whether it has freed space;
	// the write is then tried once more. May be nil.
	Full func() bool
	// Binfmt is where binfmt_misc is mounted; "" is the usual place.
	Binfmt string
}

// Store implements core.Images.
type Store struct {
	root    string
	cfg     Config
	log     *slog.Logger
	now     func() time.Time
	binfmt  string
	db      *dbfile.DB
	content blobs
	runner  runner
	gate    *trust.Gate
	pulled  func(bytes int64)
	modules *modules
	pulls   flight.Group[string, *pulling]
	trash   *trash
	sizing  *sizing
	quotas  *quota.Tree   // nil if the file system has no project quotas
	device  func() string // the device that root's filesystem is mounted from; "" when unknown

	// write serializes changes of records. Lock order: write, then mu.
	write sync.Mutex

	mu        sync.RWMutex // guards leases, places, checkouts, imports; and the content of rec
	rec       *records
	leases    map[*lease]bool
	places    map[digest.Digest]string // directories assigned to layers that are not unpacked yet
	checkouts map[core.ID]*checkout
	imports   int // archives being read
}

// runner runs the worker's jobs.
type runner interface {
	Pull(ctx context.Context, agent worker.Agent, job worker.PullJob) (worker.Image, error)
	Import(ctx context.Context, agent worker.Agent, archive io.Reader) ([]worker.Image, error)
	Push(ctx context.Context, agent worker.Agent, job worker.PushJob) error
	Confinement() string
	Close() error
}

// New opens the store in opts.Root and deletes what a crash left incomplete.
func New(opts Options) (*Store, error) {
	if opts.Config.DefaultRegistry == "" {
		opts.Config = Default()
	}
	if err := opts.Config.Validate(); err != nil {
		return nil, err
	}
	root, err := filepath.Abs(opts.Root)
	if err != nil || opts.Root == "" || strings.ContainsAny(root, ":,\\") {
		return nil, fmt.Errorf("open image store in %q: the path must be set, and must not contain a colon, comma or backslash: %w", opts.Root, errdefs.ErrInvalidArgument)
	}
	for _, dir := range []string{"", worker.LayerDir, worker.SumsDir, checkoutDir, trashDir, worker.ContentDir + "/blobs/sha256", worker.ContentDir + "/ingest"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			return nil, fmt.Errorf("open image store: %w", err)
		}
	}
	s := &Store{
		root: root, cfg: opts.Config, log: opts.Logger, now: opts.Now, pulled: opts.Pulled, binfmt: cmp.Or(opts.Binfmt, binfmtDir),
		leases: map[*lease]bool{}, places: map[digest.Digest]string{}, checkouts: map[core.ID]*checkout{},
	}
	s.pulls.Retire = (*pulling).retire
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.modules = newModules(opts.Modules, s.log)
	if s.now == nil {
		s.now = time.Now
	}
	s.gate = trust.New(s.cfg.Policy, opts.Verify, s.log)
	s.trash = newTrash(filepath.Join(root, trashDir), s.log)
	s.sizing = newSizing(s.log)
	s.device = sync.OnceValue(func() string { return deviceOf(root, "/proc/self/mountinfo") })
	s.content = blobs{filepath.Join(root, worker.ContentDir, "blobs")}
	if s.quotas, err = quota.Open(root); err != nil {
		s.log.Debug("disk limits of containers are measured", "reason", err)
	}
	if s.db, err = openDB(root, s.log, opts.Full); err != nil {
		return nil, errors.Join(err, s.quotas.Close())
	}
	if err := s.open(opts); err != nil {
		return nil, errors.Join(err, s.db.Close(), s.quotas.Close())
	}
	return s, nil
}

func (s *Store) open(opts Options) (err error) {
	if s.rec, err = load(s.db, s.root, s.cfg.DefaultRegistry); err != nil {
		return err
	}
	if err := loadCheckouts(s); err != nil {
		return err
	}
	settings := s.cfg.settings(opts.UserAgent)
	if opts.InProcess {
		s.runner, err = newInProcess(s.root, settings)
	} else {
		command := opts.Worker
		if len(command) == 0 {
			command = []string{"/proc/self/exe", WorkerArg} // this very file, also after an upgrade has replaced it
		}
		s.runner = &child{command: command, root: s.root, settings: settings, idle: time.Duration(s.cfg.WorkerIdle), log: s.log}
	}
	if err != nil {
		return err
	}
	if err := waitForWorker(s.root); err != nil {
		return err
	}
	if err := dropIncomplete(s); err != nil {
		return err
	}
	s.trash.empty()
	return nil
}

// Close stops the worker and closes the store.
func (s *Store) Close() error {
	err := s.runner.Close() // without a worker, unfinished pulls fail
	s.pulls.Stop()
	s.modules.close()
	s.sizing.close()
	s.trash.wait()
	return errors.Join(err, s.db.Close(), s.quotas.Close())
}

// Confinement describes how the worker process is confined.
func (s *Store) Confinement() string { return s.runner.Confinement() }

// waitForWorker waits until the worker of an agent that was killed has ended. Until it notices
// that its agent is gone it may still write.
func waitForWorker(root string) error {
	f, err := os.OpenFile(filepath.Join(root, worker.LockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	locked := make(chan error, 1)
	go func() {
		locked <- unix.Flock(int(f.Fd()), unix.LOCK_EX)
		_ = f.Close()
	}()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	select {
	case err := <-locked:
		return err
	case <-timeout.C:
		return fmt.Errorf("the image worker of an earlier agent still runs: %w", errdefs.ErrFailedPrecondition)
	}
}

// inProcess runs jobs in this process.
type inProcess struct{ *worker.Worker }

func newInProcess(root string, settings worker.Settings) (runner, error) {
	w, err := worker.New(root, settings)
	return inProcess{w}, err
}

func (inProcess) Confinement() string { return "none: fetching and unpacking run in the agent" }

// Close ends the downloads that still run after a pull has failed, as the end of a worker process does.
func (p inProcess) Close() error {
	p.Stop()
	return nil
}
