package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/artifact"
	"github.com/longshore/longshore/internal/image/layer"
	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/trust"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/weaken"
)

const (
	maxConfig = 8 << 20
	maxLayers = 500 // overlayfs' own limit
)

// Pull fetches one image into the store and unpacks its layers.
func (w *Worker) Pull(ctx context.Context, agent Agent, job PullJob) (Image, error) {
	named, err := reference.ParseNormalizedNamed(job.Ref)
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w: %w", job.Ref, errdefs.ErrInvalidArgument, err)
	}
	switch {
	case job.Resolve:
		img, err := w.resolve(ctx, named, job)
		if err != nil {
			return Image{}, fmt.Errorf("resolve %s: %w", job.Ref, err)
		}
		return img, nil
	case job.Tags:
		repo, err := registry.Open(ctx, named, w.registryOptions(job))
		if err != nil {
			return Image{}, err
		}
		tags, err := repo.Tags(ctx)
		return Image{Tags: tags}, err
	}
	img, err := w.timed(ctx, func(ctx context.Context) (Image, error) {
		return w.watched(ctx, func(ctx context.Context, p *watch) (Image, error) {
			return w.pull(ctx, agent, named, job, p)
		})
	})
	if err != nil {
		return Image{}, fmt.Errorf("pull %s: %w", job.Ref, err)
	}
	return img, nil
}

func (w *Worker) pull(ctx context.Context, agent Agent, named reference.Named, job PullJob, watch *watch) (Image, error) {
	match, err := platform(job.Platform)
	if err != nil {
		return Image{}, err
	}
	var runs func(ocispec.Platform) bool
	if job.Platform == "" {
		runs = func(p ocispec.Platform) bool { return Runs(p, job.Emulated) }
	}
	repo, err := registry.Open(ctx, named, w.registryOptions(job))
	if err != nil {
		return Image{}, err
	}
	agent.Progress(core.PullProgress{Status: "resolving"})
	desc, body, err := repo.Resolve(ctx, selector(named))
	if err != nil {
		return Image{}, err
	}
	watch.step()
	s := &source{w: w, repo: repo, agent: agent, watch: watch}
	if err := s.admit(ctx, job, desc); err != nil {
		return Image{}, err
	}
	if body != nil {
		if err := s.keep(ctx, desc, body); err != nil {
			return Image{}, err
		}
	}
	return s.image(ctx, desc, match, runs)
}

// admit asks the agent about an image before storing any of it.
func (s *source) admit(ctx context.Context, job PullJob, desc ocispec.Descriptor) error {
	if !job.Admit {
		return nil
	}
	s.agent.Progress(core.PullProgress{Status: "verifying"})
	claim := trust.Claim{Target: desc}
	if job.Evidence {
		var err error
		if claim.Evidence, err = s.gather(ctx, desc.Digest); err != nil {
			return err
		}
		s.watch.step()
	}
	defer s.watch.hold()()
	return s.agent.Admit(ctx, claim)
}

func selector(named reference.Named) string {
	switch r := named.(type) {
	case reference.Digested:
		return r.Digest().String()
	case reference.Tagged:
		return r.Tag()
	}
	return "latest"
}

func platform(s string) (platforms.MatchComparer, error) {
	if s == "" {
		return platforms.Default(), nil
	}
	p, err := platforms.Parse(s)
	if err != nil {
		return nil, fmt.Errorf("platform %q: %w: %w", s, errdefs.ErrInvalidArgument, err)
	}
	return platforms.Only(p), nil
}

// source is where a job's content comes from.
type source struct {
	w     *Worker
	repo  *registry.Repository // nil for an archive; its blobs are in the store
	agent Agent
	wrote bool // something new was written to the store
	watch *watch
}

// image fetches and unpacks everything of the image that desc leads to. Unless runs is nil, it
// refuses an image if runs is false for the platform of its config.
func (s *source) image(ctx context.Context, desc ocispec.Descriptor, match platforms.MatchComparer, runs func(ocispec.Platform) bool) (Image, error) {
	if err := s.hold(ctx, desc.Digest); err != nil {
		return Image{}, err
	}
	img := Image{Target: desc}
	manifest, mdesc, err := s.manifest(ctx, desc, match, 0)
	if err != nil {
		return Image{}, err
	}
	img.Manifest, img.Config, img.Blobs, img.Annotations = mdesc, manifest.Config, manifest.Layers, wasm.Annotations(manifest.Annotations)
	if img.Artifact = manifest.artifact(); img.Artifact != "" {
		img.Layers, err = s.artifact(ctx, &img)
	} else {
		var diffs []digest.Digest
		if diffs, err = s.diffIDs(ctx, manifest, runs); err == nil {
			img.Layers, err = s.layers(ctx, img, diffs)
		}
	}
	if err != nil {
		return Image{}, err
	}
	for _, l := range img.Layers {
		s.wrote = s.wrote || !l.Known || l.fetched
	}
	if s.wrote {
		defer s.watch.hold()()
		err = s.w.sync() // the agent is about to record the image
	}
	return img, err
}

