package images

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// parse reads a name, and completes its registry.
func (s *Server) parse(text string) (reference.Named, error) {
	name := text
	if s.DefaultRegistry != "" && s.DefaultRegistry != "docker.io" {
		first, _, several := strings.Cut(text, "/")
		if text != "" && (!several || !strings.ContainsAny(first, ".:") && first != "localhost") {
			name = s.DefaultRegistry + "/" + text
		}
	}
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, invalid.Plainf("%w", err)
	}
	return named, nil
}

// parseTagged is parse of a name and a tag or digest in another parameter. Without a tag, the name's own stays.
func (s *Server) parseTagged(text, tag string) (reference.Named, error) {
	named, err := s.parse(text)
	if err != nil || tag == "" {
		return named, err
	}
	bare := reference.TrimNamed(named)
	if d, derr := digest.Parse(tag); derr == nil {
		named, err = reference.WithDigest(bare, d)
	} else {
		named, err = reference.WithTag(bare, tag)
	}
	if err != nil {
		return nil, invalid.Plainf("%w", err)
	}
	return named, nil
}

// parseNew reads the name of a new image, "" for none.
func (s *Server) parseNew(repo, tag string) (reference.Named, error) {
	if repo == "" {
		return nil, nil
	}
	named, err := s.parseTagged(repo, tag)
	if err != nil {
		return nil, err
	}
	if _, ok := named.(reference.Digested); ok {
		return nil, invalid.Plainf("cannot create a tag with a digest reference")
	}
	if reference.FamiliarName(named) == string(digest.Canonical) {
		return nil, invalid.Plainf("refusing to create an ambiguous tag using digest algorithm as name")
	}
	return reference.TagNameOnly(named), nil
}

// familiar returns a full name of the store as docker shows it.
func familiar(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name // older stores have names as they were typed
	}
	return reference.FamiliarString(named)
}

// familiars is familiar for a list, which is not nil.
func familiars(names []string) []string {
	list := make([]string, 0, len(names))
	for _, n := range names {
		list = append(list, familiar(n))
	}
	return list
}

// repository returns the part of a full name before its tag or digest.
func repository(name string) string {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return name
	}
	return named.Name()
}

// found is an image and how the request names it.
type found struct {
	core.Image
	name string // the full name; "" if the request has an ID
}

// ref returns the engine's reference of the image.
func (f found) ref() string {
	if f.name != "" {
		return f.name
	}
	return f.ID.String()
}

func noImage(text string) error { return errdefs.ErrNotFound.WithMessage("No such image: " + text) }

// find finds an image by its name, its ID or the beginning of that. A name is preferred to the beginning of an ID.
// With DataLoss, of a damaged image, the result is set.
func (s *Server) find(ctx context.Context, text string) (found, error) {
	hex := strings.TrimPrefix(text, "sha256:")
	isHex := hex != "" && core.IsHex(hex) && len(hex) <= digestDigits
	if isHex && len(hex) == digestDigits {
		img, err := s.Engine.Images.Get(ctx, "sha256:"+hex)
		if errdefs.IsNotFound(err) {
			err = noImage("sha256:" + hex)
		}
		return found{Image: img}, err
	}
	named, err := s.parse(text)
	if err != nil {
		return found{}, err
	}
	named = reference.TagNameOnly(named)
	img, err := s.Engine.Images.Get(ctx, named.String())
	if err == nil {
		return found{img, named.String()}, nil
	}
	if !errdefs.IsNotFound(err) {
		return found{img, named.String()}, err
	}
	if isHex {
		if img, ok, err := s.findPrefix(ctx, hex); ok || err != nil {
			return found{Image: img}, err
		}
	}
	return found{}, noImage(reference.FamiliarString(named))
}

// digestDigits is the length of an ID.
const digestDigits = 64

// findPrefix finds the only image with an ID that begins with hex. The engine does not accept very short prefixes.
func (s *Server) findPrefix(ctx context.Context, hex string) (core.Image, bool, error) {
	list, err := s.Engine.Images.List(ctx)
	if err != nil {
		return core.Image{}, false, err
	}
	list = slices.DeleteFunc(list, func(img core.Image) bool { return !strings.HasPrefix(img.ID.Encoded(), hex) })
	if len(list) != 1 {
		return core.Image{}, false, nil // dockerd says the same of none and of several
	}
	return list[0], true, nil
}

// tagsOf returns the owner's names with a tag in a repository, sorted, and their images.
func (s *Server) tagsOf(ctx context.Context, repo reference.Named) (names []string, images map[string]core.Image, err error) {
	list, err := s.Engine.Images.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	images = map[string]core.Image{}
	for _, img := range list {
		for _, n := range img.Names {
			if repository(n) == repo.Name() {
				names, images[n] = append(names, n), img
			}
		}
	}
	slices.Sort(names)
	return names, images, nil
}
