package cri

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestImagePolicy has the real agent, its worker and longshore-verify decide
// about a signed and an unsigned image.
func TestImagePolicy(t *testing.T) { roottest.Run(t, imagePolicy) }

func imagePolicy(t *testing.T) {
	t.Helper()
	signer := imagetest.NewSigner(t)
	reg := imagetest.NewRegistry(t)
	n := nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf(`
[[images.policy.rules]]
match = ["%s/team/*"]
verdict = "signed"
keys = [%q]
`, reg.Host, signer.File())})
	built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "hello", Body: []byte("hello")}}}}.Build()
	ref := reg.Push("team/app", "v1", built)
	pull := func(ref string) error {
		_, err := n.Images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: ref}})
		return err
	}
	err := pull(ref)
	if status.Code(err) != codes.Unknown || !strings.HasPrefix(status.Convert(err).Message(), "SignatureValidationFailed: ") {
		t.Errorf("unsigned: %v", err)
	}
	if s, err := n.Images.ImageStatus(t.Context(), &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}}); err != nil || s.GetImage() != nil {
		t.Errorf("an image that was refused is there: %v, %v", s, err)
	}
	if err := pull(reg.Push("other/app", "v1", built)); err != nil {
		t.Errorf("where no rule is: %v", err)
	}
	reg.Push("team/app", imagetest.SignatureTag(built.Manifest.Digest), signer.Simple(built.Manifest.Digest))
	if err := pull(ref); err != nil {
		t.Errorf("signed: %v", err)
	}
	if log := n.LogTail(64 << 10); !strings.Contains(log, "image signature verified") {
		t.Error("the log does not say by whom")
	}
	n.Check()
}
