package imagetest

import (
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Registry is a registry in this process, on loopback, by plain HTTP. It serves the images that
// Push or a client pushed.
type Registry struct {
	// Host is the first part of names on it: 127.0.0.1:port.
	Host string

	mu        sync.Mutex        // guards blobs, types, tags, requests, intercept, uploads
	uploads   map[string][]byte // "id": content of PATCH requests
	blobs     map[digest.Digest][]byte
	types     map[digest.Digest]string
	tags      map[string]digest.Digest // "repo:tag"
	requests  []string                 // "GET /v2/…"
	intercept func(w http.ResponseWriter, r *http.Request, next http.Handler)
}

// NewRegistry starts a registry that ends with the test.
func NewRegistry(t testing.TB) *Registry {
	t.Helper()
	r := Unstarted()
	srv := httptest.NewServer(r)
	t.Cleanup(srv.Close)
	r.Host = srv.Listener.Addr().String()
	return r
}

// Serve starts a registry on the caller's listener, outside of tests.
func Serve(l net.Listener) (*Registry, *http.Server) {
	r := Unstarted()
	r.Host = l.Addr().String()
	srv := &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = srv.Serve(l) }()
	return r, srv
}

// Unstarted returns a registry as a plain http.Handler; Host is empty.
func Unstarted() *Registry {
	return &Registry{blobs: map[digest.Digest][]byte{}, types: map[digest.Digest]string{}, tags: map[string]digest.Digest{}, uploads: map[string][]byte{}}
}

// Push stores an image under repository and tag and returns its full name.
func (r *Registry) Push(repo, tag string, b Built) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for d, data := range b.Blobs {
		r.blobs[d] = data
		switch {
		case d == b.Manifest.Digest:
			r.types[d] = b.Manifest.MediaType
		case bytes.Contains(data[:min(len(data), 200)], []byte(`"schemaVersion"`)):
			r.types[d] = manifestType(data)
		}
	}
	r.tags[repo+":"+tag] = b.Manifest.Digest
	return r.Host + "/" + repo + ":" + tag
}

var mediaTypeField = regexp.MustCompile(`"mediaType":"([^"]+)"`)

func manifestType(data []byte) string {
	if m := mediaTypeField.FindSubmatch(data); m != nil {
		return string(m[1])
	}
	return "application/json"
}

// SetBlob replaces the bytes served under a digest, to serve wrong ones.
func (r *Registry) SetBlob(d digest.Digest, data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blobs[d] = data
}

// Intercept calls f for every request, with the registry's own handler as next; nil removes it.
func (r *Registry) Intercept(f func(w http.ResponseWriter, req *http.Request, next http.Handler)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.intercept = f
}

// Requests returns "METHOD path" of every request so far and forgets them.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.requests
	r.requests = nil
	return list
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	r.requests = append(r.requests, req.Method+" "+req.URL.Path)
	f := r.intercept
	r.mu.Unlock()
	if f != nil {
		f(w, req, http.HandlerFunc(r.serve))
		return
	}
	r.serve(w, req)
}

var apiPath = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs)/([^/]+)$`)

func (r *Registry) serve(w http.ResponseWriter, req *http.Request) {
	if req.URL.Path == "/v2/" {
		return
	}
	if r.take(w, req) {
		return
	}
	if r.list(w, req) {
		return
	}
	m := apiPath.FindStringSubmatch(req.URL.Path)
	if m == nil {
		http.NotFound(w, req)
		return
	}
	d, isDigest := digest.Digest(m[3]), strings.Contains(m[3], ":")
	r.mu.Lock()
	if !isDigest {
		d = r.tags[m[1]+":"+m[3]]
	}
	data, ok := r.blobs[d]
	mediaType := r.types[d]
	r.mu.Unlock()
	if !ok || (m[2] == "manifests" && mediaType == "") {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`))
		return
	}
	w.Header().Set("Docker-Content-Digest", d.String())
	w.Header().Set("Content-Type", "application/octet-stream")
	if m[2] == "manifests" {
		w.Header().Set("Content-Type", mediaType)
	}
	http.ServeContent(w, req, "", time.Time{}, bytes.NewReader(data))
}

