package read

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/longshore/longshore/internal/cli/composefile"
)

// unpacked writes the files of an archive to a directory, and returns the options to read them: the file compose.yaml of the
// directory or of the one below it, with the environment of the file env.
func unpacked(t *testing.T, a *txtar.Archive) (dir string, o Options) {
	t.Helper()
	dir = t.TempDir()
	for _, f := range a.Files {
		path := filepath.Join(dir, f.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
		switch filepath.Base(f.Name) {
		case "env":
			o.Env = strings.Fields(string(f.Data))
		case "compose.yaml", "compose.override.yaml":
			if len(o.Files) == 0 || filepath.Dir(path) == dir {
				if filepath.Base(f.Name) == "compose.yaml" {
					o.Files = nil
				}
				o.Files = append(o.Files, path)
			}
		}
	}
	return dir, o
}

// text shows a project: one JSON document for each object, with stand-ins for hashes and the directory.
func text(t *testing.T, p *composefile.Project, dir string) string {
	t.Helper()
	var b strings.Builder
	show := func(m proto.Message) {
		data, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := json.Indent(&out, data, "", " "); err != nil {
			t.Fatal(err)
		}
		b.WriteString(out.String() + "\n")
	}
	fmt.Fprintf(&b, "project %s\n", p.Name)
	for _, n := range p.Notes {
		fmt.Fprintf(&b, "note %s\n", n)
	}
	for _, n := range p.Networks {
		fmt.Fprintf(&b, "network %s external=%t\n", n.Key, n.External)
		show(n.Request)
	}
	for _, v := range p.Volumes {
		fmt.Fprintf(&b, "volume %s external=%t\n", v.Key, v.External)
		show(v.Request)
	}
	for _, s := range p.Services {
		fmt.Fprintf(&b, "service %s %s scale=%d name=%q dirs=%q after=%v\n", s.Name, s.At, s.Scale, s.ContainerName, s.MakeDirs, s.PullAfter)
		for _, d := range s.DependsOn {
			fmt.Fprintf(&b, "needs %s %s required=%t restart=%t\n", d.Service, d.Condition, d.Required, d.Restart)
		}
		for _, f := range s.Files {
			fmt.Fprintf(&b, "file %s %o %d:%d %q\n", f.Path, f.Mode, f.UID, f.GID, f.Content)
		}
		if s.Hash == "" || s.Request.GetLabels()[composefile.LabelHash] != s.Hash {
			t.Errorf("service %s: hash %q, label %q", s.Name, s.Hash, s.Request.GetLabels()[composefile.LabelHash])
		}
		show(s.Request)
	}
	hash := regexp.MustCompile(`"[0-9a-f]{64}"`)
	return hash.ReplaceAllString(strings.ReplaceAll(b.String(), dir, "$DIR"), `"HASH"`)
}

// TestFilesBecomeRequests reads files of published shapes, and compares the result with the archive's file want. With
// LONGSHORE_UPDATE=1 it writes that file.
func TestFilesBecomeRequests(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) < 9 {
		t.Fatalf("%d archives, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			a, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir, o := unpacked(t, a)
			p, err := Load(t.Context(), o)
			got := ""
			if refused := (*composefile.RefusedError)(nil); errors.As(err, &refused) {
				got = strings.ReplaceAll(strings.Join(refused.Reasons, "\n")+"\n", dir, "$DIR")
			} else if err != nil {
				t.Fatal(err)
			} else {
				got = text(t, p, dir)
			}
			last := len(a.Files) - 1
			if a.Files[last].Name != "want" {
				a.Files, last = append(a.Files, txtar.File{Name: "want"}), last+1
			}
			if want := string(a.Files[last].Data); got == want {
				return
			} else if os.Getenv("LONGSHORE_UPDATE") == "" {
				t.Fatalf("got\n%s\nwant\n%s", got, want)
			}
			a.Files[last].Data = []byte(got)
			if err := os.WriteFile(path, txtar.Format(a), 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
}
