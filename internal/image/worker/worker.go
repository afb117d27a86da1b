// Package worker fetches, decompresses and unpacks images, and so handles all bytes that come
// from outside. It runs in a child process of the agent that can reach little more than the image
// directory and the network (see Main and confine.go).
//
// It knows neither owners nor names nor garbage: the agent names the directories for unpacking, and
// protects the content in use from collection (see Agent). Start reading at Worker.Pull.
package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/flight"
	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/trust"
	"github.com/longshore/longshore/internal/weaken"
)

// Paths below the image directory, known to agent and worker.
const (
	ContentDir = "content"
	SumsDir    = "sums"
	LayerDir   = "l" // short, because overlayfs' mount options have one page for all layers
)

// Settings are the same for all jobs.
type Settings struct {
	Concurrency   int           `json:"concurrency"`
	MaxLayerBytes int64         `json:"max_layer_bytes"`
	MinFree       int64         `json:"min_free"`
	Stall         time.Duration `json:"stall"`
	MinRate       int64         `json:"min_rate"`
	Patience      time.Duration `json:"patience,omitempty"` // see offers.go; 0 is its default
	Window        time.Duration `json:"window"`             // the period over which MinRate is measured; 0 is the registry's default
	Timeout       time.Duration `json:"timeout"`            // for a whole pull; 0 is none

	CredentialHosts map[string][]string `json:"credential_hosts,omitempty"`
	MaxLayerEntries int64               `json:"max_layer_entries"`
	MaxImageEntries int64               `json:"max_image_entries"`
	MinFreeInodes   int64               `json:"min_free_inodes"`

	Progress  time.Duration `json:"progress"` // how long a pull may make no progress; 0 is no limit
	Retries   int           `json:"retries"`
	Backoff   time.Duration `json:"backoff"`
	MaxWait   time.Duration `json:"max_wait"`
	HostDirs  []string      `json:"host_dirs"`
	UserAgent string        `json:"user_agent"`
}

// Agent has the agent's functions for a running job.
type Agent interface {
	// Lease keeps blobs and layers (by chain ID) from being collected until the job has ended,
	// and returns the directory of each layer, which exists already or is to be made.
	Lease(ctx context.Context, blobs, chains []digest.Digest) (map[digest.Digest]Place, error)
	// Progress must not block for long.
	Progress(p core.PullProgress)
	// Admit is called, if the job says so, before anything of an image is stored. An error ends
	// the job.
	Admit(ctx context.Context, claim trust.Claim) error
}

// Place is a layer's directory below LayerDir.
type Place struct {
	Dir   string `json:"dir"`
	Ready bool   `json:"ready"`
	// Opaque says that a ready layer hides all layers below it.
	Opaque bool `json:"opaque,omitempty"`
}

// PullJob asks for one image.
type PullJob struct {
	Ref      string `json:"ref"` // full, with tag or digest
	Platform string `json:"platform"`
	// Emulated are the architectures with a handler in binfmt_misc: without Platform, an image for
	// one of them alone is fetched, too.
	Emulated    []string                        `json:"emulated,omitempty"`
	Credentials registry.Credentials            `json:"credentials"`
	Auths       map[string]registry.Credentials `json:"auths,omitempty"`
	// Admit says that Agent.Admit must be called about the image, Evidence that it needs its
	// signatures.
	Admit    bool `json:"admit,omitempty"`
	Evidence bool `json:"evidence,omitempty"`
	// Resolve asks only for the descriptor and the platforms of the image.
	Resolve bool `json:"resolve,omitempty"`
	// Tags asks only for the tags of the repository.
	Tags bool `json:"tags,omitempty"`
}

// Image is an image that is now in the store, with its layers unpacked and on disk.
type Image struct {
	Names    []string             `json:"names,omitempty"` // of an import
	Target   ocispec.Descriptor   `json:"target"`          // the manifest or index that the name refers to
	Manifest ocispec.Descriptor   `json:"manifest"`
	Config   ocispec.Descriptor   `json:"config"`
	Blobs    []ocispec.Descriptor `json:"blobs"` // the layers, compressed
	Layers   []Layer              `json:"layers"`
	// Annotations are those of the manifest that say how the program is to run.
	Annotations map[string]string `json:"annotations,omitempty"`
	// Artifact is the type of an artifact, "" for an image. An artifact has one layer, a directory of
	// links to its blobs.
	Artifact string `json:"artifact,omitempty"`
	// Platforms are those of a job that only resolves. Nothing else but Target is set then.
	Platforms []ocispec.Platform `json:"platforms,omitempty"`
	// Tags are those of a job that only lists tags. Nothing else is set then.
	Tags []string `json:"tags,omitempty"`
}

// Layer is one unpacked layer.
type Layer struct {
	Chain  digest.Digest `json:"chain"`
	DiffID digest.Digest `json:"diff_id"`
	Dir    string        `json:"dir"`
	Bytes  int64         `json:"bytes"`
	Inodes int64         `json:"inodes"`
	Opaque bool          `json:"opaque,omitempty"`
	// Links says that the files are links to blobs, which count with the blobs.
	Links bool `json:"links,omitempty"`
	// Known says that the agent already had the layer: only Chain, DiffID and Dir are set.
	Known bool `json:"known,omitempty"`

	fetched bool // its blob was not in the store before
}

