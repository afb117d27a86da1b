package ui

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestBuiltFilesAreOfTheSources: make web was run after the last change of web/.
func TestBuiltFilesAreOfTheSources(t *testing.T) {
	sums, err := os.ReadFile("sources.sum")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		listed[name] = sum
	}
	files, err := filepath.Glob("../../web/src/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, name := range []string{"build.mjs", "package.json", "package-lock.json", "tsconfig.json"} {
		files = append(files, "../../web/"+name)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		name := strings.TrimPrefix(filepath.ToSlash(path), "../../web/")
		if listed[name] != hex.EncodeToString(sum[:]) {
			t.Errorf("web/%s has changed since the page was built: run make web", name)
		}
		delete(listed, name)
	}
	for name := range listed {
		t.Errorf("web/%s was removed since the page was built: run make web", name)
	}
}

// TestABuildMakesTheSameFiles builds the page again, where the tools of web/ are installed (make web).
func TestABuildMakesTheSameFiles(t *testing.T) {
	if _, err := os.Stat("../../web/node_modules/esbuild"); err != nil {
		t.Skip("the tools of web/ are not installed: run make web")
	}
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node")
	}
	dir := filepath.Join(t.TempDir(), "dist")
	if out, err := exec.CommandContext(t.Context(), node, "../../web/build.mjs", dir).CombinedOutput(); err != nil {
		t.Fatalf("build the page: %v\n%s", err, out)
	}
	built, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(built) != len(names()) {
		t.Errorf("%d files were built, %d are embedded: %v", len(built), len(names()), err)
	}
	for _, path := range built {
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if want, err := fs.ReadFile(assets(), filepath.Base(path)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s differs from the embedded file: %v", filepath.Base(path), err)
		}
	}
}

// maxBundle bounds the compressed sum of the page's files, in bytes.
const maxBundle = 400_000

// TestTheBundleIsSmall, has no map of its sources, and names nothing outside.
func TestTheBundleIsSmall(t *testing.T) {
	var sum int
	for _, name := range names() {
		data, err := fs.ReadFile(assets(), name)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(data); err != nil || w.Close() != nil {
			t.Fatal(err)
		}
		sum += out.Len()
		if bytes.Contains(data, []byte("sourceMappingURL")) || strings.HasSuffix(name, ".map") {
			t.Errorf("%s has a map of its sources", name)
		}
	}
	if sum > maxBundle || sum < 1000 {
		t.Errorf("the files have %d bytes compressed, at most %d", sum, maxBundle)
	}
	index, err := fs.ReadFile(assets(), "index.html")
	if err != nil || bytes.Contains(index, []byte("<style")) || bytes.Contains(index, []byte("://")) || bytes.Contains(index, []byte("<script>")) {
		t.Errorf("index.html has inline code or names another server: %v", err)
	}
}

// FuzzRequests sends requests of any form to a page with a session.
func FuzzRequests(f *testing.F) {
	f.Add("GET", "/api/logs", "id=a&tail=3&follow=1", "")
	f.Add("POST", "/api/action", "", `{"verb":"stop","id":"a","owner":"b"}`)
	f.Add("POST", "/api/exec", "", `{"id":"a","command":["sh"],"cols":4294967295}`)
	f.Add("POST", "/api/exec/x/size", "", `{"cols":-1}`)
	f.Add("GET", "/api/events", "id=%zz&n=999999999999", "")
	f.Add("GET", "/%2e%2e/x", "", "")
	f.Add("GET", "", "0", "")
	a := &agent{}
	s, err := New(Options{Conn: a, Token: token, Actions: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	id, key := s.sessions.begin(time.Now())
	f.Fuzz(func(t *testing.T, method, path, query, body string) {
		req := httptest.NewRequest(http.MethodGet, "http://127.0.0.1/", strings.NewReader(body))
		req.Method, req.URL.Path, req.URL.RawQuery = method, path, query
		req.AddCookie(&http.Cookie{Name: s.sessions.name, Value: id})
		req.Header.Set(keyHeader, key)
		ctx, cancel := context.WithCancel(t.Context())
		if strings.HasPrefix(path, "/api/feed") || strings.HasPrefix(path, "/api/events") {
			cancel() // they would wait
		}
		defer cancel()
		w := httptest.NewRecorder()
		s.ServeHTTP(w, req.WithContext(ctx))
		if w.Header().Get("Content-Security-Policy") != policy {
			t.Error("no policy")
		}
		if ct := w.Header().Get("Content-Type"); strings.Contains(ct, "html") && w.Code == http.StatusOK && path != "" && path != "/" && path != "/index.html" {
			t.Errorf("%s %s is %s", method, path, ct)
		}
	})
}