func (s *source) hold(ctx context.Context, blobs ...digest.Digest) error {
	_, err := s.agent.Lease(ctx, blobs, nil)
	return err
}

// keep writes a small blob to the store.
func (s *source) keep(ctx context.Context, desc ocispec.Descriptor, body []byte) error {
	s.wrote = true
	if err := s.hold(ctx, desc.Digest); err != nil {
		return err
	}
	return s.w.write(ctx, desc, body)
}

func (w *Worker) write(ctx context.Context, desc ocispec.Descriptor, body []byte) error {
	cw, err := content.OpenWriter(ctx, w.store, content.WithRef("small-"+desc.Digest.String()), content.WithDescriptor(desc))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("keep %s: %w", desc.Digest, classifyDisk(err))
	}
	defer func() { _ = cw.Close() }()
	if err := cw.Truncate(0); err != nil {
		return fmt.Errorf("keep %s: %w", desc.Digest, err)
	}
	if _, err := cw.Write(body); err != nil {
		return fmt.Errorf("keep %s: %w", desc.Digest, classifyDisk(err))
	}
	if err := cw.Commit(ctx, int64(len(body)), desc.Digest); err != nil && !errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("keep %s: %w", desc.Digest, classifyDisk(err))
	}
	return nil
}

// small reads a JSON blob from the store, or fetches it. It replaces a damaged one.
func (s *source) small(ctx context.Context, desc ocispec.Descriptor, limit int64, fetch func() ([]byte, error)) ([]byte, error) {
	if err := desc.Digest.Validate(); err != nil || desc.Digest.Algorithm() != digest.SHA256 {
		return nil, fmt.Errorf("digest %q: only sha256 is supported: %w", desc.Digest, errdefs.ErrInvalidArgument)
	}
	if desc.Size < 0 || desc.Size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read: %w", desc.Digest, desc.Size, limit, errdefs.ErrInvalidArgument)
	}
	if err := s.hold(ctx, desc.Digest); err != nil {
		return nil, err
	}
	inline := desc.Data
	desc.Data = nil // the store has it all the same: others read it there
	body, err := content.ReadBlob(ctx, s.w.store, desc)
	if err == nil && digest.FromBytes(body) == desc.Digest {
		return body, nil
	}
	if digest.FromBytes(inline) == desc.Digest {
		fetch = func() ([]byte, error) { return inline, nil }
	} else if s.repo == nil {
		return nil, fmt.Errorf("%s is not in the archive: %w", desc.Digest, errdefs.ErrInvalidArgument)
	}
	if err == nil || !errdefs.IsNotFound(err) {
		_ = s.w.store.Delete(ctx, desc.Digest)
	}
	if body, err = fetch(); err != nil {
		return nil, err
	}
	s.watch.step()
	s.wrote = true
	desc.Size = int64(len(body))
	return body, s.w.write(ctx, desc, body)
}

type manifestDoc struct {
	SchemaVersion int                  `json:"schemaVersion"`
	MediaType     string               `json:"mediaType"`
	ArtifactType  string               `json:"artifactType"`
	Config        ocispec.Descriptor   `json:"config"`
	Layers        []ocispec.Descriptor `json:"layers"`
	Manifests     []ocispec.Descriptor `json:"manifests"`
	FSLayers      []json.RawMessage    `json:"fsLayers"`
	Annotations   map[string]string    `json:"annotations"`
}

// manifest reads desc and follows indexes down to the platform's manifest.
func (s *source) manifest(ctx context.Context, desc ocispec.Descriptor, match platforms.MatchComparer, depth int) (manifestDoc, ocispec.Descriptor, error) {
	var doc manifestDoc
	body, err := s.small(ctx, desc, registry.MaxManifest, func() ([]byte, error) { return s.repo.Manifest(ctx, desc) })
	if err != nil {
		return doc, desc, err
	}
	desc.Size = int64(len(body))
	if err := json.Unmarshal(body, &doc); err != nil {
		return doc, desc, fmt.Errorf("read manifest %s: %w: %w", desc.Digest, errdefs.ErrInvalidArgument, err)
	}
	if desc.MediaType == "" || doc.MediaType != "" {
		desc.MediaType = doc.MediaType
	}
	switch {
	case doc.SchemaVersion == 1 || doc.FSLayers != nil:
		return doc, desc, fmt.Errorf("manifest %s has Docker's old schema 1, which is not supported: %w", desc.Digest, errdefs.ErrNotImplemented)
	case len(doc.Manifests) > 0 || images.IsIndexType(desc.MediaType):
		if depth > 3 {
			return doc, desc, fmt.Errorf("index %s: nested too deep: %w", desc.Digest, errdefs.ErrInvalidArgument)
		}
		next, err := choose(desc, doc.Manifests, match)
		if err != nil {
			return doc, desc, err
		}
		return s.manifest(ctx, next, match, depth+1)
	case doc.Config.Digest == "":
		return doc, desc, fmt.Errorf("manifest %s (%s) is not an image: %w", desc.Digest, desc.MediaType, errdefs.ErrInvalidArgument)
	}
	if desc.MediaType == "" {
		desc.MediaType = ocispec.MediaTypeImageManifest
	}
	return doc, desc, checkLayers(doc, desc, s.w.settings.MaxLayerBytes)
}

