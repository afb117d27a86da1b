package images_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/docker/images"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
)

// rig is a Server over a real engine with a real image store, and a registry.
type rig struct {
	*enginetest.Node
	t     *testing.T
	s     *images.Server
	reg   *imagetest.Registry
	store *image.Store
	root  string // of the store
	url   string

	mu     sync.Mutex // guards events
	events []string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	root := t.TempDir()
	store, err := image.New(image.Options{Root: root, InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n := enginetest.Fakes(t)
	n.Options.Images = store
	n.Start()
	r := &rig{Node: n, t: t, reg: imagetest.NewRegistry(t), store: store, root: root}
	r.s = &images.Server{
		Engine: n.As(core.OwnerDocker), Transfers: store, Owner: core.OwnerDocker, Driver: "overlay",
		Publish: func(typ, action, id string, attributes map[string]string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, fmt.Sprintf("%s %s %s %v", typ, action, id, attributes))
		},
	}
	r.url = serve(t, r.s)
	return r
}

// serve serves a Server until the test ends, and returns its address.
func serve(t *testing.T, s *images.Server) string {
	t.Helper()
	m := &dockerhttp.Mux{Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")}}
	s.Routes(m)
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	return srv.URL
}

// uses makes the server believe that containers use images.
func (r *rig) uses(users ...images.User) {
	r.s.Users = func(context.Context) ([]images.User, error) { return users, nil }
}

// told returns the events since the last call.
func (r *rig) told() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.events
	r.events = nil
	return list
}

// do sends a request and returns the status and the body.
func (r *rig) do(method, path string, body io.Reader, headers ...string) (int, string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// want sends a request, checks its status, and decodes the answer into v unless that is nil.
func (r *rig) want(status int, method, path string, body io.Reader, v any) string {
	r.t.Helper()
	got, text := r.do(method, path, body)
	if got != status {
		r.t.Fatalf("%s %s: %d %s, want %d", method, path, got, text, status)
	}
	if v != nil {
		if err := json.Unmarshal([]byte(text), v); err != nil {
			r.t.Fatalf("%s %s: %v: %s", method, path, err, text)
		}
	}
	return text
}

// refused sends a request, and checks the status and the words of its error.
func (r *rig) refused(status int, method, path, words string) {
	r.t.Helper()
	got, text := r.do(method, path, nil)
	var doc struct{ Message string }
	if err := json.Unmarshal([]byte(text), &doc); err != nil || got != status || !strings.Contains(doc.Message, words) {
		r.t.Errorf("%s %s: %d %q, %v; want %d with %q", method, path, got, text, err, status, words)
	}
}

// sample is an image with two layers; n makes it another one.
func sample(n string) imagetest.Image {
	return imagetest.Image{
		Layers: [][]imagetest.File{{{Name: "base", Body: bytes.Repeat([]byte("b"), 1<<16)}}, {{Name: "own", Body: []byte(n)}}},
		Config: ocispec.ImageConfig{Labels: map[string]string{"n": n}, Cmd: []string{"/own"}, ExposedPorts: map[string]struct{}{"80/tcp": {}}},
		Shell:  []string{"/bin/bash", "-c"}, Health: &core.HealthCheck{Test: []string{"CMD", "x"}, Retries: 4},
	}
}

// pulled pulls a sample from the registry under REPO:v1 and returns the full name.
func (r *rig) pulled(repo string) (string, imagetest.Built) {
	r.t.Helper()
	b := sample(repo).Build()
	name := r.reg.Push(repo, "v1", b)
	text := r.want(200, "POST", "/images/create?fromImage="+r.reg.Host+"/"+repo+"&tag=v1", nil, nil)
	if strings.Contains(text, "error") {
		r.t.Fatal(text)
	}
	r.told()
	return name, b
}

// messages decodes a stream.
func messages(t *testing.T, text string) (list []dockertypes.Progress) {
	t.Helper()
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\r\n"), "\r\n") {
		var m dockertypes.Progress
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		list = append(list, m)
	}
	return list
}

func TestPullShowsEachLayer(t *testing.T) {
	r := newRig(t)
	b := sample("a").Build()
	name := r.reg.Push("lib/app", "v1", b)
	list := messages(t, r.want(200, "POST", "/v1.24/images/create?fromImage="+url.QueryEscape(name), nil, nil))
	if list[0].Status != "Pulling from lib/app" || list[0].ID != "v1" {
		t.Errorf("first %+v", list[0])
	}
	last, all := map[string]string{}, map[string][]string{}
	for _, m := range list[1 : len(list)-2] {
		last[m.ID] = m.Status
		if m.Status != "Downloading" && m.Status != "Extracting" {
			all[m.ID] = append(all[m.ID], m.Status)
		}
		if m.Progress == nil {
			t.Errorf("%+v has no progressDetail", m)
		}
	}
	for _, l := range b.Layers {
		if got := all[l.Digest.Encoded()[:12]]; !slices.Equal(got, []string{"Pulling fs layer", "Download complete", "Pull complete"}) {
			t.Errorf("layer %s: %q", l.Digest, got)
		}
	}
	if len(last) != 2 || list[len(list)-2].Status != "Digest: "+b.Manifest.Digest.String() || list[len(list)-1].Status != "Status: Downloaded newer image for "+name {
		t.Errorf("%+v", list)
	}
	want := fmt.Sprintf("image pull %s map[n:a name:%s/lib/app]", name, r.reg.Host)
	if got := r.told(); !slices.Equal(got, []string{want}) {
		t.Errorf("events %q, want %q", got, want)
	}
	again := messages(t, r.want(200, "POST", "/images/create?fromImage="+r.reg.Host+"/lib/app&tag="+b.Manifest.Digest.String(), nil, nil))
	if again[0].ID != b.Manifest.Digest.String() || !strings.HasPrefix(again[len(again)-1].Status, "Status: ") {
		t.Errorf("by digest: %+v", again)
	}
	again = messages(t, r.want(200, "POST", "/images/create?fromImage="+r.reg.Host+"/lib/app&tag=v1&platform=linux", nil, nil))
	if text := again[len(again)-1].Status; text != "Status: Image is up to date for "+name || len(again) != 3 {
		t.Errorf("the second time: %+v", again)
	}
	again = messages(t, r.want(200, "POST", "/images/create?fromImage="+r.reg.Host+"/lib/app&tag=v1&platform=linux/s390x", nil, nil))
	if text := again[len(again)-1].Status; !strings.HasPrefix(text, "WARNING: ") || !strings.Contains(text, "does not match the specified platform (linux/s390x)") {
		t.Errorf("of another platform: %q", text)
	}
}

// TestPullOfAllTags: without a tag all images of the repository are fetched, also from several pages of tags.
func TestPullOfAllTags(t *testing.T) {
	r := newRig(t)
	var want []string
	for _, tag := range []string{"a", "b", "c", "d", "latest"} {
		want = append(want, r.reg.Push("lib/many", tag, sample(tag).Build()))
	}
	repo := r.reg.Host + "/lib/many"
	text := r.want(200, "POST", "/images/create?fromImage="+repo, nil, nil)
	if list := messages(t, text); list[len(list)-1].Status != "Status: Downloaded newer image for "+repo || strings.Count(text, "Pulling from lib/many") != 5 || strings.Count(text, "Digest: ") != 5 {
		t.Errorf("%s", text)
	}
	if got := r.tags(""); !slices.Equal(got, want) {
		t.Errorf("pulled %q, want %q", got, want)
	}
	if got := r.told(); len(got) != 1 || !strings.HasPrefix(got[0], "image pull "+repo+" ") {
		t.Errorf("events %q", got)
	}
	r.reg.Intercept(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		w.Header().Set("Link", "<http://169.254.169.254/x?last=a>; rel=next") // without an end, and at another place
		_, _ = io.WriteString(w, `{"tags":["a"]}`)
	})
	r.refused(503, "POST", "/images/create?fromImage="+repo, "its pages do not end")
	r.reg.Intercept(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		_, _ = io.WriteString(w, `{"tags":["../x"]}`)
	})
	r.refused(500, "POST", "/images/create?fromImage="+repo, "the registry lists the tag")
}

