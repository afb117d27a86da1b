package read

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/longshore/longshore/internal/cli/composefile"
)

// FuzzLoad reads any text as a Compose file: it is read or refused, in bounded time, and every refusal has a text.
func FuzzLoad(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		a, err := txtar.ParseFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range a.Files {
			if strings.HasSuffix(file.Name, "compose.yaml") {
				f.Add(string(file.Data))
			}
		}
	}
	f.Add("services: {a: &a {<<: *a}}")
	f.Add("include: [compose.yaml]\nservices: {a: {image: x, extends: a}}")
	f.Add("services: {a: {image: x, extends: {service: b}}, b: {image: x, extends: {service: a}}}")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		path := filepath.Join(dir, "compose.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		p, err := Load(t.Context(), Options{Options: composefile.Options{Files: []string{path}}})
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		for _, s := range p.Services {
			if s.Request.GetImage() == "" || s.Hash == "" || s.Scale < 0 {
				t.Errorf("service %+v", s)
			}
		}
	})
}
