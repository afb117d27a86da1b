package attack

import (
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// noise makes an image of n unique layers.
func noise(n int) imagetest.Built {
	var i imagetest.Image
	for k := range n {
		body := make([]byte, 100_000)
		for j := range body {
			body[j] = byte(rand.Uint32())
		}
		i.Layers = append(i.Layers, []imagetest.File{{Name: fmt.Sprintf("file%d", k), Body: body}})
	}
	return i.Build()
}

// drips serves these blobs a few bytes at a time until release is closed, and reports
// each one that was begun.
func drips(blobs map[digest.Digest][]byte, begun chan<- struct{}, release <-chan struct{}) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(rw http.ResponseWriter, r *http.Request, next http.Handler) {
		body, ok := blobs[digest.Digest(path.Base(r.URL.Path))]
		f, flushes := rw.(http.Flusher)
		if !ok || !flushes {
			next.ServeHTTP(rw, r)
			return
		}
		rw.Header().Set("Content-Length", strconv.Itoa(len(body)))
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for i := range body {
			if _, err := rw.Write(body[i : i+1]); err != nil {
				return
			}
			f.Flush()
			if i == 0 {
				begun <- struct{}{}
			}
			select {
			case <-tick.C:
			case <-release:
				return
			case <-r.Context().Done():
				return
			}
		}
	}
}

// slowRegistry starts more layers than are fetched at one time, which never end.
// Meanwhile an image of another registry is pulled.
func slowRegistry(t *testing.T, w *world) result {
	slow := imagetest.NewRegistry(t)
	stuck := map[digest.Digest][]byte{}
	var refs []string
	for i := range 4 {
		b := noise(4)
		for _, l := range b.Layers {
			stuck[l.Digest] = b.Blobs[l.Digest]
		}
		refs = append(refs, slow.Push("stuck", "v"+strconv.Itoa(i), b))
	}
	begun, release := make(chan struct{}, 64), make(chan struct{})
	slow.Intercept(drips(stuck, begun, release))
	var wg sync.WaitGroup
	for _, ref := range refs {
		wg.Go(func() { _ = w.pull(t, ref) })
	}
	defer wg.Wait()
	defer close(release)
	for range 2 { // as many as are fetched at one time if all pulls share them
		select {
		case <-begun:
		case <-time.After(time.Minute):
			return is(unmade, "the slow registry was not asked for its layers")
		}
	}
	honest := imagetest.NewRegistry(t).Push("team/app", "v1", noise(2))
	ctx, cancel := context.WithTimeout(t.Context(), impatience)
	defer cancel()
	_, err := w.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: honest}})
	if err != nil {
		return is(reached, "an honest registry's image: %v", err)
	}
	w.forget(t, honest)
	return is(bounded, "%d slow pulls, and an honest one went through", len(refs))
}

// slowLayer sends a byte every fifth of a second, for as long as the pull waits.
func slowLayer(t *testing.T, w *world) result {
	reg := imagetest.NewRegistry(t)
	b := noise(1)
	begun, release := make(chan struct{}, 64), make(chan struct{})
	defer close(release)
	reg.Intercept(drips(map[digest.Digest][]byte{b.Layers[0].Digest: b.Blobs[b.Layers[0].Digest]}, begun, release))
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	_, err := w.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: reg.Push("team/drip", "v1", b)}})
	switch {
	case len(begun) == 0:
		return is(unmade, "%v", err)
	case expired(ctx):
		return is(reached, "it is still waited for after 90 s")
	}
	return is(refused, "%v", err)
}

// manyFiles is a layer that takes an inode for each byte.
func manyFiles(t *testing.T, w *world) result {
	var files []imagetest.File
	for i := range 3000 {
		files = append(files, imagetest.File{Name: fmt.Sprintf("f%d", i)})
	}
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/many", "v1", imagetest.Image{Layers: [][]imagetest.File{files}}.Build())
	err := w.pull(t, ref)
	switch asked := reg.Requests(); {
	case len(asked) < 3:
		return is(unmade, "asked for %q only: %v", asked, err)
	case err == nil:
		w.forget(t, ref)
		return is(reached, "3000 files, and 2000 are allowed")
	}
	return is(refused, "%v", err)
}

// strayFile pulls an artifact with names of files that lead into the unpacked layers of other images.
func strayFile(t *testing.T, w *world) result {
	const name = "bin/planted"
	layers := filepath.Join(w.Root, "image/l")
	dirs, err := os.ReadDir(layers)
	if err != nil || len(dirs) == 0 {
		return is(unmade, "%d layers, %v", len(dirs), err)
	}
	a := imagetest.Artifact{Type: "application/vnd.example"}
	for _, d := range dirs {
		a.Files = append(a.Files, imagetest.ArtifactFile{Title: "../" + d.Name() + "/" + name, Body: []byte("planted")})
	}
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/evil", "v1", a.Build())
	err = w.pull(t, ref)
	defer w.forget(t, ref)
	planted := 0
	for _, d := range dirs {
		if os.Remove(filepath.Join(layers, d.Name(), name)) == nil {
			planted++
		}
	}
	switch asked := reg.Requests(); {
	case planted > 0:
		return is(reached, "%d layers of other images have its file", planted)
	case len(asked) == 0 || err == nil:
		return is(unmade, "asked for %q only: %v", asked, err)
	}
	return is(refused, "%v", err)
}

// otherRealm names another host as the one that wants the registry's password.
func otherRealm(t *testing.T, w *world) result {
	var mu sync.Mutex
	visits, told := 0, ""
	thief := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		visits++
		_ = r.ParseForm()
		told += r.Header.Get("Authorization") + " " + r.Form.Encode()
		rw.WriteHeader(http.StatusUnauthorized)
	}))
	defer thief.Close()
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", noise(1))
	reg.Intercept(func(rw http.ResponseWriter, _ *http.Request, _ http.Handler) {
		rw.Header().Set("WWW-Authenticate", `Bearer realm="`+thief.URL+`/token",service="registry"`)
		rw.WriteHeader(http.StatusUnauthorized)
	})
	const secret = "alicessecret"
	_, err := w.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: ref}, Auth: &runtimeapi.AuthConfig{Username: "alice", Password: secret},
	})
	mu.Lock()
	defer mu.Unlock()
	switch {
	case strings.Contains(told, secret) || strings.Contains(told, base64.StdEncoding.EncodeToString([]byte("alice:"+secret))):
		return is(reached, "the other host was told %q", told)
	case len(reg.Requests()) == 0 || err == nil:
		return is(unmade, "the registry was not asked: %v", err)
	}
	return is(refused, "the other host was visited %d times and told nothing: %v", visits, err)
}

// expired reports whether a call ended because of its context's deadline. The server may notice the deadline just
// before the context does.
func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < time.Second
}
