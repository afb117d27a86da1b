package worker

import (
	"fmt"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// isAttestation reports whether an entry of an index is no image but says something about one:
// as buildx marks them, or by OCI's type of an artifact, which images of programs do not have.
func isAttestation(m *ocispec.Descriptor) bool {
	switch m.ArtifactType {
	case "", ocispec.MediaTypeImageConfig, images.MediaTypeDockerSchema2Config:
		return isBuildAttestation(m)
	}
	return !isWasm(m.Platform) && !strings.Contains(m.ArtifactType, "wasm")
}

// artifactsOnly reports whether an index has artifacts and no images. Those of an index with images
// say something about the images, as signatures and bills of materials do.
func artifactsOnly(all []ocispec.Descriptor) bool {
	for i := range all {
		if !isAttestation(&all[i]) {
			return false
		}
	}
	return true
}

// isBuildAttestation reports whether buildx marked an entry so.
func isBuildAttestation(m *ocispec.Descriptor) bool {
	return m.Annotations["vnd.docker.reference.type"] == "attestation-manifest"
}

// choose picks an index's best manifest for the platform.
func choose(index ocispec.Descriptor, all []ocispec.Descriptor, match platforms.MatchComparer) (ocispec.Descriptor, error) {
	skip := isAttestation
	if artifactsOnly(all) {
		skip = isBuildAttestation
	}
	var best, module *ocispec.Descriptor
	var have []string
	for i := range all {
		m := &all[i]
		if skip(m) {
			continue
		}
		switch {
		case m.Platform == nil:
			if best == nil { // it names no platform: better than nothing
				best = m
			}
		case match.Match(*m.Platform):
			if best == nil || best.Platform == nil || match.Less(*m.Platform, *best.Platform) {
				best = m
			}
		default:
			have = append(have, platforms.FormatAll(*m.Platform))
			if isWasm(m.Platform) && module == nil {
				module = m
			}
		}
	}
	if best == nil {
		best = module // it runs on every platform
	}
	if best == nil {
		return ocispec.Descriptor{}, fmt.Errorf("index %s has nothing for this platform, only %v; with --platform one of these is fetched all the same, and it runs where binfmt_misc has a handler for it: %w",
			index.Digest, have, errdefs.ErrNotFound)
	}
	return *best, nil
}
