package image_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// noise returns n bytes that do not compress.
func noise(n int, seed byte) []byte {
	data := make([]byte, n)
	r := rand.NewChaCha8(sha256.Sum256([]byte{seed}))
	_, _ = r.Read(data)
	return data
}

// layered returns an image of several layers of size bytes each.
func layered(layers, size int) imagetest.Built {
	var i imagetest.Image
	for n := range layers {
		i.Layers = append(i.Layers, []imagetest.File{{Name: fmt.Sprintf("file%d", n), Body: noise(size, byte(n))}})
	}
	return i.Build()
}

// quick returns a store with short timeouts.
func quick(t *testing.T) *image.Store {
	t.Helper()
	cfg := image.Default()
	cfg.Retries = 1
	cfg.StallTimeout = image.Duration(time.Second)
	return openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
}

// onBlob runs f for requests of the blob d and lets others pass.
func onBlob(d digest.Digest, f func(w http.ResponseWriter, r *http.Request, next http.Handler)) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/blobs/"+d.String()) {
			f(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

func status(code int, body string) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

func TestRefusalsSayWhatAndWhere(t *testing.T) {
	b := layered(1, 100)
	layer := b.Layers[0].Digest
	for name, tc := range map[string]struct {
		intercept func(http.ResponseWriter, *http.Request, http.Handler)
		is        func(error) bool
		says      []string
	}{
		"manifest 401": {status(401, `{"errors":[{"code":"UNAUTHORIZED","message":"log in first"}]}`), errdefs.IsUnauthorized, []string{"manifest v1", "401", "log in first", "needs credentials"}},
		"manifest 403": {status(403, `{"errors":[{"code":"DENIED","message":"not for you"}]}`), errdefs.IsPermissionDenied, []string{"403", "DENIED: not for you"}},
		"manifest 404": {status(404, "nothing\x1b[31m here"), errdefs.IsNotFound, []string{"404", "nothing [31m here"}},
		"manifest 429": {status(429, `{"details":"slow down"}`), errdefs.IsUnavailable, []string{"429"}},
		"manifest 500": {status(500, ""), errdefs.IsUnavailable, []string{"500 Internal Server Error"}},
		"blob 404":     {onBlob(layer, status(404, `{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown"}]}`)), errdefs.IsNotFound, []string{layer.String(), "BLOB_UNKNOWN: blob unknown"}},
		"blob 503":     {onBlob(layer, status(503, "maintenance")), errdefs.IsUnavailable, []string{layer.String(), "maintenance"}},
		"blob stalls": {onBlob(layer, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Content-Length", strconv.FormatInt(b.Layers[0].Size, 10))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}), errdefs.IsUnavailable, []string{layer.String(), "nothing received for 1s"}},
		"server stalls": {func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { <-r.Context().Done() }, errdefs.IsUnavailable, []string{"nothing received for 1s"}},
		"blob truncated": {onBlob(layer, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Length", strconv.FormatInt(b.Layers[0].Size, 10))
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}), errdefs.IsUnavailable, []string{layer.String(), "ended early"}},
		"blob of another size": {onBlob(layer, status(200, "short")), errdefs.IsDataLoss, []string{layer.String(), "it has 5 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reg := imagetest.NewRegistry(t)
			ref := reg.Push("team/app", "v1", b)
			reg.Intercept(tc.intercept)
			s := quick(t)
			_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			if err == nil || !tc.is(err) {
				t.Fatalf("error %v has another class", err)
			}
			for _, word := range append(tc.says, ref, reg.Host+"/team/app", "from "+reg.Host) {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("error does not say %q: %v", word, err)
				}
			}
			if l, _ := s.List(t.Context(), ""); len(l) != 0 {
				t.Errorf("a failed pull leaves %v", l)
			}
			reg.Intercept(nil)
			if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
				t.Errorf("next pull: %v", err)
			}
			nothingAfterRemove(t, s, ref)
		})
	}
}

