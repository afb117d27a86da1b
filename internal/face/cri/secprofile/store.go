// Package secprofile pulls seccomp profiles from registries, keeps them, and intersects them with a base profile, so that
// they can only forbid more.
//
// A profile is the only file of an OCI artifact, in the form of Docker or of the OCI specification. The store keeps the
// file by the digest of its content, and the references that led to it; the artifact itself is not kept. Start at
// Store.Pull and Intersect.
package secprofile

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keylock"
	"github.com/longshore/longshore/internal/ocispec"
)

// Bounds of the store.
const (
	maxProfile  = 1 << 20 // bytes of one
	maxProfiles = 1024
	maxRefs     = 256 // of one profile
)

// ErrInvalid is the error of a request or an artifact that no repetition makes a profile.
var ErrInvalid = fmt.Errorf("no usable security profile: %w", errdefs.ErrInvalidArgument)

// Images pulls artifacts, as the engine's Images of one owner does.
type Images interface {
	Pull(ctx context.Context, ref string, opts core.PullOptions) (core.Image, error)
	List(ctx context.Context) ([]core.Image, error)
	Remove(ctx context.Context, ref string) error
}

// Options are the parameters of Open.
type Options struct {
	Dir    string
	Images Images
	// Export writes an artifact of Images, by its ID, as an OCI layout in a tar.
	Export func(ctx context.Context, id string, w io.Writer) error
	// Policy identifies the node's policy on pulls. A profile that was pulled under another one is pulled again.
	Policy string
}

// Store has the pulled profiles.
type Store struct {
	o     Options
	pulls keylock.Map[string] // pulls of one reference
	mu    sync.Mutex          // guards found
	found map[digest.Digest]*entry
}

// entry is a profile. Its JSON is the file of its references.
type entry struct {
	Refs map[string]string `json:"refs"` // by reference: the policy of its latest pull
	Size int64             `json:"size"`
}

// Info describes a profile.
type Info struct {
	Digest digest.Digest
	Refs   []string
	Size   int64
}

// Open reads the profiles in the directory, which it makes. It removes files that are damaged or belong to no profile:
// such profiles are pulled again. It also removes artifacts that an agent left when it died in a pull.
func Open(ctx context.Context, o Options) (*Store, error) {
	left, err := o.Images.List(ctx)
	if err != nil {
		return nil, fmt.Errorf("security profiles: %w", err)
	}
	for _, img := range left {
		if err := o.Images.Remove(ctx, string(img.ID)); err != nil && !errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("security profiles: %w", err)
		}
	}
	s := &Store{o: o, found: map[digest.Digest]*entry{}}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("security profiles: %w", err)
	}
	files, err := os.ReadDir(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("security profiles: %w", err)
	}
	for _, f := range files {
		hex, ok := strings.CutSuffix(f.Name(), refsSuffix)
		if d := digest.NewDigestFromEncoded(digest.SHA256, hex); ok && d.Validate() == nil {
			e, err := s.load(d)
			if err != nil {
				continue
			}
			s.found[d] = e
		}
	}
	for _, f := range files {
		hex, _, _ := strings.Cut(f.Name(), ".")
		if s.found[digest.NewDigestFromEncoded(digest.SHA256, hex)] == nil {
			if err := os.RemoveAll(filepath.Join(o.Dir, f.Name())); err != nil {
				return nil, fmt.Errorf("security profiles: %w", err)
			}
		}
	}
	return s, nil
}

// The names of a profile's files end so.
const (
	bodySuffix = ".json"
	refsSuffix = ".refs"
)

func (s *Store) file(d digest.Digest, suffix string) string {
	return filepath.Join(s.o.Dir, d.Encoded()+suffix)
}

func (s *Store) load(d digest.Digest) (*entry, error) {
	var e entry
	b, err := os.ReadFile(s.file(d, refsSuffix))
	if err == nil {
		err = json.Unmarshal(b, &e)
	}
	if err != nil {
		return nil, err
	}
	_, err = s.read(d)
	return &e, err
}

// read returns a profile's content, which it compares with the digest.
func (s *Store) read(d digest.Digest) ([]byte, error) {
	b, err := os.ReadFile(s.file(d, bodySuffix))
	if err == nil && digest.FromBytes(b) != d {
		err = fmt.Errorf("%s is damaged: %w", d, errdefs.ErrDataLoss)
	}
	return b, err
}

// CheckRef returns ErrInvalid for a reference without the digest of its content.
func CheckRef(ref string) error {
	name, text, _ := strings.Cut(ref, "@")
	d, err := digest.Parse(text)
	switch {
	case ref == "":
		return fmt.Errorf("no reference: %w", ErrInvalid)
	case err != nil || d.Validate() != nil || name == "":
		return fmt.Errorf("%q: the reference needs a digest, as in registry.example.com/profile@sha256:…: %w", ref, ErrInvalid)
	}
	return nil
}

