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

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/rogpeppe/go-internal/txtar"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
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

// TestShapesBecomeRequests compares the requests of the files that the root tests run with a file for each. With
// LONGSHORE_UPDATE=1 it writes these.
func TestShapesBecomeRequests(t *testing.T) {
	paths, err := filepath.Glob("../../../../test/compose/testdata/shapes/*.yaml")
	if err != nil || len(paths) < 20 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			dir, o := unpacked(t, &txtar.Archive{Files: []txtar.File{{Name: name + "/compose.yaml", Data: data}}})
			o.Env = []string{"CHANGE_TOKEN=token"}
			p, err := Load(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			got, golden := text(t, p, dir), filepath.Join("testdata", "shapes", name+".want")
			want, err := os.ReadFile(golden)
			if err == nil && string(want) == got {
				return
			}
			if os.Getenv("LONGSHORE_UPDATE") == "" {
				t.Fatalf("got\n%s\nwant\n%s%v", got, want, err)
			}
			if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestLimitsOfBlockDevices checks the limits of devices. The archives have none, because such devices are not on each node.
func TestLimitsOfBlockDevices(t *testing.T) {
	x := &serviceTranslator{r: &longshorev1.CreateRequest{}}
	x.blockDevices(&types.BlkioConfig{
		Weight: 10, WeightDevice: []types.WeightDevice{{Path: "/dev/sda", Weight: 20}}, DeviceReadBps: []types.ThrottleDevice{{Path: "/dev/sda", Rate: 1 << 20}},
		DeviceWriteBps: []types.ThrottleDevice{{Path: "/dev/sdb", Rate: 2}}, DeviceReadIOps: []types.ThrottleDevice{{Path: "/dev/sdc", Rate: 3}},
		DeviceWriteIOps: []types.ThrottleDevice{{Path: "/dev/sdd", Rate: 4}},
	})
	want := &longshorev1.CreateRequest{
		BlkioWeight: 10, BlkioWeightDevices: []*longshorev1.DeviceLimit{{Path: "/dev/sda", Value: 20}}, DeviceReadBps: []*longshorev1.DeviceLimit{{Path: "/dev/sda", Value: 1 << 20}},
		DeviceWriteBps: []*longshorev1.DeviceLimit{{Path: "/dev/sdb", Value: 2}}, DeviceReadIops: []*longshorev1.DeviceLimit{{Path: "/dev/sdc", Value: 3}},
		DeviceWriteIops: []*longshorev1.DeviceLimit{{Path: "/dev/sdd", Value: 4}},
	}
	if !proto.Equal(x.r, want) {
		t.Errorf("got %v, want %v", x.r, want)
	}
}

// TestProjectsAreChosen checks the services, numbers and names that options select, and the errors of wrong ones.
func TestProjectsAreChosen(t *testing.T) {
	a := txtar.Parse([]byte(`
-- compose.yaml --
name: chosen
services:
  web: {image: web, depends_on: [db], container_name: one}
  db: {image: db, ports: ["80:80"]}
  cache: {image: cache}
  debug: {image: debug, profiles: [debug], depends_on: [cache]}
  broken: {image: x, build: ., profiles: [broken]}
`))
	for _, c := range []struct {
		name    string
		options composefile.Options
		env     string
		want    string // names and numbers of the services, or a part of the error
	}{
		{"all", composefile.Options{}, "", "chosen cache=1 db=1 web=1"},
		{"named with dependencies", composefile.Options{Services: []string{"web"}}, "", "chosen db=1 web=1"},
		{"named alone", composefile.Options{Services: []string{"web"}, NoDeps: true}, "", "chosen web=1"},
		{"named of a profile", composefile.Options{Services: []string{"debug"}}, "", "chosen cache=1 debug=1"},
		{"profile", composefile.Options{Profiles: []string{"debug"}}, "", "chosen cache=1 db=1 debug=1 web=1"},
		{"profile of the environment", composefile.Options{}, "COMPOSE_PROFILES=debug", "chosen cache=1 db=1 debug=1 web=1"},
		{"scale", composefile.Options{Scale: map[string]int{"cache": 3, "web": 0}}, "", "chosen cache=3 db=1 web=0"},
		{"name", composefile.Options{Name: "other"}, "COMPOSE_PROJECT_NAME=third", "other cache=1 db=1 web=1"},
		{"name of the environment", composefile.Options{}, "COMPOSE_PROJECT_NAME=third", "third cache=1 db=1 web=1"},
		{"broken only when enabled", composefile.Options{Profiles: []string{"broken"}}, "", "services.broken.build is not possible"},
		{"unknown service", composefile.Options{Services: []string{"nothing"}}, "", "no such service: nothing (the files have broken, cache, db, debug, web)"},
		{"scale of one left out", composefile.Options{Services: []string{"web"}, Scale: map[string]int{"cache": 2}}, "", "--scale cache=2: the service is not among those that are started"},
		{"too many", composefile.Options{Scale: map[string]int{"cache": 1001}}, "", "a service has from 0 to 1000 containers"},
		{"two with one port", composefile.Options{Scale: map[string]int{"db": 2}}, "", "2 containers cannot share the port 80 of the host"},
		{"two with one name", composefile.Options{Scale: map[string]int{"web": 2}}, "", "several containers cannot have one name"},
		{"bad name", composefile.Options{Name: "No Name"}, "", "invalid project name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, o := unpacked(t, a)
			files := o.Files
			o.Options = c.options
			o.Files = files
			if c.env != "" {
				o.Env = []string{c.env}
			}
			p, err := Load(t.Context(), o)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("got the error %v, want %q", err, c.want)
				}
				return
			}
			got := p.Name
			for _, s := range p.Services {
				got += fmt.Sprintf(" %s=%d", s.Name, s.Scale)
			}
			if got != c.want || strings.Join(p.Declared, " ") != "broken cache db debug web" {
				t.Errorf("got %s of %v, want %s", got, p.Declared, c.want)
			}
		})
	}
}

