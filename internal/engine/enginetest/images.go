package enginetest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
)

// Images is a fake core.Images and core.ImageTransfers. Its registries have the images of AddImage; an owner has the images
// that it pulled.
type Images struct {
	fault
	// OnPull, unless it is nil, is called with the options of each pull. Set it before the first
	// pull.
	OnPull func(core.PullOptions)
	// Root is the result of RootStats. Without a time RootStats returns 4096 bytes.
	Root      core.RootStats
	lock      sync.Mutex            // guards registry, names, pins, pulled, checkouts, pushed
	registry  map[string]*fakeImage // by full name
	names     map[core.Owner]map[string]*fakeImage
	pins      map[core.Owner]map[digest.Digest]bool
	pulled    map[digest.Digest]time.Time
	checkouts map[core.ID]*fakeImage
	pushed    *core.PushOptions // of the last push
}

type fakeImage struct {
	id       digest.Digest
	manifest digest.Digest
	config   ocispec.Image
	health   *core.HealthCheck
	shell    []string
	files    map[string]string
	damaged  bool // its config cannot be read
}

// malformed returns an error for names that no registry accepts.
func malformed(ref string) error {
	if ref == "" || strings.ContainsAny(ref, " \t\n") || strings.ToLower(ref[:1+max(0, strings.LastIndexByte(ref, '/'))]) != ref[:1+max(0, strings.LastIndexByte(ref, '/'))] {
		return fmt.Errorf("image name %q: %w", ref, errdefs.ErrInvalidArgument)
	}
	return nil
}

func newImage(cfg ocispec.ImageConfig, files map[string]string) *fakeImage {
	full := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, Config: cfg}
	raw, _ := json.Marshal(full)
	id := digestOf(string(raw) + fmt.Sprint(files))
	return &fakeImage{id: id, manifest: digestOf("manifest of " + string(id)), config: full, files: files}
}

var (
	_ core.Images         = (*Images)(nil)
	_ core.ImageTransfers = (*Images)(nil)
)

func newImages() *Images {
	return &Images{
		registry: map[string]*fakeImage{}, names: map[core.Owner]map[string]*fakeImage{}, pins: map[core.Owner]map[digest.Digest]bool{},
		pulled: map[digest.Digest]time.Time{}, checkouts: map[core.ID]*fakeImage{},
	}
}

// fullName resolves short names as Docker does.
func fullName(ref string) string {
	if !strings.Contains(ref, "/") {
		ref = "docker.io/library/" + ref
	} else if host, _, _ := strings.Cut(ref, "/"); !strings.ContainsAny(host, ".:") && host != "localhost" {
		ref = "docker.io/" + ref
	}
	if i := strings.LastIndexByte(ref, '/'); !strings.ContainsAny(ref[i:], ":@") {
		ref += ":latest"
	}
	return ref
}

func (s *Images) add(name string, cfg ocispec.ImageConfig, files map[string]string) core.Image {
	s.lock.Lock()
	defer s.lock.Unlock()
	img := newImage(cfg, files)
	s.registry[fullName(name)] = img
	for _, owner := range []core.Owner{core.OwnerCRI, core.OwnerCLI, core.OwnerNomad, core.OwnerMesos, core.OwnerSwarm, core.OwnerKata, core.OwnerCRIAlpha, core.OwnerDocker} {
		s.name(owner, fullName(name), img)
	}
	return s.image(core.OwnerCLI, img)
}

// Offer puts an image only into the fake registries, to be pulled.
func (s *Images) Offer(name string, cfg ocispec.ImageConfig, files map[string]string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.registry[fullName(name)] = newImage(cfg, files)
}

// OfferAs is Offer for an image with digests and a health check of its own.
func (s *Images) OfferAs(name string, img core.Image) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.registry[fullName(name)] = &fakeImage{id: img.ID, manifest: img.Digest, config: img.Config, health: img.Health, shell: img.Shell}
}

// Damage makes Get return DataLoss for an owner's image, together with the image without its config.
func (s *Images) Damage(owner core.Owner, ref string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	img := s.find(owner, ref)
	img.damaged, img.config = true, ocispec.Image{}
}

// name gives an image to an owner. Preconditions: lock is held.
func (s *Images) name(owner core.Owner, name string, img *fakeImage) {
	if s.names[owner] == nil {
		s.names[owner] = map[string]*fakeImage{}
	}
	s.names[owner][name] = img
	if s.pulled[img.id].IsZero() {
		s.pulled[img.id] = time.Now()
	}
}

