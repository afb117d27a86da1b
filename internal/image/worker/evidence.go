package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/trust"
)

// The media types and annotations that sigstore's clients write to registries.
const (
	bundleType      = "application/vnd.dev.sigstore.bundle"
	bundlePredicate = "dev.sigstore.bundle.predicateType"
	signedPredicate = "https://sigstore.dev/cosign/sign/v1"
	simpleType      = "application/vnd.dev.cosign.simplesigning.v1+json"
	simpleArtifact  = "application/vnd.dev.cosign.artifact.sig.v1+json"
	simpleSignature = "dev.cosignproject.cosign/signature"
	simpleCert      = "dev.sigstore.cosign/certificate"
	simpleLog       = "dev.sigstore.cosign/bundle"
	simpleTimestamp = "dev.sigstore.cosign/rfc3161timestamp"
	maxReferrers    = 256
	simpleTagSuffix = ".sig"
)

// gather looks for an image's signatures in all places where they may be: the manifests that
// refer to it, and the tag that cosign derives from its digest. It verifies nothing.
func (s *source) gather(ctx context.Context, image digest.Digest) (trust.Evidence, error) {
	g := &gatherer{repo: s.repo}
	refs, err := s.repo.Referrers(ctx, image)
	if err != nil {
		return g.found, fmt.Errorf("look for signatures: %w", err)
	}
	for _, d := range relevant(refs) {
		if err := g.referrer(ctx, d); err != nil {
			return g.found, fmt.Errorf("read signature: %w", err)
		}
	}
	desc, body, err := s.repo.Resolve(ctx, strings.ReplaceAll(image.String(), ":", "-")+simpleTagSuffix)
	if absent(err) {
		return g.found, nil
	}
	if err == nil && body == nil {
		body, err = s.repo.Manifest(ctx, desc)
	}
	if err == nil {
		err = g.layers(ctx, body)
	}
	if err != nil {
		return g.found, fmt.Errorf("read signatures: %w", err)
	}
	return g.found, nil
}

// absent reports whether err means that there is no such thing.
func absent(err error) bool {
	var se *registry.StatusError
	return errdefs.IsNotFound(err) || errors.As(err, &se) && se.Status == http.StatusBadRequest
}

// relevant returns those descriptors of an index of referrers that may be signatures; of a
// malformed index none.
func relevant(index []byte) (out []ocispec.Descriptor) {
	var doc ocispec.Index
	if json.Unmarshal(index, &doc) != nil {
		return nil
	}
	for _, d := range doc.Manifests[:min(len(doc.Manifests), maxReferrers)] {
		if d.Digest.Validate() != nil || d.Digest.Algorithm() != digest.SHA256 || d.Size < 0 || d.Size > registry.MaxManifest {
			continue
		}
		said, ok := d.Annotations[bundlePredicate]
		if strings.HasPrefix(d.ArtifactType, bundleType) && (!ok || said == signedPredicate) || d.ArtifactType == simpleArtifact {
			out = append(out, d)
		}
	}
	return out
}

// gatherer collects signatures within policy's limits.
type gatherer struct {
	repo  *registry.Repository
	found trust.Evidence
	size  int
}

func (g *gatherer) referrer(ctx context.Context, desc ocispec.Descriptor) error {
	body, err := g.repo.Manifest(ctx, ocispec.Descriptor{Digest: desc.Digest})
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return g.layers(ctx, body)
}

// layers reads the signatures in the layers of a manifest.
func (g *gatherer) layers(ctx context.Context, manifest []byte) error {
	for _, l := range signatureLayers(manifest) {
		isBundle := l.MediaType != simpleType
		have := len(g.found.Simple)
		if isBundle {
			have = len(g.found.Bundles)
		}
		if have >= trust.MaxSignatures || l.Size > trust.MaxSignatureBytes {
			g.found.Skipped++
			continue
		}
		body, err := g.blob(ctx, l)
		if absent(err) {
			continue
		}
		if err != nil {
			return err
		}
		s := trust.Simple{
			Payload: body, Signature: l.Annotations[simpleSignature], Certificate: l.Annotations[simpleCert],
			Log: l.Annotations[simpleLog], Timestamp: l.Annotations[simpleTimestamp],
		}
		if g.size += s.Size(); g.size > trust.MaxEvidenceBytes {
			g.found.Skipped++
			g.size -= s.Size()
			continue
		}
		if isBundle {
			g.found.Bundles = append(g.found.Bundles, body)
		} else {
			g.found.Simple = append(g.found.Simple, s)
		}
	}
	return nil
}

// signatureLayers returns the layers of a manifest with the type of a signature; of a malformed
// manifest none.
func signatureLayers(manifest []byte) (out []ocispec.Descriptor) {
	var doc manifestDoc
	if json.Unmarshal(manifest, &doc) != nil {
		return nil
	}
	for _, l := range doc.Layers {
		ours := l.MediaType == simpleType && l.Annotations[simpleSignature] != "" || strings.HasPrefix(l.MediaType, bundleType)
		if ours && l.Digest.Validate() == nil && l.Digest.Algorithm() == digest.SHA256 && l.Size > 0 {
			out = append(out, l)
		}
	}
	return out
}

// blob reads a small blob into memory and checks its digest.
func (g *gatherer) blob(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	body, err := g.repo.Blob(ctx, desc, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	data, err := io.ReadAll(io.LimitReader(body, desc.Size+1))
	if err != nil {
		return nil, err
	}
	if digest.FromBytes(data) != desc.Digest {
		return nil, fmt.Errorf("signature %s: its content has another digest: %w", desc.Digest, errdefs.ErrDataLoss)
	}
	return data, nil
}
