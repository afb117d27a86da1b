package cri

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/convert"
)

// TestADamagedImageIsRemoved: kubelet collects it as any other.
func TestADamagedImageIsRemoved(t *testing.T) {
	n := newTestNode(t)
	for _, byID := range []bool{false, true} {
		n.Images.Offer("example.com/app:1", imagespec.ImageConfig{User: "1000:1000"}, nil)
		r, err := n.images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "example.com/app:1"}})
		if err != nil {
			t.Fatal(err)
		}
		n.Images.Damage(core.OwnerCRI, r.ImageRef)
		req := &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: "example.com/app:1"}}
		if byID {
			req.Image.Image = r.ImageRef
		}
		if _, err := n.images.RemoveImage(t.Context(), req); err != nil {
			t.Errorf("remove %s: %v", req.Image.Image, err)
		}
		if s, err := n.images.ImageStatus(t.Context(), &v1.ImageStatusRequest{Image: req.Image}); err != nil || s.Image != nil {
			t.Errorf("after the removal: %v, %v", s, err)
		}
	}
}

func TestImages(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	n.Images.Offer("example.com/app:1", imagespec.ImageConfig{User: "1000:1000"}, nil)
	r, err := n.images.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "example.com/app:1"}})
	if err != nil {
		t.Fatal(err)
	}
	id := r.ImageRef
	if err := n.As(core.OwnerCRI).Images.Tag(ctx, id, "example.com/app:2"); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"example.com/app:1", "example.com/app:2", id, strings.TrimPrefix(id, "sha256:")[:12]} {
		s, err := n.images.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: ref}, Verbose: true})
		if err != nil || s.Image.GetId() != id || len(s.Image.RepoTags) != 2 || len(s.Image.RepoDigests) != 1 || s.Image.Uid.GetValue() != 1000 || s.Image.Size == 0 || s.Info["info"] == "" {
			t.Errorf("%s: %v, %v", ref, s, err)
		}
	}
	if s, err := n.images.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: "redis:7"}}); err != nil || s.Image.Username != "www-data" || s.Image.Uid != nil {
		t.Errorf("%v, %v", s, err)
	}
	if s, err := n.images.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: "absent"}}); err != nil || s.Image != nil {
		t.Errorf("absent: %v, %v", s, err)
	}
	list := func(f *v1.ImageFilter) []*v1.Image {
		t.Helper()
		l, err := n.images.ListImages(ctx, &v1.ListImagesRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		s, err := n.images.StreamImages(ctx, &v1.StreamImagesRequest{Filter: f})
		if err != nil {
			t.Fatal(err)
		}
		var streamed []*v1.Image
		for m, err := s.Recv(); !errors.Is(err, io.EOF); m, err = s.Recv() {
			if err != nil {
				t.Fatal(err)
			}
			streamed = append(streamed, m.Images...)
		}
		if d := cmp.Diff(l.Images, streamed, protocmp.Transform()); d != "" {
			t.Errorf("listed and streamed differ:\n%s", d)
		}
		return l.Images
	}
	if l := list(nil); len(l) != 2 {
		t.Errorf("%v", l)
	}
	if l := list(&v1.ImageFilter{Image: &v1.ImageSpec{Image: "example.com/app:2"}}); len(l) != 1 || l[0].Id != id {
		t.Errorf("%v", l)
	}
	if l := list(&v1.ImageFilter{Image: &v1.ImageSpec{Image: "absent"}}); len(l) != 0 {
		t.Errorf("%v", l)
	}
	// One tag takes all of them away.
	if _, err := n.images.RemoveImage(ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: "example.com/app:1"}}); err != nil {
		t.Fatal(err)
	}
	if l := list(nil); len(l) != 1 || l[0].Id == id {
		t.Errorf("after the removal: %v", l)
	}
	// The command line's own images are none of kubelet's business.
	if l, err := n.As(core.OwnerCLI).Images.List(ctx); err != nil || len(l) != 1 {
		t.Errorf("the other owner's: %v, %v", l, err)
	}
	fs, err := n.images.ImageFsInfo(ctx, &v1.ImageFsInfoRequest{})
	if err != nil || len(fs.ImageFilesystems) != 1 || len(fs.ContainerFilesystems) != 1 || fs.ImageFilesystems[0].FsId.Mountpoint == "" || fs.ImageFilesystems[0].Timestamp == 0 {
		t.Errorf("%v, %v", fs, err)
	}
}

