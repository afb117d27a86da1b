package imagetest

import (
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Artifact is an OCI artifact to build, as oras pushes one.
type Artifact struct {
	Type        string // of the manifest; "" leaves it out
	ConfigType  string // "" is OCI's empty config
	Config      []byte
	Files       []ArtifactFile
	Annotations map[string]string
}

// ArtifactFile is a layer of an artifact.
type ArtifactFile struct {
	Title     string // the annotation, "" for none
	Path      string // ModelPack's annotation, "" for none
	MediaType string // "" is OCI's plain layer, as oras writes it
	Body      []byte
}

// Build makes the artifact's blobs. Its ID is the manifest's digest.
func (a Artifact) Build() Built {
	b := Built{Blobs: map[digest.Digest][]byte{}}
	for _, f := range a.Files {
		if f.MediaType == "" {
			f.MediaType = ocispec.MediaTypeImageLayer
		}
		l := b.add(f.MediaType, f.Body)
		l.Annotations = map[string]string{}
		if f.Title != "" {
			l.Annotations[ocispec.AnnotationTitle] = f.Title
		}
		if f.Path != "" {
			l.Annotations["org.cncf.model.filepath"] = f.Path
		}
		b.Layers = append(b.Layers, l)
	}
	config := ocispec.DescriptorEmptyJSON
	if a.ConfigType != "" {
		config = b.add(a.ConfigType, a.Config)
	} else {
		b.add(config.MediaType, config.Data)
	}
	b.Manifest = b.add(ocispec.MediaTypeImageManifest, encode(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: a.Type, Config: config,
		Layers: b.Layers, Annotations: a.Annotations,
	}))
	b.ID = b.Manifest.Digest
	return b
}
