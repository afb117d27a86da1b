package worker

import (
	"testing"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// TestTheImageOfAnIndexIsChosen has entries before the image that are no image of this platform.
func TestTheImageOfAnIndexIsChosen(t *testing.T) {
	here := platforms.DefaultSpec()
	image := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: "sha256:image"}
	withPlatform := image
	withPlatform.Platform = &here
	for name, first := range map[string]ocispec.Descriptor{
		"buildx's":       {Platform: &ocispec.Platform{OS: "unknown", Architecture: "unknown"}, Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}},
		"an artifact":    {ArtifactType: "application/vnd.in-toto+json"},
		"for this place": {ArtifactType: "application/spdx+json", Platform: &here},
	} {
		first.MediaType, first.Digest = ocispec.MediaTypeImageManifest, "sha256:attestation"
		for _, second := range []ocispec.Descriptor{image, withPlatform} {
			got, err := choose(ocispec.Descriptor{}, []ocispec.Descriptor{first, second}, platforms.Default())
			if err != nil || got.Digest != image.Digest {
				t.Errorf("%s, then an image of platform %v: %s, %v", name, second.Platform, got.Digest, err)
			}
		}
		// An artifact is chosen from an index without images, but never buildx's attestation.
		if got, err := choose(ocispec.Descriptor{}, []ocispec.Descriptor{first}, platforms.Default()); (err == nil) != (name != "buildx's") {
			t.Errorf("%s alone: %s, %v", name, got.Digest, err)
		}
	}
}
