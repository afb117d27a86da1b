package worker

import (
	"fmt"
	"runtime"
	"slices"

	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Runs reports whether this node executes programs of the platform that an image's config says: by
// itself, or by a handler of binfmt_misc for one of the emulated architectures. A config that says
// nothing is not judged, nor one of WebAssembly.
func Runs(p ocispec.Platform, emulated []string) bool {
	if p.OS == "" && p.Architecture == "" || isWasm(&p) {
		return true // a module runs wherever there is a runtime for it
	}
	if p.OS == "" {
		p.OS = runtime.GOOS
	}
	// Not the variant: which features of its processor an image needs, its config says wrongly
	// too often.
	here := platforms.Normalize(ocispec.Platform{OS: p.OS, Architecture: p.Architecture})
	return platforms.Default().Match(here) || p.Architecture == "" && p.OS == runtime.GOOS ||
		p.OS == runtime.GOOS && slices.Contains(emulated, here.Architecture)
}

// ForeignPlatform says that an image is for another platform than this node's.
func ForeignPlatform(p ocispec.Platform) string {
	p = platforms.Normalize(p)
	if p.OS != runtime.GOOS {
		return fmt.Sprintf("the image is for %s, and this node is %s/%s", platforms.Format(p), runtime.GOOS, runtime.GOARCH)
	}
	return fmt.Sprintf("the image is for %s, and this node is %s/%s, whose binfmt_misc has no handler for %s programs", platforms.Format(p), runtime.GOOS, runtime.GOARCH, p.Architecture)
}
