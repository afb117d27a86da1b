package image

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/image/worker"
	"github.com/longshore/longshore/internal/turns"
)

// imageID returns an image's ID, the digest of its config. Tools that push a module as an artifact often push an empty
// config, which all such artifacts share: their ID is the manifest's digest, as that of artifacts.
func imageID(img worker.Image) digest.Digest {
	if img.Artifact != "" {
		return img.Manifest.Digest
	}
	if len(img.Blobs) == 1 && wasm.IsLayer(img.Blobs[0].MediaType) {
		switch img.Config.MediaType {
		case wasm.ConfigType, ocispec.MediaTypeImageConfig: // they name the layer
		default:
			return img.Manifest.Digest
		}
	}
	return img.Config.Digest
}

// isModule reports whether the image is a module, which is the only file in its root.
func (r *imageRecord) isModule() bool {
	return len(r.Blobs) == 1 && wasm.IsLayer(r.Blobs[0].MediaType)
}

// ofModule makes the config that of a container with the module as its program. Arguments of the config stay.
func (c *imageConfig) ofModule() {
	args := append(c.Config.Entrypoint, c.Config.Cmd...)
	c.Config.Cmd = nil
	if len(args) > 1 {
		c.Config.Cmd = args[1:]
	}
	c.Config.Entrypoint = []string{wasm.Entrypoint}
	if c.OS == "" {
		c.OS, c.Architecture = "wasip1", "wasm"
	}
}

// Modules keeps compiled WebAssembly modules. The key of a module is its SHA-256 in hexadecimal, which is also its
// blob's.
type Modules interface {
	// Warm compiles the module at path, if that was not done before. by is its owner, namespace and image.
	Warm(ctx context.Context, path string, by turns.Path) error
	// Prune removes the compiled forms of modules that keep rejects and that were unused for so long, and returns their
	// size.
	Prune(unused time.Duration, keep func(module string) bool) (freed uint64, err error)
}

// modules has modules compiled in the background.
type modules struct {
	m    Modules // nil: nothing is kept
	log  *slog.Logger
	ctx  context.Context //nolint:containedctx // ends unfinished work when the store is closed
	end  context.CancelCauseFunc
	busy sync.WaitGroup

	mu      sync.Mutex                                // guards warming
	warming map[digest.Digest]context.CancelCauseFunc // cancels a compilation, by module
}

var (
	errClosed  = errors.New("the image store was closed")
	errRemoved = errors.New("the image was removed")
)

func newModules(m Modules, log *slog.Logger) *modules {
	ctx, end := context.WithCancelCause(context.Background())
	return &modules{m: m, log: log, ctx: ctx, end: end, warming: map[digest.Digest]context.CancelCauseFunc{}}
}

func (m *modules) close() {
	m.end(errClosed)
	m.busy.Wait()
}

// warm compiles the module of img in the background, if img is one, so that its first start does not wait. abandon cancels it.
func (m *modules) warm(s *Store, owner core.Owner, img worker.Image) {
	if m.m == nil || len(img.Blobs) != 1 || len(img.Layers) != 1 || !wasm.IsLayer(img.Blobs[0].MediaType) {
		return
	}
	s.mu.RLock()
	rec, ok := s.rec.layers[img.Layers[0].Chain]
	s.mu.RUnlock()
	if !ok {
		return
	}
	path := filepath.Join(s.rec.layerPath(rec.Dir), wasm.File)
	module := img.Blobs[0].Digest
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.warming[module] != nil {
		return
	}
	ctx, end := context.WithCancelCause(m.ctx)
	m.warming[module] = end
	m.busy.Go(func() {
		defer func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			end(nil)
			delete(m.warming, module)
		}()
		err := m.m.Warm(ctx, path, turns.Path{string(owner), "", img.Manifest.Digest.String()})
		if err != nil && ctx.Err() == nil {
			m.log.Warn("could not compile a WebAssembly module after its pull; the starts of its containers take longer", "module", module, "error", err)
		}
	})
}

// abandon cancels the compilation of a module after the removal of its last image.
func (m *modules) abandon(module digest.Digest) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if end := m.warming[module]; end != nil {
		end(errRemoved)
	}
}

// forget removes the compiled modules of removed images, and returns their size.
func (m *modules) forget(removed map[digest.Digest]*imageRecord, live map[digest.Digest]bool) uint64 {
	gone := map[string]bool{}
	for _, rec := range removed {
		if rec.isModule() && !live[rec.Blobs[0].Digest] {
			gone[rec.Blobs[0].Digest.Encoded()] = true
			m.abandon(rec.Blobs[0].Digest)
		}
	}
	if len(gone) == 0 {
		return 0
	}
	return m.prune(0, func(module string) bool { return !gone[module] })
}

// strayModule is how long the compiled form of a module that is no image is kept: the module may be a file in an image
// of ordinary layers.
const strayModule = 24 * time.Hour

// pruneStrays removes the compiled forms of modules that are no images.
func (m *modules) pruneStrays(s *Store) uint64 {
	has := map[string]bool{}
	s.mu.RLock()
	for _, rec := range s.rec.images {
		if rec.isModule() {
			has[rec.Blobs[0].Digest.Encoded()] = true
		}
	}
	s.mu.RUnlock()
	return m.prune(strayModule, func(module string) bool { return has[module] })
}

func (m *modules) prune(unused time.Duration, keep func(string) bool) uint64 {
	if m.m == nil {
		return 0
	}
	freed, err := m.m.Prune(unused, keep)
	if err != nil {
		m.log.Warn("could not remove all compiled WebAssembly modules that are not needed any more; the next pruning tries again", "error", err)
	}
	return freed
}
