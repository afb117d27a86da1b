package image

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/artifact"
	"github.com/longshore/longshore/internal/image/worker"
)

// artifactManifest reads an artifact's manifest and the names of its files.
func artifactManifest(s *Store, rec *imageRecord) (m ocispec.Manifest, files []core.ArtifactFile, err error) {
	body, err := content.ReadBlob(context.Background(), s.content, rec.Manifest)
	if err == nil {
		err = json.Unmarshal(body, &m)
	}
	if err == nil {
		files, err = artifact.Files(m.Layers)
	}
	if err != nil {
		err = fmt.Errorf("read manifest of artifact %s: %w: pull it again: %v", rec.ID, errdefs.ErrDataLoss, err) //nolint:errorlint // one class only
	}
	return m, files, err
}

// describeArtifact adds the type, files, annotations and time of an artifact to img.
func describeArtifact(s *Store, rec *imageRecord, img *core.Image) error {
	img.Artifact = rec.Artifact
	m, files, err := artifactManifest(s, rec)
	img.Files, img.Annotations = files, m.Annotations
	if at, terr := time.Parse(time.RFC3339Nano, m.Annotations[ocispec.AnnotationCreated]); terr == nil {
		img.Config.Created = &at
	}
	return err
}

// verifyArtifact compares the directory of an artifact with its manifest.
func verifyArtifact(s *Store, chain digest.Digest, l layerRecord) ([]string, error) {
	s.mu.RLock()
	var rec *imageRecord
	for _, r := range s.rec.images {
		if r.Artifact != "" && slices.Contains(r.Chains, chain) {
			rec = r
		}
	}
	s.mu.RUnlock()
	if rec == nil {
		return nil, fmt.Errorf("its artifact was removed: %w", errdefs.ErrNotFound)
	}
	_, files, err := artifactManifest(s, rec)
	if err != nil {
		return nil, fmt.Errorf("%v: %w", err, errdefs.ErrNotFound) //nolint:errorlint // the manifest's blob is reported by itself
	}
	return worker.Artifacts(s.root).Verify(path.Join(worker.LayerDir, l.Dir), files)
}