// nothingAfterRemove removes the only image and checks that the store is empty.
func nothingAfterRemove(t *testing.T, s *image.Store, ref string) {
	t.Helper()
	if err := s.Remove(t.Context(), "cri", ref); err != nil {
		t.Fatal(err)
	}
	// The worker of an agent that was just killed may still be writing.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for {
		u, err := s.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if u.Bytes == 0 && u.Inodes == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after the last remove: %+v", u)
		}
		if _, err := s.Prune(t.Context(), "", func(core.Image) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestWrongBytesAreDataLossAndLeaveNothing(t *testing.T) {
	b := layered(2, 5000)
	for name, d := range map[string]digest.Digest{"layer": b.Layers[1].Digest, "config": b.ID, "manifest": b.Manifest.Digest} {
		t.Run(name, func(t *testing.T) {
			reg := imagetest.NewRegistry(t)
			ref := reg.Push("team/app", "v1", b)
			right := b.Blobs[d]
			wrong := slices.Clone(right)
			wrong[len(wrong)/2] ^= 1
			reg.SetBlob(d, wrong)
			s := quick(t)
			_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), d.String()) {
				t.Fatalf("got %v, want DataLoss naming %s", err, d)
			}
			reg.SetBlob(d, right)
			if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
				t.Errorf("with the right bytes: %v", err)
			}
		})
	}
}

func TestWrongDiffIDIsDataLoss(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	b := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a"}}}}.Build()
	other := imagetest.Image{Layers: [][]imagetest.File{{{Name: "b"}}}}.Build()
	lie := imagetest.WithLayers(b, other)
	_, err := quick(t).Pull(t.Context(), "cri", reg.Push("team/lie", "v1", lie), core.PullOptions{})
	if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), b.DiffIDs[0].String()) {
		t.Errorf("got %v, want DataLoss naming the diff ID", err)
	}
}

func TestRetryAfterIsHeeded(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", layered(1, 10))
	var refused atomic.Int32
	reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if refused.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		next.ServeHTTP(w, r)
	})
	s := quick(t)
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Errorf("after one 429: %v", err)
	}
	// When a server asks for a longer wait than we allow, the pull fails at once, and the error
	// says how long.
	reg.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "2h0m0s") {
		t.Errorf("got %v", err)
	}
	// Nor does the wait exceed the caller's deadline.
	reg.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err = s.Pull(ctx, "cri", ref, core.PullOptions{Always: true}); err == nil {
		t.Error("pulled what was refused")
	}
}

func TestTransferGoesOnWhereItBrokeOff(t *testing.T) {
	b := layered(1, 1<<20)
	layer := b.Layers[0]
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", b)
	var mu sync.Mutex
	var ranges []string
	reg.Intercept(onBlob(layer.Digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		ranges = append(ranges, r.Header.Get("Range"))
		n := len(ranges)
		mu.Unlock()
		if n < 4 {
			next.ServeHTTP(&breaking{ResponseWriter: w, left: 200_000}, r)
			return
		}
		next.ServeHTTP(w, r)
	}))
	if _, err := quick(t).Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(ranges) != 4 || ranges[0] != "" || ranges[3] == "" {
		t.Errorf("ranges %q", ranges)
	}
}

// breaking is a connection that breaks after a number of bytes.
type breaking struct {
	http.ResponseWriter
	left int
}

func (b *breaking) Write(p []byte) (int, error) {
	if len(p) > b.left {
		_, _ = b.ResponseWriter.Write(p[:b.left])
		b.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	b.left -= len(p)
	return b.ResponseWriter.Write(p)
}

func TestPresentImageCostsOneHead(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", imagetest.Index(layered(2, 100)))
	s := quick(t)
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	reg.Requests()
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true}); err != nil {
		t.Fatal(err)
	}
	if got := reg.Requests(); !slices.Equal(got, []string{"HEAD /v2/team/app/manifests/v1"}) {
		t.Errorf("requests %q", got)
	}
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := reg.Requests(); len(got) != 0 {
		t.Errorf("without Always: requests %q", got)
	}
	// A second owner pays one HEAD, not the content.
	if _, err := s.Pull(t.Context(), "nomad", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := reg.Requests(); len(got) != 1 {
		t.Errorf("second owner: requests %q", got)
	}
}