// image returns an image as an owner sees it. Preconditions: lock is held.
func (s *Images) image(owner core.Owner, img *fakeImage) core.Image {
	out := core.Image{ID: img.id, Digest: img.manifest, Size: 1000, Unpacked: 2000, Config: img.config, Health: img.health, Shell: img.shell, Pulled: s.pulled[img.id], Pinned: s.pins[owner][img.id]}
	seen := map[string]bool{}
	for o, names := range s.names {
		if owner != "" && o != owner {
			continue
		}
		for name, i := range names {
			if i != img || seen[name] || strings.HasPrefix(name, "@") {
				continue
			}
			seen[name] = true
			out.Names = append(out.Names, name)
			repo := name[:strings.LastIndexByte(name, ':')]
			if d := repo + "@" + string(out.Digest); !slices.Contains(out.Digests, d) {
				out.Digests = append(out.Digests, d)
			}
		}
	}
	slices.Sort(out.Names)
	slices.Sort(out.Digests)
	return out
}

// Pull gives the owner a name for an image in the registry.
func (s *Images) Pull(ctx context.Context, owner core.Owner, ref string, opts core.PullOptions) (core.Image, error) {
	if err := s.check(ctx, "Pull"); err != nil {
		return core.Image{}, err
	}
	if s.OnPull != nil {
		s.OnPull(opts)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	img := s.registry[fullName(ref)]
	if img == nil {
		return core.Image{}, fmt.Errorf("pull %s: %w", ref, errdefs.ErrNotFound)
	}
	if opts.Progress != nil {
		opts.Progress(core.PullProgress{Status: "done", Done: 1000, Total: 1000})
	}
	s.name(owner, fullName(ref), img)
	if opts.Pin {
		s.pin(owner, img, true)
	}
	return s.image(owner, img), nil
}

// pin sets whether an owner has pinned an image. Preconditions: lock is held.
func (s *Images) pin(owner core.Owner, img *fakeImage, pinned bool) {
	if s.pins[owner] == nil {
		s.pins[owner] = map[digest.Digest]bool{}
	}
	s.pins[owner][img.id] = pinned
}

// find returns the image that an owner names. Preconditions: lock is held.
func (s *Images) find(owner core.Owner, ref string) *fakeImage {
	hex := strings.TrimPrefix(ref, "sha256:")
	for o, names := range s.names {
		if owner != "" && o != owner {
			continue
		}
		for name, img := range names {
			repo := name[:strings.LastIndexByte(name, ':')]
			if name == fullName(ref) || ref == repo+"@"+string(img.manifest) || len(hex) >= 4 && strings.HasPrefix(img.id.Encoded(), hex) {
				return img
			}
		}
	}
	return nil
}

// Get returns an image.
func (s *Images) Get(ctx context.Context, owner core.Owner, ref string) (core.Image, error) {
	if err := s.check(ctx, "Get"); err != nil {
		return core.Image{}, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if err := malformed(ref); err != nil {
		return core.Image{}, err
	}
	img := s.find(owner, ref)
	if img == nil {
		return core.Image{}, fmt.Errorf("image %s: %w", ref, errdefs.ErrNotFound)
	}
	if img.damaged {
		return s.image(owner, img), fmt.Errorf("read config of image %s: %w", ref, errdefs.ErrDataLoss)
	}
	return s.image(owner, img), nil
}

// List returns an owner's images.
func (s *Images) List(ctx context.Context, owner core.Owner) ([]core.Image, error) {
	if err := s.check(ctx, "List"); err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	seen := map[digest.Digest]core.Image{}
	for o, names := range s.names {
		for _, img := range names {
			if owner == "" || o == owner {
				seen[img.id] = s.image(owner, img)
			}
		}
	}
	list := slices.Collect(maps.Values(seen))
	slices.SortFunc(list, func(a, b core.Image) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return list, nil
}

// Tag adds a name.
func (s *Images) Tag(ctx context.Context, owner core.Owner, source, target string) error {
	if err := s.check(ctx, "Tag"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if err := malformed(target); err != nil && target != "" {
		return err
	}
	img := s.find(owner, source)
	if img == nil {
		return fmt.Errorf("tag %s: %w", source, errdefs.ErrNotFound)
	}
	if target == "" {
		s.name(owner, "@"+string(img.manifest), img)
		return nil
	}
	s.name(owner, fullName(target), img)
	return nil
}

// Remove removes a name, or all names with an ID.
func (s *Images) Remove(ctx context.Context, owner core.Owner, ref string) error {
	if err := s.check(ctx, "Remove"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if _, ok := s.names[owner][fullName(ref)]; ok {
		delete(s.names[owner], fullName(ref))
		return nil
	}
	img := s.find(owner, ref)
	if img == nil {
		return fmt.Errorf("remove image %s: %w", ref, errdefs.ErrNotFound)
	}
	maps.DeleteFunc(s.names[owner], func(_ string, i *fakeImage) bool { return i == img })
	return nil
}

// Checkout makes a container's root.
func (s *Images) Checkout(ctx context.Context, req core.CheckoutRequest) (core.Checkout, error) {
	if err := s.check(ctx, "Checkout"); err != nil {
		return core.Checkout{}, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	img := s.checkouts[req.Container]
	if img == nil {
		img = s.find("", string(req.Image))
	}
	if img == nil {
		return core.Checkout{}, fmt.Errorf("check out %s: %w", req.Image, errdefs.ErrNotFound)
	}
	s.checkouts[req.Container] = img
	return core.Checkout{Mounts: []core.Mount{{Type: "fake", Source: string(req.Container)}}, Config: img.config}, nil
}

func (s *Images) content(container core.ID) map[string]string {
	s.lock.Lock()
	defer s.lock.Unlock()
	if img := s.checkouts[container]; img != nil {
		return img.files
	}
	return nil
}

// Discard removes the root.
func (s *Images) Discard(ctx context.Context, container core.ID) error {
	if err := s.check(ctx, "Discard"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.checkouts, container)
	return nil
}

// Checkouts returns the containers that have one.
func (s *Images) Checkouts(ctx context.Context) ([]core.ID, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return slices.Sorted(maps.Keys(s.checkouts)), s.check(ctx, "Checkouts")
}

// RootStats returns Root.
func (s *Images) RootStats(ctx context.Context, container core.ID) (core.RootStats, error) {
	if err := s.check(ctx, "RootStats"); err != nil {
		return core.RootStats{}, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.checkouts[container] == nil {
		return core.RootStats{}, fmt.Errorf("root of container %s: %w", container, errdefs.ErrNotFound)
	}
	if !s.Root.At.IsZero() {
		return s.Root, nil
	}
	return core.RootStats{Bytes: core.Known(4096), Inodes: core.Known(1)}, nil
}

// Changes tells of one new file.
func (s *Images) Changes(ctx context.Context, container core.ID, _ core.RootUse, fn func(core.FileChange) error) error {
	if err := s.check(ctx, "Changes"); err != nil {
		return err
	}
	if s.content(container) == nil {
		return fmt.Errorf("root of container %s: %w", container, errdefs.ErrFailedPrecondition)
	}
	return fn(core.FileChange{Path: "/new", Kind: "A"})
}

// Commit makes an image with the same files.
func (s *Images) Commit(ctx context.Context, owner core.Owner, req core.CommitRequest) (core.Image, error) {
	if err := s.check(ctx, "Commit"); err != nil {
		return core.Image{}, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	img := s.checkouts[req.Container]
	if img == nil {
		return core.Image{}, fmt.Errorf("root of container %s: %w", req.Container, errdefs.ErrFailedPrecondition)
	}
	base, err := json.Marshal(img.config)
	if err != nil {
		return core.Image{}, err
	}
	raw, err := req.Config(base, digestOf("layer"))
	if err != nil {
		return core.Image{}, err
	}
	made := &fakeImage{id: digestOf(string(raw)), manifest: digestOf(string(raw) + "manifest"), files: img.files}
	if err := json.Unmarshal(raw, &made.config); err != nil {
		return core.Image{}, err
	}
	name := req.Name
	if name == "" {
		name = string(made.id)
	}
	s.name(owner, fullName(name), made)
	return s.image(owner, made), nil
}

// Pin sets the mark of an image.
func (s *Images) Pin(ctx context.Context, owner core.Owner, ref string, pinned bool) error {
	if err := s.check(ctx, "Pin"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	img := s.find(owner, ref)
	if img == nil {
		return fmt.Errorf("pin %s: %w", ref, errdefs.ErrNotFound)
	}
	s.pin(owner, img, pinned)
	return nil
}

// Import reads an archive of Export.
func (s *Images) Import(ctx context.Context, owner core.Owner, archive io.Reader, opts core.ImportOptions) ([]core.Image, error) {
	if err := s.check(ctx, "Import"); err != nil {
		return nil, err
	}
	var names []string
	if err := json.NewDecoder(archive).Decode(&names); err != nil {
		return nil, fmt.Errorf("import: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	var list []core.Image
	for _, name := range names {
		img := s.registry[name]
		if img == nil {
			img = &fakeImage{id: digestOf(name), manifest: digestOf(name)}
			s.registry[name] = img
		}
		switch {
		case opts.Only == "":
			s.name(owner, name, img)
		case fullName(opts.Only) == fullName(name):
			s.name(owner, "@"+string(img.manifest), img)
		default:
			continue
		}
		list = append(list, s.image(owner, img))
	}
	if opts.Only != "" && len(list) != 1 {
		return nil, fmt.Errorf("import: the archive has no image %s: %w", opts.Only, errdefs.ErrNotFound)
	}
	return list, nil
}

// ImportRoot makes an image. Its ID is the digest of the tar.
func (s *Images) ImportRoot(ctx context.Context, owner core.Owner, root io.Reader, opts core.RootImport) (core.Image, error) {
	if err := s.check(ctx, "ImportRoot"); err != nil {
		return core.Image{}, err
	}
	raw, err := io.ReadAll(root)
	if err != nil {
		return core.Image{}, err
	}
	if opts.Name != "" {
		if err := malformed(opts.Name); err != nil {
			return core.Image{}, err
		}
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	img := &fakeImage{id: digestOf(string(raw)), manifest: digestOf("manifest of " + string(raw))}
	s.name(owner, fullName(cmp.Or(opts.Name, string(img.id))), img)
	return s.image(owner, img), nil
}

// Resolve returns the image of a name in the fake registries.
func (s *Images) Resolve(ctx context.Context, ref string, _ core.PullOptions) (core.RemoteImage, error) {
	if err := s.check(ctx, "Resolve"); err != nil {
		return core.RemoteImage{}, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	img := s.registry[fullName(ref)]
	if img == nil {
		return core.RemoteImage{}, fmt.Errorf("resolve %s: %w", ref, errdefs.ErrNotFound)
	}
	return core.RemoteImage{Target: ocispec.Descriptor{Digest: img.manifest}, Platforms: []ocispec.Platform{img.config.Platform}}, nil
}

// Tags returns the tags of a repository in the fake registries.
func (s *Images) Tags(ctx context.Context, repo string, _ core.PullOptions) ([]string, error) {
	if err := s.check(ctx, "Tags"); err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	var tags []string
	for name := range s.registry {
		if tag, ok := strings.CutPrefix(name, strings.TrimSuffix(fullName(repo), "latest")); ok {
			tags = append(tags, tag)
		}
	}
	if len(tags) == 0 {
		return nil, fmt.Errorf("tags of %s: %w", repo, errdefs.ErrNotFound)
	}
	slices.Sort(tags)
	return tags, nil
}

// Export writes the names as JSON.
func (s *Images) Export(ctx context.Context, owner core.Owner, refs []string, w io.Writer) error {
	if err := s.check(ctx, "Export"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	var names []string
	for _, ref := range refs {
		if s.find(owner, ref) == nil {
			return fmt.Errorf("export %s: %w", ref, errdefs.ErrNotFound)
		}
		names = append(names, fullName(ref))
	}
	return json.NewEncoder(w).Encode(names)
}

// Push offers an image under another name, as a registry does that has got it.
func (s *Images) Push(ctx context.Context, owner core.Owner, ref string, opts core.PushOptions) error {
	if err := s.check(ctx, "Push"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	img := s.find(owner, ref)
	if img == nil {
		return fmt.Errorf("push %s: %w", ref, errdefs.ErrNotFound)
	}
	s.pushed = &opts
	s.registry[fullName(cmp.Or(opts.Target, ref))] = img
	return nil
}

// Login takes every password but "wrong".
func (s *Images) Login(ctx context.Context, host string, opts core.PushOptions) error {
	if err := s.check(ctx, "Login"); err != nil {
		return err
	}
	if opts.Password == "wrong" {
		return fmt.Errorf("log in to %s: 401: %w", host, errdefs.ErrUnauthenticated)
	}
	return nil
}

// Pushed returns the options of the last push.
func (s *Images) Pushed() core.PushOptions {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.pushed == nil {
		return core.PushOptions{}
	}
	return *s.pushed
}

// Prune removes the owner's names of images if keep returns false for them.
func (s *Images) Prune(ctx context.Context, owner core.Owner, keep func(core.Image) bool) (freed uint64, err error) {
	list, err := s.List(ctx, owner)
	if err != nil {
		return 0, err
	}
	for _, img := range list {
		if img.Pinned || keep != nil && keep(img) {
			continue
		}
		if err := s.Remove(ctx, owner, string(img.ID)); err != nil {
			return freed, err
		}
		freed += uint64(img.Size)
	}
	return freed, nil
}

// Usage counts the images.
func (s *Images) Usage(ctx context.Context) (core.ImageUsage, error) {
	list, err := s.List(ctx, "")
	return core.ImageUsage{Path: "/var/lib/longshore/images", Bytes: uint64(len(list)) * 3000, Inodes: uint64(len(list))}, err
}