// TestHashesTellChanges checks that the hash of a service changes with its settings, and with nothing else.
func TestHashesTellChanges(t *testing.T) {
	hash := func(text, env string) string {
		t.Helper()
		_, o := unpacked(t, txtar.Parse([]byte("-- compose.yaml --\n"+text)))
		o.Files, o.Dir, o.Env = []string{o.Files[0]}, "/", []string{env}
		p, err := Load(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return p.Services[0].Hash
	}
	const base = "name: x\nservices: {a: {image: a, environment: {E: '${E:-}'}, volumes: ['data:/v'], secrets: [s], %s}, b: {image: b}}\nvolumes: {data: {%s}}\nsecrets: {s: {environment: S}}\n"
	was := hash(fmt.Sprintf(base, "", ""), "S=1")
	for name, c := range map[string]struct {
		text, env string
		same      bool
	}{
		"nothing":        {fmt.Sprintf(base, "", ""), "S=1", true},
		"scale":          {fmt.Sprintf(base, "scale: 3", ""), "S=1", true},
		"dependency":     {fmt.Sprintf(base, "depends_on: [b]", ""), "S=1", true},
		"pull policy":    {fmt.Sprintf(base, "pull_policy: always", ""), "S=1", true},
		"command":        {fmt.Sprintf(base, "command: x", ""), "S=1", false},
		"secret":         {fmt.Sprintf(base, "", ""), "S=2", false},
		"volume's name":  {fmt.Sprintf(base, "", "name: other"), "S=1", false},
		"limit":          {fmt.Sprintf(base, "mem_limit: 1g", ""), "S=1", false},
		"deploy's limit": {fmt.Sprintf(base, "deploy: {resources: {limits: {pids: 5}}}", ""), "S=1", false},
	} {
		if got := hash(c.text, c.env); (got == was) != c.same {
			t.Errorf("%s: the hash is the same: %v, want %v", name, got == was, c.same)
		}
	}
}

// TestFilesWithoutAnEndAreRefused checks the bounds of the files that are read.
func TestFilesWithoutAnEndAreRefused(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	if err := os.WriteFile(large, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, composefile.MaxFile+1); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "compose.yaml")
	for secret, want := range map[string]string{"/dev/zero": "/dev/zero is not a plain file", large: "has more than"} {
		text := "name: x\nservices: {a: {image: a, secrets: [{source: s, mode: 0400}]}}\nsecrets: {s: {file: " + secret + "}}\n"
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(t.Context(), Options{Options: composefile.Options{Files: []string{path}}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("secret %s: %v", secret, err)
		}
		if _, err := Load(t.Context(), Options{Options: composefile.Options{Files: []string{secret}}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("file %s: %v", secret, err)
		}
		if _, err := Look(t.Context(), Options{Options: composefile.Options{Files: []string{secret}}}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("outline of %s: %v", secret, err)
		}
	}
}

// TestTheProgramAnswers runs the program's commands as longshore does.
func TestTheProgramAnswers(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "compose.yaml")
	if err := os.WriteFile(path, []byte("version: '3'\nname: x\nservices: {a: {image: 'a:${TAG}', depends_on: [b]}, b: {image: b, profiles: [p]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (status int, a composefile.Answer) {
		var out, errs bytes.Buffer
		status = Main(args, []string{"TAG=7"}, &out, &errs)
		if status == 0 {
			if err := json.Unmarshal(out.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
		} else if errs.Len() == 0 {
			t.Error("a status without a text")
		}
		return status, a
	}
	if _, a := run(composefile.CommandLoad, `{"Files": ["`+path+`"], "Profiles": ["p"]}`); a.Error != "" || a.Project.Services[0].Request.GetImage() != "a:7" || !strings.Contains(strings.Join(a.Project.Notes, " "), "version") {
		t.Errorf("load: %+v", a)
	}
	if _, a := run(composefile.CommandLoad, `{"Files": ["`+path+`"]}`); !strings.Contains(a.Error, `depends on undefined service`) {
		t.Errorf("load without the profile: %+v", a)
	}
	if _, a := run(composefile.CommandLook, `{"Files": ["`+path+`"]}`); a.Error != "" || a.Outline.Name != "x" || len(a.Outline.Services) != 2 || a.Outline.DependsOn["a"][0] != "b" {
		t.Errorf("look: %+v", a)
	}
	if _, a := run(composefile.CommandLoad, `{"Files": ["`+path+`"], "Profiles": ["p"], "Scale": {"b": 2000}}`); len(a.Refused) != 1 {
		t.Errorf("refused: %+v", a)
	}
	t.Chdir("/")
	if _, a := run(composefile.CommandLoad, `{}`); !a.NoFile {
		t.Errorf("no file: %+v", a)
	}
	if _, a := run(composefile.CommandLook, `{"Name": "known"}`); a.Outline == nil || a.Outline.Name != "known" || a.Outline.Services != nil {
		t.Errorf("a name alone: %+v", a)
	}
	if _, a := run("nothing", `{}`); a.Error == "" {
		t.Error("an unknown command")
	}
	if status, _ := run(); status == 0 {
		t.Error("no command")
	}
}