// TestPullErrorsHaveAStatus: until the image is resolved an error is a status, and later a message with the member error.
func TestPullErrorsHaveAStatus(t *testing.T) {
	r := newRig(t)
	b := sample("a").Build()
	r.reg.Push("lib/app", "v1", b)
	app := r.reg.Host + "/lib/app"
	for query, want := range map[string]struct {
		status int
		words  string
	}{
		"fromImage=" + app + "&tag=absent":              {404, "manifest for " + app + ":absent not found: manifest unknown"},
		"fromImage=" + app + "none":                     {404, "repository " + app + "none not found: "},
		"fromImage=Bad":                                 {400, "invalid reference format"},
		"fromImage=" + app + "&tag=b%20d":               {400, "invalid tag format"},
		"fromImage=scratch":                             {403, "'scratch' is a reserved name"},
		"fromImage=" + app + "&tag=v1&platform=a/b/c/d": {400, "cannot parse platform"},
		"fromSrc=http://example.com/x.tar":              {501, "curl -L URL | docker import - NAME"},
		"":                                              {400, "fromImage or fromSrc"},
		"fromImage=127.0.0.1:1/x":                       {500, "127.0.0.1:1"},
	} {
		r.refused(want.status, "POST", "/images/create?"+query, want.words)
	}
	r.reg.SetBlob(b.Layers[1].Digest, []byte("other bytes"))
	text := r.want(200, "POST", "/images/create?tag=v1&fromImage="+app, nil, nil)
	var last struct {
		ErrorDetail struct{ Message string }
		Error       string
	}
	lines := strings.Split(strings.TrimSpace(text), "\r\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Error == "" || last.Error != last.ErrorDetail.Message {
		t.Errorf("a damaged layer: %s, %v", text, err)
	}
	if got := r.told(); len(got) != 0 {
		t.Errorf("events of failed pulls: %q", got)
	}
}

