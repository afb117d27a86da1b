package image

import (
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/image/worker"
)

// imageID returns the digest by which an image is known: its config's. Tools that push a module as an artifact often push an empty config,
// which all such artifacts have: those are known by their manifests.
func imageID(img worker.Image) digest.Digest {
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

// ofModule makes the config that of a container whose program is the module. What a config says of arguments stays.
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
