package attack

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/weaken"
)

// registryAttempts are those of a registry, and of an image's author.
func registryAttempts() []attempt {
	evil := []byte("evil")
	var all []attempt
	// outside is replaced by a directory of the host's, below which nothing may come.
	for name, layers := range map[string][][]imagetest.File{
		"a layer with dots":              {{{Name: "../../../../../../..OUTSIDE/evil", Body: evil}}},
		"a layer with dots below":        {{{Name: "etc/"}, {Name: "etc/../../evil", Body: evil}}},
		"a layer with an absolute name":  {{{Name: "OUTSIDE/evil", Body: evil}}},
		"a layer through a link":         {{{Name: "way", Link: "OUTSIDE"}, {Name: "way/evil", Body: evil}}},
		"a later layer through a link":   {{{Name: "way", Link: "OUTSIDE"}}, {{Name: "way/evil", Body: evil}}},
		"a layer with a hard link":       {{{Name: "evil", Hard: "../../../../../../..OUTSIDE"}}},
		"a hard link through a link":     {{{Name: "way", Link: "OUTSIDE/.."}, {Name: "shadow", Hard: "way/secret"}}},
		"a whiteout above the root":      {{{Name: "etc/.wh..."}}},
		"a whiteout through a link":      {{{Name: "way", Link: "OUTSIDE"}}, {{Name: "way/.wh.kept"}}},
		"an opaque mark through a link":  {{{Name: "way", Link: "OUTSIDE"}}, {{Name: "way/.wh..wh..opq"}}},
		"overlay's own attributes":       {{{Name: "etc/", Xattrs: map[string]string{"trusted.overlay.redirect": "OUTSIDE"}}}},
		"a layer that becomes too large": {{{Name: "zeros", Body: make([]byte, 64<<20)}}},
	} {
		all = append(all, attempt{name: name, actor: registry, run: func(t *testing.T, w *world) result { return w.hostileLayers(t, layers) }})
	}
	serves := func(name string, does func(b imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler)) {
		all = append(all, attempt{name: name, actor: registry, run: func(t *testing.T, w *world) result { return w.hostileRegistry(t, does) }})
	}
	serves("other bytes under a digest", func(b imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/blobs/"+b.Layers[0].Digest.String(), func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write(make([]byte, b.Layers[0].Size)) })
	})
	serves("a blob without end", func(b imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/blobs/"+b.Layers[0].Digest.String(), endless)
	})
	serves("a manifest without end", func(imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/manifests/", func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			endless(rw, r)
		})
	})
	serves("a config without end", func(b imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/blobs/"+b.ID.String(), endless)
	})
	serves("an error without end", func(imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/", func(rw http.ResponseWriter, r *http.Request) {
			rw.WriteHeader(http.StatusForbidden)
			endless(rw, r)
		})
	})
	serves("silence", func(imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/blobs/", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	})
	serves("redirects in a circle", func(imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/", func(rw http.ResponseWriter, r *http.Request) {
			http.Redirect(rw, r, r.URL.Path, http.StatusTemporaryRedirect)
		})
	})
	serves("a redirect to a file", func(imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/blobs/", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Location", "file:///etc/shadow")
			rw.WriteHeader(http.StatusTemporaryRedirect)
		})
	})
	serves("a tag that is a path", func(imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler) {
		return onPath("/manifests/", func(rw http.ResponseWriter, _ *http.Request) {
			rw.Header().Set("Docker-Content-Digest", "sha256:../../../../../../etc/shadow")
			rw.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
			_, _ = rw.Write([]byte(`{"schemaVersion":2,"config":{"digest":"sha256:../../etc/shadow","size":1},"layers":[{"digest":"../../../etc/shadow","size":1}]}`))
		})
	})
	return append(all,
		attempt{name: "an index in an index in an index", actor: registry, run: deepIndex},
		attempt{name: "a layer with a device", actor: registry, run: deviceLayer},
		attempt{name: "credentials by a redirect", actor: registry, weak: weaken.RegistryCredentials, run: redirectedCredentials},
		attempt{name: "credentials for another host's realm", actor: registry, weak: weaken.RegistryCredentials, run: otherRealm},
		attempt{name: "layers that hold up others", actor: registry, weak: weaken.PullSlots, run: slowRegistry},
		attempt{name: "a layer that drips", actor: registry, weak: weaken.RegistryRate, long: true, run: slowLayer},
		attempt{name: "a file for each byte", actor: registry, weak: weaken.LayerEntries, run: manyFiles},
		attempt{name: "an artifact's file in another image", actor: registry, weak: weaken.ArtifactNames, run: strayFile},
	)
}