// TestPullWithCredentials sends those of X-Registry-Auth, in both alphabets, and none if they cannot be read.
func TestPullWithCredentials(t *testing.T) {
	r := newRig(t)
	name := r.reg.Push("lib/app", "v1", sample("a").Build())
	code := "UNAUTHORIZED"
	r.reg.Intercept(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if user, password, _ := req.BasicAuth(); user != "me" || password != "p?~ü" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = io.WriteString(w, `{"errors":[{"code":"`+code+`","message":"no"}]}`)
			return
		}
		next.ServeHTTP(w, req)
	})
	raw := []byte(`{"username":"me","password":"p?~ü","serveraddress":"` + r.reg.Host + `"}`)
	path := "/images/create?fromImage=" + url.QueryEscape(name)
	for _, bad := range []string{"", "e30=", "???", base64.URLEncoding.EncodeToString([]byte("no json")), base64.URLEncoding.EncodeToString([]byte(`{"username":"you","password":"x"}`))} {
		if status, text := r.do("POST", path, nil, "X-Registry-Auth", bad); status != 401 || !strings.Contains(text, "UNAUTHORIZED") {
			t.Errorf("%q: %d %s", bad, status, text)
		}
	}
	code = "DENIED"
	if status, text := r.do("POST", path, nil); status != 404 || !strings.Contains(text, "pull access denied for "+r.reg.Host+"/lib/app, repository does not exist or may require 'docker login'") {
		t.Errorf("denied: %d %s", status, text)
	}
	for _, e := range []*base64.Encoding{base64.URLEncoding, base64.StdEncoding, base64.RawURLEncoding} {
		if status, text := r.do("POST", path, nil, "X-Registry-Auth", e.EncodeToString(raw)); status != 200 || !strings.Contains(text, "Status: ") {
			t.Errorf("%d %s", status, text)
		}
	}
	if status, text := r.do("POST", "/auth", bytes.NewReader(raw)); status != 200 || text != `{"IdentityToken":"","Status":"Login Succeeded"}`+"\n" {
		t.Errorf("login: %d %s", status, text)
	}
	if status, text := r.do("POST", "/auth", strings.NewReader(`{"username":"me","password":"x","serveraddress":"http://`+r.reg.Host+`/v1/"}`)); status != 401 || !strings.Contains(text, "message") {
		t.Errorf("wrong password: %d %s", status, text)
	}
	for _, body := range []string{"{", `{}{}`, `{"username":"` + strings.Repeat("x", 1<<17) + `"}`} {
		if status, _ := r.do("POST", "/auth", strings.NewReader(body)); status != 400 {
			t.Errorf("login with %.20q: %d", body, status)
		}
	}
	if status, _ := r.do("GET", "/distribution/"+name+"/json", nil); status != 404 {
		t.Errorf("distribution without credentials: %d", status)
	}
	if status, text := r.do("GET", "/distribution/"+name+"/json", nil, "X-Registry-Auth", base64.URLEncoding.EncodeToString(raw)); status != 200 || !strings.Contains(text, `"Platforms":[{"architecture":`) {
		t.Errorf("distribution: %d %s", status, text)
	}
}

// TestASlowClientDelaysNoPull: the pull ends although nobody reads the answer.
func TestASlowClientDelaysNoPull(t *testing.T) {
	r := newRig(t)
	name := r.reg.Push("lib/app", "v1", sample("a").Build())
	w := &stuckWriter{ResponseRecorder: httptest.NewRecorder(), free: make(chan struct{})}
	m := &dockerhttp.Mux{Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")}}
	r.s.Routes(m)
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/images/create?fromImage="+url.QueryEscape(name), nil))
	}()
	roottest.Eventually(t, "the end of a pull whose client reads nothing", func() bool {
		_, err := r.store.Get(t.Context(), core.OwnerDocker, name)
		return err == nil
	})
	close(w.free)
	<-done
	if list := messages(t, w.Body.String()); !strings.HasPrefix(list[len(list)-1].Status, "Status: ") {
		t.Errorf("%s", w.Body)
	}
}

// stuckWriter writes nothing until it is free.
type stuckWriter struct {
	*httptest.ResponseRecorder
	free chan struct{}
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	<-w.free
	return w.ResponseRecorder.Write(p)
}
