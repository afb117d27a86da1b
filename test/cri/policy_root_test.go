package cri

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestImagePolicy has the real agent, its worker and longshore-verify decide
// about a signed and an unsigned image.
func TestImagePolicy(t *testing.T) { roottest.Run(t, imagePolicy) }

func imagePolicy(t *testing.T) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := filepath.Join(t.TempDir(), "cosign.pub")
	if err := os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	reg := imagetest.NewRegistry(t)
	n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf(`
[[images.policy.rules]]
match = ["%s/team/*"]
verdict = "signed"
keys = [%q]
`, reg.Host, public)})
	built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "hello", Body: []byte("hello")}}}}.Build()
	ref := reg.Push("team/app", "v1", built)
	pull := func(ref string) error {
		_, err := n.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}})
		return err
	}
	err = pull(ref)
	if status.Code(err) != codes.Unknown || !strings.HasPrefix(status.Convert(err).Message(), "SignatureValidationFailed: ") {
		t.Errorf("unsigned: %v", err)
	}
	if s, err := n.Images.ImageStatus(t.Context(), &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}}); err != nil || s.GetImage() != nil {
		t.Errorf("an image that was refused is there: %v, %v", s, err)
	}
	if err := pull(reg.Push("other/app", "v1", built)); err != nil {
		t.Errorf("where no rule is: %v", err)
	}
	sign(t, key, reg, "team/app", built.Manifest.Digest)
	if err := pull(ref); err != nil {
		t.Errorf("signed: %v", err)
	}
	if log := n.LogTail(64 << 10); !strings.Contains(log, "image signature verified") {
		t.Error("the log does not say by whom")
	}
	n.Check()
}

// sign puts a signature beside an image, in cosign's first layout.
func sign(t *testing.T, key *ecdsa.PrivateKey, reg *imagetest.Registry, repo string, image digest.Digest) {
	t.Helper()
	payload := fmt.Appendf(nil, `{"critical":{"image":{"docker-manifest-digest":%q},"type":"cosign container image signature"}}`, image)
	sum := sha256.Sum256(payload)
	sig, err := ecdsa.SignASN1(rand.Reader, key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	doc := fmt.Appendf(nil, `{"schemaVersion":2,"layers":[{"mediaType":"application/vnd.dev.cosign.simplesigning.v1+json","digest":%q,"size":%d,"annotations":{"dev.cosignproject.cosign/signature":%q}}]}`,
		digest.FromBytes(payload), len(payload), base64.StdEncoding.EncodeToString(sig))
	d := digest.FromBytes(doc)
	reg.Push(repo, strings.ReplaceAll(image.String(), ":", "-")+".sig", imagetest.Built{
		Manifest: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(doc))},
		Blobs:    map[digest.Digest][]byte{d: doc, digest.FromBytes(payload): payload},
	})
}
