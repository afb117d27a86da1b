package imagetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Signer is a key pair that signs images.
type Signer struct {
	t   *testing.T
	Key *ecdsa.PrivateKey
	// Public is the public key, in PEM.
	Public []byte
}

// NewSigner generates a key pair.
func NewSigner(t *testing.T) Signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(k.Public())
	if err != nil {
		t.Fatal(err)
	}
	return Signer{t, k, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})}
}

// File writes the public key to a file in the test's directory.
func (s Signer) File() string {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "key.pub")
	if err := os.WriteFile(file, s.Public, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

// Sign signs the SHA-256 sum of body.
func (s Signer) Sign(body []byte) []byte {
	s.t.Helper()
	sum := sha256.Sum256(body)
	sig, err := ecdsa.SignASN1(rand.Reader, s.Key, sum[:])
	if err != nil {
		s.t.Fatal(err)
	}
	return sig
}

func (s Signer) signed(body []byte) string {
	s.t.Helper()
	return base64.StdEncoding.EncodeToString(s.Sign(body))
}

// Simple returns a signature in cosign's first layout: a manifest of signatures with the tag
// SignatureTag.
func (s Signer) Simple(of digest.Digest) Built {
	s.t.Helper()
	body := fmt.Appendf(nil, `{"critical":{"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"}}`, of)
	return Manifest(s.t, "", ocispec.Descriptor{
		MediaType: "application/vnd.dev.cosign.simplesigning.v1+json", Annotations: map[string]string{"dev.cosignproject.cosign/signature": s.signed(body)},
	}, body)
}

// Bundle returns a signature in the present layout: a manifest that refers to the image.
// ReferrersTag is the tag of its index where a registry lists no referrers.
func (s Signer) Bundle(of digest.Digest) Built {
	s.t.Helper()
	const media, kind = "application/vnd.dev.sigstore.bundle.v0.3+json", "application/vnd.in-toto+json"
	body := fmt.Appendf(nil, `{"_type":"https://in-toto.io/Statement/v1","subject":[{"digest":{"sha256":%q}}],"predicateType":"https://sigstore.dev/cosign/sign/v1","predicate":{}}`, of.Encoded())
	doc := fmt.Appendf(nil, `{"mediaType":%q,"verificationMaterial":{"publicKey":{"hint":"k"}},"dsseEnvelope":{"payload":%q,"payloadType":%q,"signatures":[{"sig":%q}]}}`,
		media, base64.StdEncoding.EncodeToString(body), kind, s.signed(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(kind), kind, len(body), body)))
	return Manifest(s.t, media, ocispec.Descriptor{MediaType: media}, doc)
}

// Manifest returns a manifest with one layer, as an image of its own.
func Manifest(t *testing.T, artifact string, layer ocispec.Descriptor, body []byte) Built {
	t.Helper()
	layer.Digest, layer.Size = digest.FromBytes(body), int64(len(body))
	doc, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifact,
		Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{layer},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := digest.FromBytes(doc)
	return Built{
		Manifest: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifact, Digest: d, Size: int64(len(doc))},
		Blobs:    map[digest.Digest][]byte{d: doc, layer.Digest: body},
	}
}

// ReferrersTag is the tag of the index of an image's referrers.
func ReferrersTag(d digest.Digest) string { return strings.ReplaceAll(d.String(), ":", "-") }

// SignatureTag is the tag of an image's signatures in cosign's first layout.
func SignatureTag(d digest.Digest) string { return ReferrersTag(d) + ".sig" }
