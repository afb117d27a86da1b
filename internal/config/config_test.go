package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// uncommented returns the default file with every key set.
func uncommented(t *testing.T) string {
	t.Helper()
	return regexp.MustCompile(`(?m)^#([a-z0-9_]+ = )`).ReplaceAllString(DefaultFile(), "$1")
}

func TestDefaultFileSaysTheDefaults(t *testing.T) {
	for name, text := range map[string]string{"as it is": DefaultFile(), "uncommented": uncommented(t)} {
		got, err := Parse("default.toml", []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// An empty list in the file means the same as none.
		if diff := cmp.Diff(Default(), got, cmp.Transformer("empty", func(l []string) []string {
			if len(l) == 0 {
				return nil
			}
			return l
		})); diff != "" {
			t.Errorf("%s (-code +file):\n%s", name, diff)
		}
	}
}

func TestDefaultFileDocumentsEveryKey(t *testing.T) {
	section := ""
	documented := map[string]bool{}
	for line := range strings.Lines(DefaultFile()) {
		line = strings.TrimSpace(line)
		if m := regexp.MustCompile(`^\[(.*)\]$`).FindStringSubmatch(line); m != nil {
			section = regexp.MustCompile(`^runtimes\..*`).ReplaceAllString(m[1], "runtimes.NAME")
			continue
		}
		if m := regexp.MustCompile(`^#([a-z0-9_]+) = `).FindStringSubmatch(line); m != nil {
			documented[section+"."+m[1]] = true
		}
	}
	for _, k := range Keys() {
		if strings.HasPrefix(k, "egress.face.NAME.") {
			continue // the file says so above the keys of [egress], which are the same
		}
		if !documented[k] {
			t.Errorf("default.toml lacks %s", k)
		}
		delete(documented, k)
	}
	for k := range documented {
		t.Errorf("default.toml has %s, which nobody knows", k)
	}
}

func TestDefaultIsValid(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Error(err)
	}
}