func checkLayers(doc manifestDoc, desc ocispec.Descriptor, maxBytes int64) error {
	if doc.artifact() != "" {
		if err := artifact.Check(doc.Layers, maxBytes); err != nil {
			return fmt.Errorf("manifest %s: %w", desc.Digest, err)
		}
		return nil
	}
	module := isModule(doc)
	if module && len(doc.Layers) > 1 {
		return fmt.Errorf("manifest %s has a WebAssembly module and %d other layers; only a module alone can be run: %w", desc.Digest, len(doc.Layers)-1, errdefs.ErrNotImplemented)
	}
	if len(doc.Layers) > maxLayers {
		return fmt.Errorf("manifest %s has %d layers, at most %d can be mounted: %w", desc.Digest, len(doc.Layers), maxLayers, errdefs.ErrInvalidArgument)
	}
	for _, l := range doc.Layers {
		switch {
		case l.Digest.Validate() != nil || l.Digest.Algorithm() != digest.SHA256 || l.Size < 0:
			return fmt.Errorf("manifest %s: layer %q of %d bytes: %w", desc.Digest, l.Digest, l.Size, errdefs.ErrInvalidArgument)
		case module:
		case strings.HasSuffix(l.MediaType, "+encrypted"):
			return fmt.Errorf("manifest %s: layer %s is encrypted (%s), and this node decrypts no layers: decrypt the image where its key is, and push it to a registry of yours "+
				"(skopeo copy --decryption-key KEY docker://… docker://…): %w", desc.Digest, l.Digest, l.MediaType, errdefs.ErrNotImplemented)
		case !images.IsLayerType(l.MediaType):
			return fmt.Errorf("manifest %s: layer %s has the type %q, which cannot be unpacked: %w", desc.Digest, l.Digest, l.MediaType, errdefs.ErrNotImplemented)
		}
	}
	return nil
}

// diffIDs reads from the config the digests of the unpacked layers, and asks runs, unless it is
// nil, about the platform that it says.
func (s *source) diffIDs(ctx context.Context, m manifestDoc, runs func(ocispec.Platform) bool) ([]digest.Digest, error) {
	body, err := s.small(ctx, m.Config, maxConfig, func() ([]byte, error) { return s.fetchConfig(ctx, m.Config) })
	if err != nil {
		return nil, fmt.Errorf("read image config: %w", err)
	}
	if isModule(m) {
		return moduleDiffs(body, m)
	}
	var p ocispec.Platform
	if err := json.Unmarshal(body, &p); err == nil && runs != nil && !runs(p) {
		return nil, fmt.Errorf("%s; with --platform %s it is fetched all the same: %w", ForeignPlatform(p), platforms.Format(p), errdefs.ErrNotFound)
	}
	return ParseConfig(body, len(m.Layers))
}

func (s *source) fetchConfig(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	d := newDownload(desc)
	if err := s.w.fetch(ctx, s.repo, d); err != nil {
		return nil, err
	}
	return content.ReadBlob(ctx, s.w.store, desc)
}

// MaxVolumes is how many volumes an image may declare. Each container of it gets as many.
const MaxVolumes = 128

// CheckVolumes refuses an image that declares more than MaxVolumes volumes.
func CheckVolumes(c ocispec.ImageConfig) error {
	if n := len(c.Volumes); n > MaxVolumes && !weaken.Off(weaken.ImageVolumes) {
		return fmt.Errorf("it declares %d volumes, at most %d are made for a container: %w", n, MaxVolumes, errdefs.ErrInvalidArgument)
	}
	return nil
}