// Worker runs jobs. Concurrent jobs share the blobs and layers that they have in common.
type Worker struct {
	root     string
	settings Settings
	store    content.Store
	turns    *queue // for unpacking, over all pulls
	blobs    flight.Group[digest.Digest, *download]
	layers   flight.Group[string, *unpacking]
	trees    flight.Group[string, *tree]
	active   atomic.Int64 // counts the bytes received and unpacked, of all jobs

	mu     sync.Mutex       // guards done, offers
	done   map[string]Layer // unpacked by this process, by directory
	offers map[digest.Digest][]*registry.Repository
}

// New returns a worker for the image directory root.
func New(root string, settings Settings) (*Worker, error) {
	store, err := local.NewStore(filepath.Join(root, ContentDir))
	if err != nil {
		return nil, fmt.Errorf("open content store: %w", err)
	}
	if settings.Concurrency <= 0 {
		settings.Concurrency = 4
	}
	return &Worker{
		root: root, settings: settings, store: store,
		turns: &queue{free: settings.Concurrency}, done: map[string]Layer{}, offers: map[digest.Digest][]*registry.Repository{},
	}, nil
}

// Stop stops all work in progress and returns when it has ended.
func (w *Worker) Stop() {
	w.trees.Stop()
	w.layers.Stop()
	w.blobs.Stop()
}

func (w *Worker) sumsFile(dir string) string { return filepath.Join(w.root, SumsDir, dir) }

func (w *Worker) layerDir(dir string) string { return filepath.Join(w.root, LayerDir, dir) }

// sync writes everything written so far to disk.
func (w *Worker) sync() error {
	f, err := os.Open(w.root)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", w.root, err)
	}
	return nil
}

func (w *Worker) registryOptions(job PullJob) registry.Options {
	s := w.settings
	return registry.Options{
		HostDirs: s.HostDirs, Credentials: job.Credentials, Auths: job.Auths, Stall: s.Stall,
		CredentialHosts: s.CredentialHosts, MinRate: s.MinRate, Window: s.Window, Retries: s.Retries, Backoff: s.Backoff, MaxWait: s.MaxWait, UserAgent: s.UserAgent,
	}
}

// turn is a layer's turn to be unpacked. A layer gives its turn up while it waits for bytes or
// for another layer, so that a slow registry does not delay others. It is not safe for concurrent
// use.
type turn struct {
	q      *queue
	ticket *ticket // nil while it has none
	queued *atomic.Bool
}

// acquire waits for the turn.
func (t *turn) acquire(ctx context.Context) error {
	if weaken.Off(weaken.PullSlots) {
		return nil // its slot is all that it has
	}
	ticket := t.q.enqueue()
	t.queued.Store(true)
	err := ticket.wait(ctx)
	t.queued.Store(false)
	if err != nil {
		ticket.leave()
		return err
	}
	t.ticket = ticket
	return nil
}

// release gives the turn up, if the layer has it.
func (t *turn) release() {
	if t.ticket != nil {
		t.ticket.leave()
		t.ticket = nil
	}
}

// again takes the turn, unless the layer has it.
func (t *turn) again(ctx context.Context) error {
	if t.ticket != nil {
		return nil
	}
	return t.acquire(ctx)
}

// without gives the turn up while wait runs.
func (t *turn) without(ctx context.Context, wait func() error) error {
	if t == nil || t.ticket == nil || weaken.Off(weaken.PullSlots) {
		return wait()
	}
	t.release()
	if err := wait(); err != nil {
		return err
	}
	return t.acquire(ctx)
}

// queue gives out slots in the order of the requests: a layer may wait for one below it, which
// must then have come first.
type queue struct {
	mu      sync.Mutex // guards free, waiting
	free    int
	waiting []chan struct{}
}

// ticket is a place in the queue.
type ticket struct {
	q     *queue
	ready chan struct{}
}

func (q *queue) enqueue() *ticket {
	q.mu.Lock()
	defer q.mu.Unlock()
	t := &ticket{q, make(chan struct{})}
	if q.free > 0 {
		q.free--
		close(t.ready)
	} else {
		q.waiting = append(q.waiting, t.ready)
	}
	return t
}

func (t *ticket) wait(ctx context.Context) error {
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave returns the slot or leaves the queue.
func (t *ticket) leave() {
	t.q.mu.Lock()
	defer t.q.mu.Unlock()
	for i, ch := range t.q.waiting {
		if ch == t.ready {
			t.q.waiting = append(t.q.waiting[:i], t.q.waiting[i+1:]...)
			return
		}
	}
	if len(t.q.waiting) > 0 {
		close(t.q.waiting[0])
		t.q.waiting = t.q.waiting[1:]
		return
	}
	t.q.free++
}

// contentsFault reports whether err is about the bytes, and not about the machine or a timeout.
func contentsFault(err error) bool {
	return err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) &&
		!errdefs.IsResourceExhausted(err) && !errdefs.IsUnavailable(err)
}