func TestConcurrentPullsAreDoneOnce(t *testing.T) {
	b := layered(3, 100_000)
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", b)
	gate := make(chan struct{})
	reg.Intercept(onBlob(b.Layers[0].Digest, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		<-gate
		next.ServeHTTP(w, r)
	}))
	s := quick(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	errs := make([]error, 5)
	joined := make(chan struct{}, len(errs)*100)
	for i := range errs {
		c := t.Context()
		if i == 0 {
			c = ctx // the first caller leaves
		}
		wg.Go(func() {
			_, errs[i] = s.Pull(c, core.Owner("o"+strconv.Itoa(i%2)), ref, core.PullOptions{Progress: func(core.PullProgress) { joined <- struct{}{} }})
		})
	}
	for range errs {
		<-joined
	}
	cancel()
	close(gate)
	wg.Wait()
	if !errors.Is(errs[0], context.Canceled) && errs[0] != nil {
		t.Errorf("cancelled caller: %v", errs[0])
	}
	for _, err := range errs[1:] {
		if err != nil {
			t.Error(err)
		}
	}
	seen := map[string]int{}
	for _, r := range reg.Requests() {
		seen[r]++
	}
	for r, n := range seen {
		if n > 1 && strings.Contains(r, "/blobs/") {
			t.Errorf("%s %d times", r, n)
		}
	}
}

func TestBearerTokens(t *testing.T) {
	b := layered(1, 10)
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", b)
	var grants []string
	var mu sync.Mutex
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		user, pass, _ := r.BasicAuth()
		mu.Lock()
		grants = append(grants, strings.Join([]string{r.Method, r.Form.Get("grant_type"), r.Form.Get("refresh_token"), r.Form.Get("username"), user, r.Form.Get("scope")}, "|"))
		mu.Unlock()
		if r.Form.Get("password") == "bad" || pass == "bad" {
			http.Error(w, `{"details":"no such user"}`, http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"token":"t0ken","access_token":"t0ken"}`)
	}))
	t.Cleanup(tokens.Close)
	reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch r.Header.Get("Authorization") {
		case "Bearer t0ken", "Bearer as-it-is":
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="registry"`, tokens.URL+"/token"))
			w.WriteHeader(http.StatusUnauthorized)
		}
	})
	cfg := image.Default()
	cfg.Retries, cfg.CredentialHosts = 1, map[string][]string{reg.Host: {strings.TrimPrefix(tokens.URL, "http://")}}
	s := openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
	for name, tc := range map[string]struct {
		opts core.PullOptions
		want string
	}{
		"anonymous":      {core.PullOptions{}, "GET|||||repository:team/app:pull"},
		"password":       {core.PullOptions{Username: "alice", Password: "secret"}, "POST|password||alice||repository:team/app:pull"},
		"identity token": {core.PullOptions{Token: "refresh-me"}, "POST|refresh_token|refresh-me|||repository:team/app:pull"},
		"registry token": {core.PullOptions{Bearer: "as-it-is"}, ""},
	} {
		grants = nil
		tc.opts.Always = true
		if _, err := s.Pull(t.Context(), "cri", ref, tc.opts); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := strings.Join(grants, " "); got != tc.want {
			t.Errorf("%s: token requests %q, want %q", name, got, tc.want)
		}
	}
	_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true, Username: "alice", Password: "bad"})
	if !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "token server") || !strings.Contains(err.Error(), "no such user") {
		t.Errorf("refused by the token server: %v", err)
	}
}

