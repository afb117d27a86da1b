package worker

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/trust"
)

// TestEvidenceIsBounded: any writer of a repository can attach anything to an image.
func TestEvidenceIsBounded(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	image := digest.FromString("an image")
	var layers []ocispec.Descriptor
	blobs := map[digest.Digest][]byte{}
	add := func(body []byte, annotations map[string]string) {
		d := digest.FromBytes(body)
		blobs[d] = body
		layers = append(layers, ocispec.Descriptor{MediaType: simpleType, Digest: d, Size: int64(len(body)), Annotations: annotations})
	}
	add(make([]byte, trust.MaxSignatureBytes+1), map[string]string{simpleSignature: "AA=="})
	add([]byte("huge"), map[string]string{simpleSignature: "AA==", simpleCert: strings.Repeat("x", trust.MaxEvidenceBytes)})
	for i := range trust.MaxSignatures + 3 {
		add(fmt.Appendf(nil, "payload %d", i), map[string]string{simpleSignature: "AA=="})
	}
	add([]byte("not signed"), nil)
	doc, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": ocispec.MediaTypeImageManifest, "layers": layers})
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(doc)
	blobs[d] = doc
	ref := reg.Push("app", strings.ReplaceAll(image.String(), ":", "-")+".sig", imagetest.Built{
		Manifest: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(doc))}, Blobs: blobs,
	})
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		t.Fatal(err)
	}
	repo, err := registry.Open(t.Context(), named, registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e, err := (&source{repo: repo}).gather(t.Context(), image)
	if err != nil || len(e.Simple) != trust.MaxSignatures || e.Skipped != 5 || string(e.Simple[0].Payload) != "payload 0" {
		t.Errorf("%d signatures, %d skipped, %v", len(e.Simple), e.Skipped, err)
	}
	if claim, err := json.Marshal(trust.Claim{Evidence: e}); err != nil || len(claim) > MaxMessage {
		t.Errorf("the claim has %d bytes, %v", len(claim), err)
	}
	// A blob with another digest is not a signature.
	reg.SetBlob(layers[2].Digest, []byte("payload x"))
	if _, err := (&source{repo: repo}).gather(t.Context(), image); err == nil {
		t.Error("a wrong blob was taken")
	}
}

// FuzzSignatures: an image's referrers, and their content, are read or ignored.
func FuzzSignatures(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":1,"artifactType":"application/vnd.dev.sigstore.bundle.v0.3+json"}]}`))
	f.Add([]byte(`{"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":1,"annotations":{"dev.cosignproject.cosign/signature":"AA=="}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, d := range append(relevant(data), signatureLayers(data)...) {
			if d.Digest.Validate() != nil || d.Size < 0 {
				t.Errorf("%+v", d)
			}
		}
	})
}
