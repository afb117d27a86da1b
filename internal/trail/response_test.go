package trail

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestALineComesBeforeTheAnswer: of a success, an error with its text, an empty answer and a panic.
func TestALineComesBeforeTheAnswer(t *testing.T) {
	dir := t.TempDir()
	l := opened(t, Options{Dir: dir, Bytes: 1 << 20, Files: 2, Logger: slog.New(slog.DiscardHandler)})
	last := func() (r Record) {
		b, err := os.ReadFile(filepath.Join(dir, current))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		_, body, ok := split([]byte(lines[len(lines)-1]))
		if !ok || json.Unmarshal(body, &r) != nil {
			t.Fatalf("%q", lines)
		}
		return r
	}
	for name, tt := range map[string]struct {
		h              func(w http.ResponseWriter)
		outcome, error string
	}{
		"answered": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusCreated) }, OK, ""},
		"written":  {func(w http.ResponseWriter) { _, _ = w.Write([]byte("{}")) }, OK, ""},
		"empty":    {func(http.ResponseWriter) {}, OK, ""},
		"refused": {func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write([]byte(`{"error":"it is in use"}`))
		}, Failed, "it is in use"},
		"silent": {func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) }, Failed, "Not Found"},
		"panic":  {func(http.ResponseWriter) { panic("x") }, Failed, ""},
	} {
		func() {
			defer func() { _ = recover() }()
			line := l.Answers(httptest.NewRecorder(), Record{Call: name})
			line.Handle(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				tt.h(w)
				if name == "answered" || name == "written" || name == "refused" {
					if r := last(); r.Call != name {
						t.Errorf("%s: it is answered before its line", name)
					}
				}
			}), httptest.NewRequest(http.MethodPost, "/", nil))
		}()
		if r := last(); r.Call != name || r.Outcome != tt.outcome || r.Error != tt.error {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