var tagsPath = regexp.MustCompile(`^/v2/(.+)/tags/list$`)

// tagsInPage is the number of tags in an answer, as small as that so that tests get several pages.
const tagsInPage = 2

// list answers with the tags of a repository, in pages, and reports whether the request was for them.
func (r *Registry) list(w http.ResponseWriter, req *http.Request) bool {
	m := tagsPath.FindStringSubmatch(req.URL.Path)
	if m == nil {
		return false
	}
	r.mu.Lock()
	var tags []string
	for name := range r.tags {
		if tag, ok := strings.CutPrefix(name, m[1]+":"); ok {
			tags = append(tags, tag)
		}
	}
	r.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if len(tags) == 0 {
		w.WriteHeader(http.StatusNotFound)
		_, _ = w.Write([]byte(`{"errors":[{"code":"NAME_UNKNOWN","message":"repository name not known to registry"}]}`))
		return true
	}
	slices.Sort(tags)
	at, found := slices.BinarySearch(tags, req.URL.Query().Get("last"))
	if found {
		at++
	}
	end := min(len(tags), at+tagsInPage)
	if end < len(tags) {
		w.Header().Set("Link", "</v2/"+m[1]+"/tags/list?n=1000&last="+tags[end-1]+`>; rel="next"`)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"name": m[1], "tags": tags[at:end]})
	return true
}

var uploadPath = regexp.MustCompile(`^/v2/(.+)/blobs/uploads/([^/]*)$`)

// take handles what a client stores, and reports whether the request was of that kind. It refuses
// content with a wrong digest, and manifests of blobs that it does not have.
func (r *Registry) take(w http.ResponseWriter, req *http.Request) bool {
	up, m := uploadPath.FindStringSubmatch(req.URL.Path), apiPath.FindStringSubmatch(req.URL.Path)
	switch {
	case up != nil && req.Method == http.MethodPost:
		r.mu.Lock()
		id := strconv.Itoa(len(r.uploads))
		r.uploads[id] = nil
		r.mu.Unlock()
		w.Header().Set("Location", "/v2/"+up[1]+"/blobs/uploads/"+id+"?state=a%2Fb")
		w.WriteHeader(http.StatusAccepted)
		return true
	case up != nil && req.Method == http.MethodPatch:
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return true // the client is gone
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.uploads[up[2]] = append(r.uploads[up[2]], body...)
		w.Header().Set("Location", req.URL.RequestURI())
		w.Header().Set("Range", "0-"+strconv.Itoa(max(0, len(r.uploads[up[2]])-1)))
		w.WriteHeader(http.StatusAccepted)
		return true
	case up == nil && (m == nil || req.Method != http.MethodPut):
		return false
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return true // the client is gone
	}
	if up != nil {
		r.mu.Lock()
		body = append(r.uploads[up[2]], body...)
		r.mu.Unlock()
	}
	d := digest.FromBytes(body)
	refuse := func(code string) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"errors":[{"code":"` + code + `","message":"refused"}]}`))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if up != nil {
		if req.URL.Query().Get("digest") != d.String() || req.URL.Query().Get("state") != "a/b" {
			refuse("DIGEST_INVALID")
			return true
		}
		r.blobs[d] = body
		w.WriteHeader(http.StatusCreated)
		return true
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(body, &manifest); err != nil {
		refuse("MANIFEST_INVALID")
		return true
	}
	for _, b := range append([]ocispec.Descriptor{manifest.Config}, manifest.Layers...) {
		if int64(len(r.blobs[b.Digest])) != b.Size {
			refuse("MANIFEST_BLOB_UNKNOWN")
			return true
		}
	}
	r.blobs[d], r.types[d] = body, req.Header.Get("Content-Type")
	if !strings.Contains(m[3], ":") {
		r.tags[m[1]+":"+m[3]] = d
	}
	w.Header().Set("Docker-Content-Digest", d.String())
	w.WriteHeader(http.StatusCreated)
	return true
}
