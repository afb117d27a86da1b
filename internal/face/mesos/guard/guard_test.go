package guard

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func file(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWhoMayPass(t *testing.T) {
	for _, text := range []string{`{"credentials":[{"principal":"ops","secret":"s3cret"},{"principal":"x","secret":"y"}]}`, "# people\nops s3cret\n\nx y\n"} {
		g, err := New(file(t, text, 0o600), "node-1", "127.0.0.1", "::1")
		if err != nil {
			t.Fatal(err)
		}
		h := g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
		for _, c := range []struct {
			host, user, secret string
			code               int
		}{
			{"node-1:5051", "ops", "s3cret", 418},
			{"NODE-1", "x", "y", 418},
			{"127.0.0.1:5051", "ops", "s3cret", 418},
			{"[::1]:5051", "ops", "s3cret", 418},
			{"evil.example:5051", "ops", "s3cret", 403},
			{"", "ops", "s3cret", 403},
			{"node-1:5051", "", "", 401},
			{"node-1:5051", "ops", "", 401},
			{"node-1:5051", "ops", "y", 401},
			{"node-1:5051", "nobody", "", 401},
		} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1", nil)
			r.Host = c.host
			if c.user != "" {
				r.SetBasicAuth(c.user, c.secret)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.code {
				t.Errorf("%+v: %d", c, w.Code)
			}
			if c.code == 401 && (w.Body.String() != "401 Unauthorized." || w.Header().Get("WWW-Authenticate") != `Basic realm="mesos-agent-readwrite"`) {
				t.Errorf("%+v: %q %v", c, w.Body, w.Header())
			}
		}
	}
}

func TestBadCredentialsAreRefusedAndNotShown(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "names nobody",
		"{}":                                    "names nobody",
		`{"credentials":"s3cret"}`:              "no JSON of credentials",
		"ops s3cret more":                       "a line is not",
		`{"credentials":[{"principal":"ops"}]}`: "is empty",
		"a:b s3cret":                            "has a colon",
	} {
		if _, err := New(file(t, text, 0o600)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	if _, err := New(file(t, "ops s3cret", 0o644)); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Errorf("a file that all may read: %v", err)
	}
	if _, err := New(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file was taken")
	}
}

// FuzzCredentials: no bytes make it panic, and nobody has an empty secret.
func FuzzCredentials(f *testing.F) {
	f.Add([]byte("ops s3cret"))
	f.Add([]byte(`{"credentials":[{"principal":"ops","secret":"s"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		users, err := parse(raw)
		for name, secret := range users {
			if name == "" || secret == "" {
				t.Errorf("%q %q, %v", name, secret, err)
			}
		}
	})
}