// Pull makes the profile of a reference present. cached means that no registry saw the credentials.
func (s *Store) Pull(ctx context.Context, ref string, opts core.PullOptions) (cached bool, err error) {
	if err := CheckRef(ref); err != nil {
		return false, err
	}
	unlock, err := s.pulls.Lock(ctx, ref)
	if err != nil {
		return false, err
	}
	defer unlock()
	if s.present(ref) {
		return true, nil
	}
	opts.Always = true
	img, err := s.o.Images.Pull(ctx, ref, opts)
	if err != nil {
		return false, err
	}
	body, err := s.content(ctx, img)
	if rerr := s.o.Images.Remove(context.WithoutCancel(ctx), string(img.ID)); rerr != nil && !errdefs.IsNotFound(rerr) {
		err = errors.Join(err, rerr)
	}
	if err != nil {
		return false, err
	}
	return false, s.add(ref, body)
}

// present reports whether the profile of ref was pulled under the present policy, and is whole.
func (s *Store) present(ref string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, e := range s.found {
		if policy, ok := e.Refs[ref]; ok && policy == s.o.Policy {
			_, err := s.read(d)
			return err == nil
		}
	}
	return false
}

// content returns the only file of an artifact, if it is a profile.
func (s *Store) content(ctx context.Context, img core.Image) ([]byte, error) {
	switch {
	case img.Artifact == "":
		return nil, fmt.Errorf("it is an image, and no artifact: %w", ErrInvalid)
	case len(img.Files) != 1:
		return nil, fmt.Errorf("the artifact has %d files, a profile is one: %w", len(img.Files), ErrInvalid)
	case img.Files[0].Size > maxProfile:
		return nil, fmt.Errorf("the profile has %d bytes, at most %d: %w", img.Files[0].Size, maxProfile, ErrInvalid)
	}
	r, w := io.Pipe()
	defer func() { _ = r.Close() }()
	go func() { _ = w.CloseWithError(s.o.Export(ctx, string(img.ID), w)) }()
	body, err := blob(r, img.Files[0].Digest)
	if err != nil {
		return nil, fmt.Errorf("read the artifact: %w", err)
	}
	if err := Check(body); err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrInvalid)
	}
	return body, nil
}

// blob returns one blob of an OCI layout in a tar.
func blob(layout io.Reader, d digest.Digest) ([]byte, error) {
	name := path.Join("blobs", string(d.Algorithm()), d.Encoded())
	for t := tar.NewReader(layout); ; {
		h, err := t.Next()
		if err != nil {
			return nil, err
		}
		if path.Clean(h.Name) == name {
			return io.ReadAll(io.LimitReader(t, maxProfile))
		}
	}
}

// Check returns InvalidArgument for content that is no profile, or one that cannot be intersected with another.
func Check(body []byte) error {
	p, err := Parse(body, &specs.Spec{})
	if err != nil {
		return err
	}
	_, err = read(p)
	return err
}

// Parse reads a profile for a container with the capabilities of s.
func Parse(body []byte, s *specs.Spec) (*specs.LinuxSeccomp, error) {
	of := specs.Spec{Process: s.Process}
	if err := ocispec.LoadSeccomp(&of, body); err != nil {
		return nil, err
	}
	if of.Linux.Seccomp == nil {
		return nil, fmt.Errorf("it has no default action and no system calls: %w", errdefs.ErrInvalidArgument)
	}
	return of.Linux.Seccomp, nil
}

// add stores a profile under a reference.
func (s *Store) add(ref string, body []byte) error {
	d := digest.FromBytes(body)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &entry{Refs: map[string]string{ref: s.o.Policy}, Size: int64(len(body))}
	if old := s.found[d]; old != nil {
		for r, policy := range old.Refs {
			if r != ref {
				e.Refs[r] = policy
			}
		}
	}
	if len(e.Refs) > maxRefs || len(s.found) >= maxProfiles && s.found[d] == nil {
		return fmt.Errorf("at most %d security profiles with %d references each: remove some: %w", maxProfiles, maxRefs, errdefs.ErrResourceExhausted)
	}
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	// The references come last: content without them is removed when the store is opened.
	if err := atomicfile.Write(s.file(d, bodySuffix), body, 0o600); err != nil {
		return err
	}
	if err := atomicfile.Write(s.file(d, refsSuffix), b, 0o600); err != nil {
		return err
	}
	s.found[d] = e
	return nil
}

// Get returns the content of the profile of a reference. It returns NotFound for one that was not pulled.
func (s *Store) Get(ref string) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, e := range s.found {
		if _, ok := e.Refs[ref]; ok {
			return s.read(d)
		}
	}
	return nil, fmt.Errorf("security profile %s was not pulled: %w", ref, errdefs.ErrNotFound)
}

// List returns the profiles, sorted by digest.
func (s *Store) List() (all []Info) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, e := range s.found {
		i := Info{Digest: d, Size: e.Size}
		for ref := range e.Refs {
			i.Refs = append(i.Refs, ref)
		}
		slices.Sort(i.Refs)
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b Info) int { return strings.Compare(string(a.Digest), string(b.Digest)) })
	return all
}

// Remove removes a profile. It succeeds if there is none.
func (s *Store) Remove(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w: %w", d, err, errdefs.ErrInvalidArgument)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.found[d] == nil {
		return nil
	}
	for _, suffix := range []string{refsSuffix, bodySuffix} {
		if err := os.Remove(s.file(d, suffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove security profile %s: %w", d, err)
		}
	}
	delete(s.found, d)
	return nil
}
