// Package artifact has the rules for OCI artifacts: the layers of their manifests are files, not
// layers of a root filesystem. It names these files, and makes a directory of hard links to the
// layers' blobs. So the disk has the content once.
//
// The names come from the registry and are not trusted. Start reading at Files and at Link.
package artifact

import (
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/weaken"
)

// The bounds of an artifact.
const (
	MaxFiles  = 4096
	maxDirs   = 4096 // all directories that its files' names have
	maxDepth  = 32   // the components of a name
	maxName   = 1024 // a name's bytes
	maxMember = 255  // a component's bytes, as in most filesystems
)

// modelPath names a layer's file in ModelPack's artifacts.
const modelPath = "org.cncf.model.filepath"

// Type returns the type of a manifest that is an artifact, and "" for that of an image: an
// artifact has a config that is none of an image, or says its type and has a layer that is no layer
// of an image. A manifest with a WebAssembly module is an image's.
func Type(artifactType string, config ocispec.Descriptor, layers []ocispec.Descriptor) string {
	for _, l := range layers {
		if wasm.IsLayer(l.MediaType) {
			return ""
		}
	}
	if !isImageConfig(config.MediaType) {
		if artifactType == "" {
			return config.MediaType
		}
		return artifactType
	}
	for _, l := range layers {
		if artifactType != "" && (!images.IsLayerType(l.MediaType) || nameOf(l) != "") {
			return artifactType
		}
	}
	return ""
}

// isImageConfig reports whether a config is that of an image. Old registries lost the type.
func isImageConfig(mediaType string) bool {
	switch mediaType {
	case "", "application/octet-stream", ocispec.MediaTypeImageConfig, images.MediaTypeDockerSchema2Config, wasm.ConfigType:
		return true
	}
	return false
}

func nameOf(l ocispec.Descriptor) string {
	if name := l.Annotations[ocispec.AnnotationTitle]; name != "" {
		return name
	}
	return l.Annotations[modelPath]
}

// Files returns the files of an artifact, in the order of its layers. A layer without a name gets
// one of its digest, and OCI's empty layer without a name is left out. It returns InvalidArgument
// for names that are no paths below a directory, or not all at once, and for too many.
func Files(layers []ocispec.Descriptor) ([]core.ArtifactFile, error) {
	if len(layers) > MaxFiles {
		return nil, fmt.Errorf("the artifact has %d layers, at most %d are files of a volume: %w", len(layers), MaxFiles, errdefs.ErrInvalidArgument)
	}
	files := make([]core.ArtifactFile, 0, len(layers))
	names, dirs := map[string]bool{}, map[string]bool{}
	for _, l := range layers {
		name := nameOf(l)
		switch {
		case name != "":
			var err error
			if name, err = clean(name); err != nil {
				return nil, fmt.Errorf("file of layer %s: %w", l.Digest, err)
			}
		case l.MediaType == ocispec.MediaTypeEmptyJSON:
			continue
		default:
			name = strings.ReplaceAll(l.Digest.String(), ":", "-")
		}
		if names[name] {
			return nil, fmt.Errorf("the artifact has two files with the name %.200q: %w", name, errdefs.ErrInvalidArgument)
		}
		names[name] = true
		for dir := path.Dir(name); dir != "." && !dirs[dir]; dir = path.Dir(dir) {
			if dirs[dir] = true; len(dirs) > maxDirs {
				return nil, fmt.Errorf("the names of the artifact's files have more than %d directories: %w", maxDirs, errdefs.ErrInvalidArgument)
			}
		}
		files = append(files, core.ArtifactFile{Name: name, Digest: l.Digest, Size: l.Size, MediaType: l.MediaType})
	}
	for name := range names {
		if dirs[name] {
			return nil, fmt.Errorf("the artifact's file %.200q is a directory of another one of its files: %w", name, errdefs.ErrInvalidArgument)
		}
	}
	return files, nil
}

// clean returns a name in its shortest form. It is a path below a directory then.
func clean(name string) (string, error) {
	bad := func(why string) (string, error) {
		return "", fmt.Errorf("name %.200q %s: %w", name, why, errdefs.ErrInvalidArgument)
	}
	if weaken.Off(weaken.ArtifactNames) {
		return name, nil
	}
	switch {
	case len(name) > maxName:
		return bad(fmt.Sprintf("has %d bytes, at most %d are supported", len(name), maxName))
	case !utf8.ValidString(name):
		return bad("is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return bad("has control characters")
	case strings.HasPrefix(name, "/"):
		return bad("is an absolute path")
	case strings.HasSuffix(name, "/"):
		return bad("is that of a directory")
	}
	members := strings.Split(name, "/")
	if len(members) > maxDepth {
		return bad(fmt.Sprintf("has %d directories, at most %d are supported", len(members)-1, maxDepth-1))
	}
	for _, m := range members {
		if m == ".." {
			return bad("has a part .., which could lead out of the volume")
		}
		if len(m) > maxMember {
			return bad(fmt.Sprintf("has a part of %d bytes, at most %d are supported", len(m), maxMember))
		}
	}
	if name = path.Clean(name); name == "." {
		return bad("is that of a directory")
	}
	return name, nil
}

// Check refuses layers that cannot be fetched.
func Check(layers []ocispec.Descriptor, maxBytes int64) error {
	for _, l := range layers {
		switch {
		case l.Digest.Validate() != nil || l.Digest.Algorithm() != digest.SHA256 || l.Size < 0:
			return fmt.Errorf("layer %.200q of %d bytes: %w", l.Digest, l.Size, errdefs.ErrInvalidArgument)
		case maxBytes > 0 && l.Size > maxBytes:
			return fmt.Errorf("layer %s has %d bytes, more than images.max_layer_bytes (%d): %w", l.Digest, l.Size, maxBytes, errdefs.ErrResourceExhausted)
		}
	}
	return nil
}