func TestUnknownKeysAreErrorsWithLineAndHint(t *testing.T) {
	for text, want := range map[string]string{
		"[agent]\nroot = \"/x\"\nlog_levl = \"info\"\n": "f.toml:3: unknown key agent.log_levl (did you mean agent.log_level?)",
		"[image]\ndefault_registry = \"x\"\n":           "f.toml:1: unknown key image (did you mean images?)",
		"[agents]\nzzzzzzzzzzzzzz = 1\n":                "f.toml:1: unknown key agents",
		"[agent]\nroot = 7\n":                           "f.toml:2: ",
		"[agent\n":                                      "f.toml:1: ",
		"[network]\nmtu = \"big\"\n":                    "f.toml:2: ",
		"[runtimes.crun]\npth = \"/usr/bin/crun\"\n":    "unknown key runtimes.crun.pth",
		"[images]\nstall_timeout = \"soon\"\n":          "f.toml:2: ",
	} {
		_, err := Parse("f.toml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
}

func TestConfDIsReadInOrderOverTheMainFile(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"config.toml":         "[agent]\nlog_level = \"warn\"\n[runtimes.runsc]\npath = \"/opt/runsc\"\n[images]\nregistry_config = [\"/a\", \"/b\"]\n",
		"conf.d/20-b.toml":    "[agent]\nlog_level = \"error\"\n[images]\nregistry_config = [\"/c\"]\n",
		"conf.d/10-a.toml":    "[agent]\nlog_level = \"debug\"\nlog_format = \"json\"\n",
		"conf.d/90-c.toml.no": "nonsense",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := Load(filepath.Join(dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Agent.LogLevel, want.Agent.LogFormat = "error", "json"
	want.Runtimes["runsc"] = Runtime{Path: "/opt/runsc"}
	want.Images.RegistryConfig = []string{"/c"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := Load(filepath.Join(dir, "missing.toml")); err == nil {
		t.Error("a missing file was taken")
	}
}

func TestValidateTellsEverything(t *testing.T) {
	cfg := Default()
	cfg.Agent.Root, cfg.Agent.LogLevel, cfg.Engine.Runtime, cfg.Engine.CgroupDriver = "here", "loud", "kata", "none"
	cfg.Engine.Ulimits = []string{"nofile=5:6", "nofile=7"}
	cfg.Metrics.Listen = "0.0.0.0:9100"
	err := cfg.Validate()
	if err == nil {
		t.Fatal("was taken")
	}
	for _, want := range []string{"agent.root", "agent.log_level", "engine.runtime", "engine.cgroup_driver", "metrics.cert", `engine.ulimits: "nofile=7" is the second`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v lacks %s", err, want)
		}
	}
}

// TestCheckFiles: it reads every file that a start reads, and none of disabled faces.
func TestCheckFiles(t *testing.T) {
	cfg := Default()
	cfg.Metrics.Listen, cfg.Metrics.Cert, cfg.Metrics.Key = "127.0.0.1:0", "/nonexistent/m", "/nonexistent/m"
	cfg.Face.CRI.StreamCert, cfg.Face.CRI.StreamKey = "/nonexistent/s", "/nonexistent/s"
	cfg.Face.Mesos.Listen, cfg.Face.Mesos.Credentials = "127.0.0.1:0", "/nonexistent/c"
	cfg.Face.CRI.Enabled, cfg.Face.Mesos.Enabled = true, true
	text := fmt.Sprint(cfg.CheckFiles())
	for _, want := range []string{"read metrics.cert", "read face.cri.stream_cert", "read credentials"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks %s", text, want)
		}
	}
	cfg.Face.CRI.Enabled, cfg.Face.Mesos.Enabled, cfg.Metrics.Listen = false, false, ""
	if err := cfg.CheckFiles(); err != nil {
		t.Errorf("nothing of it runs: %v", err)
	}
}

func TestRootedTakesTheSocketsAlong(t *testing.T) {
	cfg := Default().Rooted("/x/root", "/x/state")
	if cfg.Agent.Root != "/x/root" || cfg.Agent.State != "/x/state" || cfg.Face.CRI.Socket != "/x/state/cri.sock" || cfg.Face.Nomad.Socket != "/x/state/nomad.sock" ||
		cfg.Face.Mesos.Socket != "/x/state/mesos.sock" {
		t.Errorf("got %+v, socket %s", cfg.Agent, cfg.Face.CRI.Socket)
	}
	own := Default()
	own.Face.CRI.Socket = "/run/cri.sock"
	if got := own.Rooted("", "/x/state").Face.CRI.Socket; got != "/run/cri.sock" {
		t.Errorf("a socket of one's own was moved to %s", got)
	}
}

func TestMaskedShowsAllButSecrets(t *testing.T) {
	text, err := Default().Masked()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse("show", []byte(text))
	if err != nil {
		t.Fatalf("what is shown cannot be read: %v\n%s", err, text)
	}
	if err := back.Validate(); err != nil {
		t.Error(err)
	}
}

func TestKeysAreHidden(t *testing.T) {
	type inner struct {
		Token string `toml:"token" secret:"true"`
		User  string `toml:"user"`
	}
	type outer struct {
		One  inner            `toml:"one"`
		Many map[string]inner `toml:"many"`
	}
	secret := outer{One: inner{"tok1", "bob"}, Many: map[string]inner{"a": {"tok2", "eve"}}}
	text, err := maskedOf(secret)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "tok1") || strings.Contains(text, "tok2") {
		t.Errorf("a secret is shown:\n%s", text)
	}
	if !strings.Contains(text, "bob") || !strings.Contains(text, "eve") {
		t.Errorf("too much is hidden:\n%s", text)
	}
	if secret.Many["a"].Token != "tok2" {
		t.Error("the original was changed")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(DefaultFile()))
	f.Add([]byte("[agent]\nroot = \"/x\"\nlog_levl = 1\n"))
	f.Add([]byte("[runtimes.\"a.b\"]\npath = '''x'''\n[[face.cri]]\n"))
	f.Add([]byte("images.stall_timeout = \"1h\"\nface.cri.handlers = {a = \"b\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("fuzz.toml", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "fuzz.toml") {
				t.Errorf("error does not name the file: %v", err)
			}
			return
		}
		_ = cfg.Validate()
		text, err := cfg.Masked()
		if err != nil {
			t.Fatalf("cannot be shown: %v", err)
		}
		if _, err := Parse("fuzz.toml", []byte(text)); err != nil {
			t.Fatalf("what is shown cannot be read: %v\n%s", err, text)
		}
	})
}
