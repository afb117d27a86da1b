package image_test

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestPush sends an image from one registry to another by the confined worker, pulls it from there,
// and sends it again, when nothing but the manifest need be sent.
func TestPush(t *testing.T) {
	from, to := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	b := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a", Body: bytes.Repeat([]byte("a"), 5<<20)}}, {{Name: "b", Body: []byte("b")}}}}.Build()
	name := from.Push("lib/app", "v1", b)
	s := open(t, t.TempDir())
	img, err := s.Pull(t.Context(), "cli", name, core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	target, done := to.Host+"/team/copy:v2", int64(0)
	opts := core.PushOptions{Target: target, Progress: func(p core.PullProgress) {
		if p.Blob == "" {
			done = p.Done
		}
	}}
	if err := s.Push(t.Context(), "cli", name, opts); err != nil {
		t.Fatal(err)
	}
	if done == 0 {
		t.Error("its progress was not told")
	}
	to.Requests()
	if err := s.Push(t.Context(), "cli", img.ID.String(), opts); err != nil {
		t.Fatal(err)
	}
	if again := strings.Join(to.Requests(), "\n"); strings.Contains(again, "POST") {
		t.Errorf("what the registry has was sent again:\n%s", again)
	}
	got, err := open(t, t.TempDir()).Pull(t.Context(), "cli", target, core.PullOptions{})
	if err != nil || got.ID != img.ID || got.Digest != img.Digest {
		t.Errorf("pulled %s %s, %v, want %s %s", got.ID, got.Digest, err, img.ID, img.Digest)
	}
	for ref, want := range map[string]error{"nosuch": errdefs.ErrNotFound, img.ID.String(): errdefs.ErrInvalidArgument} {
		if err := s.Push(t.Context(), "cli", ref, core.PushOptions{}); !errors.Is(err, want) {
			t.Errorf("push %s: %v", ref, err)
		}
	}
	if err := s.Push(t.Context(), "cri", name, opts); !errdefs.IsNotFound(err) {
		t.Errorf("another owner's image: %v", err)
	}
	if err := s.Push(t.Context(), "cli", name, core.PushOptions{Target: to.Host + "/x@" + img.Digest.String()}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("to a digest: %v", err)
	}
}

// TestPushAsks sends to a registry that wants credentials, breaks off once, and then wants the
// content somewhere else.
func TestPushAsks(t *testing.T) {
	from, to, thief := imagetest.NewRegistry(t), imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	name := from.Push("lib/app", "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "a", Body: []byte("a")}}}}.Build())
	s := openWith(t, image.Options{Root: t.TempDir()})
	if _, err := s.Pull(t.Context(), "cli", name, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	broken, away := false, false
	to.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if user, password, _ := r.BasicAuth(); user != "me" || password != "pw" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if r.Method == http.MethodPut && !broken {
			broken = true
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		if r.Method == http.MethodPost && away {
			w.Header().Set("Location", "http://"+thief.Host+"/v2/x/blobs/uploads/1")
			w.WriteHeader(http.StatusAccepted)
			return
		}
		next.ServeHTTP(w, r)
	})
	me := core.PushOptions{Target: to.Host + "/a/b:1", Username: "me", Password: "pw"}
	for _, c := range []struct {
		change func(*core.PushOptions)
		want   error
	}{
		{func(o *core.PushOptions) { o.Password = "other" }, errdefs.ErrUnauthenticated},
		{func(o *core.PushOptions) { o.Host = "registry.example.com" }, errdefs.ErrUnauthenticated},
		{func(o *core.PushOptions) { o.Host = to.Host }, nil},
		{func(o *core.PushOptions) { away, o.Target = true, to.Host+"/a/c:1" }, nil}, // the registry has the blobs
	} {
		o := me
		c.change(&o)
		if err := s.Push(t.Context(), "cli", name, o); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", o, err, c.want)
		}
	}
	if !broken {
		t.Error("the request that broke off was not repeated")
	}
	other := from.Push("lib/other", "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "z", Body: []byte("z")}}}}.Build())
	if _, err := s.Pull(t.Context(), "cli", other, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Push(t.Context(), "cli", other, me); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), thief.Host) {
		t.Errorf("content for another host: %v", err)
	}
	if got := thief.Requests(); len(got) > 0 {
		t.Errorf("another host was asked: %v", got)
	}
	if err := s.Login(t.Context(), to.Host, core.PushOptions{Username: "me", Password: "pw"}); err != nil {
		t.Errorf("login: %v", err)
	}
	if err := s.Login(t.Context(), to.Host, core.PushOptions{Username: "me", Password: "no"}); !errdefs.IsUnauthorized(err) {
		t.Errorf("login with another password: %v", err)
	}
	for _, host := range []string{"", "a/b", "http://x", "a b"} {
		if err := s.Login(t.Context(), host, core.PushOptions{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("login to %q: %v", host, err)
		}
	}
}