func TestPlatformChoice(t *testing.T) {
	make1 := func(p ocispec.Platform) imagetest.Built {
		return imagetest.Image{Layers: [][]imagetest.File{{{Name: p.Architecture + p.Variant}}}, Platform: p}.Build()
	}
	amd := make1(ocispec.Platform{OS: "linux", Architecture: "amd64"})
	v6 := make1(ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v6"})
	v7 := make1(ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v7"})
	v8 := make1(ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"})
	win := make1(ocispec.Platform{OS: "windows", Architecture: "amd64"})
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/many", "v1", imagetest.Index(win, v6, v8, v7, amd))
	for platform, want := range map[string]digest.Digest{
		"linux/amd64": amd.ID, "linux/arm64": v8.ID, "linux/arm64/v8": v8.ID, "linux/arm/v7": v7.ID, "linux/arm/v6": v6.ID,
	} {
		img, err := quick(t).Pull(t.Context(), "cri", ref, core.PullOptions{Platform: platform})
		if err != nil || img.ID != want {
			t.Errorf("%s: %s, %v; want %s", platform, img.ID, err, want)
		}
	}
	_, err := quick(t).Pull(t.Context(), "cri", ref, core.PullOptions{Platform: "linux/s390x"})
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "linux/arm/v7") {
		t.Errorf("absent platform: %v", err)
	}
	_, err = quick(t).Pull(t.Context(), "cri", ref, core.PullOptions{Platform: "a/b/c/d"})
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("malformed platform: %v", err)
	}
}

func TestFullDiskIsSaidBeforeItIsFull(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	cfg := image.Default()
	cfg.MinFreeBytes = 1 << 60
	s := openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
	_, err := s.Pull(t.Context(), "cri", reg.Push("team/app", "v1", layered(1, 10)), core.PullOptions{})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("got %v, want ResourceExhausted", err)
	}
	cfg = image.Default()
	cfg.MaxLayerBytes = 1 << 20
	s = openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
	bomb := imagetest.Image{Layers: [][]imagetest.File{{{Name: "zeros", Body: make([]byte, 64<<20)}}}}.Build()
	_, err = s.Pull(t.Context(), "cri", reg.Push("team/bomb", "v1", bomb), core.PullOptions{})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "1048576 bytes") {
		t.Errorf("got %v, want ResourceExhausted", err)
	}
}

// TestAPullWithoutProgressIsCancelled at any request; its content stays for the next one.
func TestAPullWithoutProgressIsCancelled(t *testing.T) {
	b := layered(1, 200_000)
	blob := b.Layers[0].Digest
	for name, at := range map[string]func(*http.Request) bool{
		"manifest": func(r *http.Request) bool { return strings.Contains(r.URL.Path, "/manifests/") },
		"config":   func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, b.ID.String()) },
		"layer":    func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, blob.String()) },
	} {
		t.Run(name, func(t *testing.T) {
			reg := imagetest.NewRegistry(t)
			ref := reg.Push("team/app", "v1", b)
			cfg := image.Default()
			cfg.StallTimeout, cfg.ProgressTimeout = image.Duration(time.Hour), image.Duration(300*time.Millisecond)
			s := openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
			gone := make(chan struct{})
			reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if !at(r) {
					next.ServeHTTP(w, r)
					return
				}
				if name == "layer" {
					w.Header().Set("Content-Length", strconv.FormatInt(b.Layers[0].Size, 10))
					_, _ = w.Write(b.Blobs[blob][:1000])
					w.(http.Flusher).Flush()
				}
				<-r.Context().Done()
				close(gone)
			})
			_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "no progress for 300ms") {
				t.Errorf("error %v", err)
			}
			<-gone // the request was cancelled
			reg.Intercept(nil)
			if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
				t.Errorf("the next try: %v", err)
			}
		})
	}
}

// TestCredentialsAreEachCallers: only callers with the same credentials share a pull, and content
// in the store does not give access to a registry to callers without credentials.
func TestCredentialsAreEachCallers(t *testing.T) {
	b := layered(1, 1000)
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/secret", "v1", b)
	reached := make(chan struct{}, 10)
	open := make(chan struct{})
	reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if user, pass, ok := r.BasicAuth(); !ok || user != "u" || pass != "p" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			reached <- struct{}{}
			<-open
		}
		next.ServeHTTP(w, r)
	})
	s := quick(t)
	first := make(chan error, 1)
	go func() {
		_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Username: "u", Password: "p", Always: true})
		first <- err
	}()
	<-reached // meanwhile others do not share it
	for name, opts := range map[string]core.PullOptions{"none": {Always: true}, "wrong ones": {Always: true, Username: "u", Password: "x"}} {
		if _, err := s.Pull(t.Context(), "other", ref, opts); !errdefs.IsUnauthorized(err) {
			t.Errorf("%s beside it: %v", name, err)
		}
	}
	close(open)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), "other", ref, core.PullOptions{Always: true}); !errdefs.IsUnauthorized(err) {
		t.Errorf("of what is there: %v", err)
	}
	if list, err := s.List(t.Context(), "other"); err != nil || len(list) != 0 {
		t.Errorf("the other has %v, %v", list, err)
	}
}