func onPath(part string, f func(http.ResponseWriter, *http.Request)) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, part) {
			f(rw, r)
			return
		}
		next.ServeHTTP(rw, r)
	}
}

// endless writes until nobody reads, or a gibibyte.
func endless(rw http.ResponseWriter, _ *http.Request) {
	for range 1 << 14 {
		if _, err := rw.Write(make([]byte, 64<<10)); err != nil {
			return
		}
	}
}

func (w *world) pull(t *testing.T, ref string) error {
	t.Helper()
	_, err := w.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	return err
}

func (w *world) forget(t *testing.T, ref string) {
	t.Helper()
	_, _ = w.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
}

// hostileLayers pulls an image that wants to touch files outside of its root.
func (w *world) hostileLayers(t *testing.T, layers [][]imagetest.File) result {
	t.Helper()
	outside := filepath.Join(t.TempDir(), "outside")
	kept := filepath.Join(outside, "kept")
	if err := os.Mkdir(outside, 0o777); err != nil {
		return is(unmade, "%v", err)
	}
	if err := os.WriteFile(kept, nil, 0o600); err != nil {
		return is(unmade, "%v", err)
	}
	var placed [][]imagetest.File
	for _, l := range layers {
		var files []imagetest.File
		for _, f := range l {
			to := func(s string) string { return strings.ReplaceAll(s, "OUTSIDE", outside) }
			f.Name, f.Link, f.Hard = to(f.Name), to(f.Link), to(f.Hard)
			files = append(files, f)
		}
		placed = append(placed, files)
	}
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/evil", "v1", imagetest.Image{Layers: placed}.Build())
	err := w.pull(t, ref)
	defer w.forget(t, ref)
	asked := reg.Requests()
	if entries, e := os.ReadDir(outside); e != nil || len(entries) != 1 {
		return is(reached, "outside there is now %v, %v", entries, e)
	}
	switch {
	case len(asked) < 3:
		return is(unmade, "the registry was asked for %q only: %v", asked, err)
	case err == nil:
		return is(bounded, "unpacked below the image's own root after %d requests", len(asked))
	case status.Code(err) == codes.Internal || status.Code(err) == codes.Unavailable:
		return is(unmade, "%v", err)
	}
	return is(refused, "%v", err)
}

// hostileRegistry pulls a good image from a registry that answers as it likes: the pull fails,
// no image stays, and the next one works.
func (w *world) hostileRegistry(t *testing.T, does func(imagetest.Built) func(http.ResponseWriter, *http.Request, http.Handler)) result {
	t.Helper()
	built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "file", Body: []byte(t.Name())}}}}.Build()
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", built)
	var mu sync.Mutex
	hit := false
	evil := does(built)
	reg.Intercept(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		evil(rw, r, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { next.ServeHTTP(rw, r) }))
		mu.Lock()
		hit = true
		mu.Unlock()
	})
	err := w.pull(t, ref)
	reg.Intercept(nil)
	mu.Lock()
	defer mu.Unlock()
	if !hit && len(reg.Requests()) == 0 {
		return is(unmade, "the registry was never asked: %v", err)
	}
	if err == nil {
		return is(reached, "the pull went through")
	}
	if err2 := w.pull(t, ref); err2 != nil {
		return is(reached, "the next pull fails too: %v", err2)
	}
	w.forget(t, ref)
	return is(refused, "%v", err)
}