func TestCredentials(t *testing.T) {
	for name, tt := range map[string]struct {
		ref  string
		auth *v1.AuthConfig
		want core.PullOptions
	}{
		"none":             {"redis", nil, core.PullOptions{}},
		"plain":            {"redis", &v1.AuthConfig{Username: "u", Password: "p"}, core.PullOptions{Username: "u", Password: "p"}},
		"auth":             {"redis", &v1.AuthConfig{Auth: "dTpwOnc="}, core.PullOptions{Username: "u", Password: "p:w"}},
		"tokens":           {"redis", &v1.AuthConfig{IdentityToken: "i", RegistryToken: "r"}, core.PullOptions{Token: "i", Bearer: "r"}},
		"docker by a name": {"docker.io/library/redis", &v1.AuthConfig{Username: "u", ServerAddress: "https://index.docker.io/v1/"}, core.PullOptions{Username: "u"}},
		"its registry":     {"r.example:5000/a", &v1.AuthConfig{Username: "u", ServerAddress: "R.example:5000"}, core.PullOptions{Username: "u"}},
		"another registry": {"r.example/a", &v1.AuthConfig{Username: "u", Password: "p", ServerAddress: "https://other.example"}, core.PullOptions{}},
		"a short name":     {"redis", &v1.AuthConfig{Username: "u", ServerAddress: "https://r.example"}, core.PullOptions{Username: "u"}},
	} {
		tt.want.Always = true
		got, err := convert.PullOptions(tt.ref, tt.auth)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
	for _, bad := range []string{"%%", "bm9jb2xvbg==", strings.Repeat("A", 1<<17)} {
		if _, err := convert.PullOptions("x", &v1.AuthConfig{Auth: bad}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.20s: %v", bad, err)
		}
	}
}

// TestARefusedImageIsSaidAsKubeletKnowsIt: kubelet takes the pod's reason from the text's
// beginning, and sees the bare text only with Unknown.
func TestARefusedImageIsSaidAsKubeletKnowsIt(t *testing.T) {
	n := newTestNode(t)
	n.Images.Fail(func(call string) error {
		if call == "Pull" {
			return fmt.Errorf("pull x: %w: no signature: %w", core.ErrImageRefused, errdefs.ErrFailedPrecondition)
		}
		return nil
	})
	_, err := n.images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "x"}})
	wantCode(t, "refused", err, codes.Unknown)
	if text := status.Convert(err).Message(); !strings.HasPrefix(text, v1.SignatureValidationFailed+": ") || !strings.Contains(text, "no signature") {
		t.Errorf("says %q", text)
	}
}

// TestPinnedImages: pins are listed, and kubelet collects no pinned image.
func TestPinnedImages(t *testing.T) {
	n := newTestNode(t, func(c *Config) { c.PinnedImages = []string{"docker.io/library/red*:7", "docker.io/*:1"} })
	n.Images.Offer("example.com/app:1", imagespec.ImageConfig{}, nil)
	n.Images.Offer("example.com/lib:1", imagespec.ImageConfig{User: "x"}, nil)
	if _, err := n.images.PullImage(t.Context(), &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "example.com/app:1"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.As(core.OwnerCRI).Images.Pull(t.Context(), "example.com/lib:1", core.PullOptions{Pin: true}); err != nil {
		t.Fatal(err)
	}
	list, err := n.images.ListImages(t.Context(), &v1.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, i := range list.Images {
		got[i.RepoTags[0]] = i.Pinned
	}
	want := map[string]bool{"docker.io/library/redis:7": true, "example.com/app:1": false, "example.com/lib:1": true}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("pinned (-want +got):\n%s", d)
	}
	s, err := n.images.ImageStatus(t.Context(), &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: "redis:7"}})
	if err != nil || !s.Image.GetPinned() {
		t.Errorf("status %v, %v", s, err)
	}
	// A pin is a wish only: a removal succeeds.
	if _, err := n.images.RemoveImage(t.Context(), &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: "redis:7"}}); err != nil {
		t.Error(err)
	}
}

// TestImagesAreTheSameForAllHandlers: a request may name an existing handler, and neither the image
// nor its containers show it: kubelet compares these two to find images in use.
func TestImagesAreTheSameForAllHandlers(t *testing.T) {
	n := newTestNode(t, func(c *Config) { c.Handlers["class"] = "fake" })
	ctx := t.Context()
	n.Images.Offer("example.com/app:1", imagespec.ImageConfig{Cmd: []string{"x"}}, nil)
	pull := func(handler string) error {
		_, err := n.images.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "example.com/app:1", RuntimeHandler: handler}})
		return err
	}
	wantCode(t, "an unknown handler", pull("nope"), codes.InvalidArgument)
	if s, err := n.images.ImageStatus(ctx, &v1.ImageStatusRequest{Image: &v1.ImageSpec{Image: "example.com/app:1"}}); err != nil || s.Image != nil {
		t.Errorf("was pulled: %v, %v", s, err)
	}
	for _, handler := range []string{"", "fake", "class"} {
		if err := pull(handler); err != nil {
			t.Errorf("%q: %v", handler, err)
		}
	}
	req := n.containerRequest(n.pod(t, "p"), "c")
	req.Config.Image = &v1.ImageSpec{Image: "example.com/app:1", RuntimeHandler: "class"}
	c, err := n.CreateContainer(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	list, err := n.ListContainers(ctx, &v1.ListContainersRequest{})
	if err != nil || len(list.Containers) != 1 {
		t.Fatal(list, err)
	}
	images, err := n.images.ListImages(ctx, &v1.ListImagesRequest{Filter: &v1.ImageFilter{Image: &v1.ImageSpec{Image: "example.com/app:1"}}})
	if err != nil || len(images.Images) != 1 {
		t.Fatal(images, err)
	}
	for what, got := range map[string]string{
		"listed": list.Containers[0].Image.RuntimeHandler, "status": n.status(t, c.ContainerId).Image.RuntimeHandler, "image": images.Images[0].Spec.GetRuntimeHandler(),
	} {
		if got != "" {
			t.Errorf("%s: handler %q", what, got)
		}
	}
	if again, err := n.CreateContainer(ctx, req); err != nil || again.ContainerId != c.ContainerId {
		t.Errorf("the retry: %v, %v", again, err)
	}
}