// ParseConfig returns the diff IDs in an image config. It is an error unless there are as many as
// layers, or when the config declares more than MaxVolumes volumes.
func ParseConfig(body []byte, layers int) ([]digest.Digest, error) {
	var img ocispec.Image
	if err := json.Unmarshal(body, &img); err != nil {
		return nil, fmt.Errorf("read image config: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if err := CheckVolumes(img.Config); err != nil {
		return nil, fmt.Errorf("read image config: %w", err)
	}
	diffs := img.RootFS.DiffIDs
	if len(diffs) != layers {
		return nil, fmt.Errorf("read image config: it has %d diff IDs, the manifest %d layers: %w", len(diffs), layers, errdefs.ErrInvalidArgument)
	}
	for _, d := range diffs {
		if d.Validate() != nil || d.Algorithm() != digest.SHA256 {
			return nil, fmt.Errorf("read image config: diff ID %q: %w", d, errdefs.ErrInvalidArgument)
		}
	}
	return diffs, nil
}

// layers fetches and unpacks the missing layers, several at a time.
func (s *source) layers(ctx context.Context, img Image, diffs []digest.Digest) ([]Layer, error) {
	chains := identity.ChainIDs(append([]digest.Digest(nil), diffs...))
	all := []digest.Digest{img.Target.Digest, img.Manifest.Digest, img.Config.Digest}
	for _, b := range img.Blobs {
		all = append(all, b.Digest)
	}
	places, err := s.agent.Lease(ctx, all, chains)
	if err != nil {
		return nil, err
	}
	m := newMeter(s.agent, img.Blobs)
	m.begin(img.Blobs)
	defer s.w.offer(s.repo, img.Blobs)()
	slots := &queue{free: s.w.settings.Concurrency}
	if weaken.Off(weaken.PullSlots) {
		slots = s.w.turns
	}
	budget := layer.NewBudget(s.w.settings.MaxImageEntries)
	var started []*unpacking
	defer func() {
		for _, u := range started {
			u.flight.Leave()
		}
	}()
	for i, blob := range img.Blobs {
		place, ok := places[chains[i]]
		if !ok {
			return nil, fmt.Errorf("no place for layer %s: %w", chains[i], errdefs.ErrInternal)
		}
		u := &unpacking{repo: s.repo, blob: blob, chain: chains[i], diffID: diffs[i], place: place, note: m.note, slots: slots, budget: budget}
		for j := len(started) - 1; j >= 0; j-- {
			u.lower = append(u.lower, started[j])
		}
		u.flight = s.w.startLayer(ctx, u)
		s.watch.follow(u.flight.State)
		started = append(started, u)
	}
	layers, err := collect(ctx, started)
	if err == nil {
		m.finish()
	}
	return layers, err
}

// collect waits for all layers and returns the first real error.
func collect(ctx context.Context, started []*unpacking) ([]Layer, error) {
	failed := make(chan error, len(started))
	for _, u := range started {
		go func() { failed <- u.flight.Wait(ctx) }()
	}
	for range started {
		if err := <-failed; err != nil {
			return nil, err
		}
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	layers := make([]Layer, len(started))
	for i, u := range started {
		layers[i] = u.flight.State.result
	}
	return layers, nil
}

// meter turns the progress of single blobs into reports, at a limited rate.
type meter struct {
	agent Agent
	total int64
	mu    sync.Mutex // guards blobs, last
	blobs map[digest.Digest]*blobMeter
	last  time.Time
}

type blobMeter struct {
	size, done int64
	status     string
	last       time.Time
}

const meterEvery = 100 * time.Millisecond

func newMeter(agent Agent, blobs []ocispec.Descriptor) *meter {
	m := &meter{agent: agent, blobs: map[digest.Digest]*blobMeter{}}
	for _, b := range blobs {
		if m.blobs[b.Digest] == nil {
			m.blobs[b.Digest] = &blobMeter{size: b.Size}
			m.total += b.Size
		}
	}
	return m
}

func (m *meter) note(blob digest.Digest, status string, done int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b := m.blobs[blob]
	if b == nil {
		return
	}
	ends := b.done < b.size && done >= b.size
	b.done = max(b.done, done)
	now := time.Now()
	if status != b.status || ends || now.Sub(b.last) >= meterEvery {
		b.status, b.last = status, now
		m.agent.Progress(core.PullProgress{Blob: blob, Status: status, Done: b.done, Total: b.size})
	}
	if now.Sub(m.last) >= meterEvery {
		m.last = now
		m.whole("downloading")
	}
}

// whole reports the sum. Preconditions: mu is held.
func (m *meter) whole(status string) {
	var done int64
	for _, b := range m.blobs {
		done += b.done
	}
	m.agent.Progress(core.PullProgress{Status: status, Done: done, Total: m.total})
}

// begin reports that the image was resolved, and each of its blobs in their order.
func (m *meter) begin(blobs []ocispec.Descriptor) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.whole("downloading")
	for _, desc := range blobs {
		if b := m.blobs[desc.Digest]; b.status == "" {
			b.status = "waiting"
			m.agent.Progress(core.PullProgress{Blob: desc.Digest, Status: b.status, Total: b.size})
		}
	}
}

func (m *meter) finish() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.blobs {
		b.done = b.size
	}
	m.whole("done")
}