func deepIndex(t *testing.T, w *world) result {
	built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "file", Body: []byte("x")}}}}.Build()
	for range 64 {
		built = imagetest.Index(built)
	}
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/deep", "v1", built)
	err := w.pull(t, ref)
	asked := len(reg.Requests())
	if asked == 0 {
		return is(unmade, "%v", err)
	}
	if err == nil {
		w.forget(t, ref)
		return is(reached, "64 indexes were followed")
	}
	if asked > 32 {
		return is(reached, "%d requests before %v", asked, err)
	}
	return is(refused, "after %d requests: %v", asked, err)
}

// deviceLayer has a disk's node in its layer; inside it must not open.
func deviceLayer(t *testing.T, w *world) result {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, h := range []tar.Header{
		{Name: "busybox", Typeflag: tar.TypeReg, Mode: 0o755},
		{Name: "disk", Typeflag: tar.TypeBlock, Mode: 0o666, Devmajor: 254, Devminor: 0},
		{Name: "kmsg", Typeflag: tar.TypeChar, Mode: 0o666, Devmajor: 1, Devminor: 11},
	} {
		var body []byte
		if h.Typeflag == tar.TypeReg {
			body, _ = os.ReadFile("/bin/busybox")
			h.Size = int64(len(body))
		}
		if err := tw.WriteHeader(&h); err != nil {
			return is(unmade, "%v", err)
		}
		_, _ = tw.Write(body)
	}
	_ = tw.Close()
	ref := imagetest.NewRegistry(t).Push("team/device", "v1", imagetest.Image{Raw: [][]byte{buf.Bytes()}}.Build())
	if err := w.pull(t, ref); err != nil {
		if status.Code(err) == codes.InvalidArgument {
			return is(refused, "%v", err)
		}
		return is(unmade, "%v", err)
	}
	defer w.forget(t, ref)
	c := w.attacker("device", containerRoot)
	c.Image.Image, c.Command = ref, []string{"/busybox", "sh", "-c", "for f in /disk /kmsg; do /busybox dd if=$f of=/x bs=1 count=1 && echo opened $f; done 2>&1"}
	made := w.container(t, containerRoot).Pod.Run(t, c)
	made.WaitExited(t)
	out := made.ReadLog(t)
	_, _ = w.CRI.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: made.ID})
	switch {
	case strings.Contains(out, "F opened"):
		return is(reached, "%s", out)
	case strings.Count(out, "not permitted")+strings.Count(out, "ermission denied") == 2:
		return is(refused, "the nodes are there and do not open: %s", strings.TrimSpace(out))
	}
	return is(unmade, "%s", out)
}

// redirectedCredentials sends a client that has logged in to another host, which
// must not learn its password.
func redirectedCredentials(t *testing.T, w *world) result {
	const user, secret = "alice", "alicessecret"
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+secret))
	built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "file", Body: []byte(t.Name())}}}}.Build()
	var mu sync.Mutex
	var told []string
	visits, given := 0, 0
	thief := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		visits++
		told = append(told, r.Header.Get("Authorization"), r.URL.RawQuery)
		rw.Header().Set("WWW-Authenticate", `Basic realm="here"`)
		rw.WriteHeader(http.StatusUnauthorized)
	}))
	defer thief.Close()
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", built)
	reg.Intercept(func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case r.Header.Get("Authorization") != want:
			rw.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
			rw.WriteHeader(http.StatusUnauthorized)
		case strings.Contains(r.URL.Path, "/blobs/"):
			mu.Lock()
			given++
			mu.Unlock()
			http.Redirect(rw, r, thief.URL+"/blob", http.StatusTemporaryRedirect)
		default:
			next.ServeHTTP(rw, r)
		}
	})
	_, err := w.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: ref}, Auth: &runtimeapi.AuthConfig{Username: user, Password: secret},
	})
	mu.Lock()
	defer mu.Unlock()
	if visits == 0 || given == 0 {
		return is(unmade, "the registry sent the client on %d times, it came %d times: %v", given, visits, err)
	}
	for _, h := range told {
		if strings.Contains(h, "Basic") || strings.Contains(h, secret) {
			return is(reached, "the other host was told %q", h)
		}
	}
	return is(refused, "it came to the other host %d times and told nothing: %v", visits, err)
}
