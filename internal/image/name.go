package image

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/hostname"
)

const dockerHub = "docker.io"

// normalize completes a name: the registry in its normal form, library/ on Docker Hub, the tag latest. A name with
// both tag and digest keeps the digest.
func normalize(ref, defaultRegistry string) (reference.Named, error) {
	if defaultRegistry != "" && defaultRegistry != dockerHub && ref != "" {
		first, _, slash := strings.Cut(ref, "/")
		if !slash || (!strings.ContainsAny(first, ".:") && first != "localhost") {
			ref = defaultRegistry + "/" + ref
		}
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err == nil {
		named, err = hostname.Image(named)
	}
	if err != nil {
		return nil, fmt.Errorf("image name %q: %w: %w", ref, errdefs.ErrInvalidArgument, err)
	}
	if d, ok := named.(reference.Digested); ok {
		if d.Digest().Algorithm() != digest.SHA256 {
			return nil, fmt.Errorf("image name %q: only sha256 is supported: %w", ref, errdefs.ErrInvalidArgument)
		}
		return reference.WithDigest(reference.TrimNamed(named), d.Digest())
	}
	return reference.TagNameOnly(named), nil
}

// idPrefix returns the hex digits if ref may be the beginning of an image ID, and "" otherwise.
func idPrefix(ref string) string {
	hex := strings.TrimPrefix(ref, "sha256:")
	if len(hex) >= 3 && len(hex) <= 64 && core.IsHex(hex) {
		return hex
	}
	return ""
}

// repository returns the part of a stored name before tag or digest; "" for an image without a
// name.
func repository(name string) string {
	if at := strings.IndexByte(name, '@'); at >= 0 {
		return name[:at]
	}
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		return name[:colon]
	}
	return name
}

// storedAs returns the name under which an owner has an image, which versions before registries had
// a normal form stored as it was typed; false when there is none.
func (o *ownerRecord) storedAs(name string) (string, bool) {
	if _, ok := o.names[name]; ok {
		return name, true
	}
	for stored := range o.names {
		if hostname.Stored(stored) == name {
			return stored, true
		}
	}
	return "", false
}

func isDigestName(name string) bool { return strings.Contains(name, "@") }
