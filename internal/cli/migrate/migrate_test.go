package migrate_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/cli/migrate"
	"github.com/longshore/longshore/internal/config"
)

type reader = func(fs.FS, string) (*migrate.Result, error)

// translated returns the configuration that the agent reads from the translation of files, and the translation.
func translated(t *testing.T, read reader, name string, files map[string]string) (config.Config, *migrate.Result) {
	t.Helper()
	r, err := read(tree(files), name)
	if err != nil {
		t.Fatal(err)
	}
	migrate.Check(r)
	text, err := r.TOML("test")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse("test.toml", text)
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return cfg, r
}

func tree(files map[string]string) fs.FS {
	m := fstest.MapFS{}
	for name, text := range files {
		m[strings.TrimPrefix(name, "/")] = &fstest.MapFile{Data: []byte(text)}
	}
	return m
}

// wantNotes fails the test unless there is a note with each text, and no other but want more.
func wantNotes(t *testing.T, r *migrate.Result, more int, want ...string) {
	t.Helper()
	var all []string
	for _, n := range r.Notes {
		all = append(all, n.String())
	}
	text := strings.Join(all, "\n")
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("no note has %q:\n%s", w, text)
		}
	}
	if len(all) != len(want)+more {
		t.Errorf("%d notes, want %d:\n%s", len(all), len(want)+more, text)
	}
}

// equal fails the test unless got is want, as texts.
func equal(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := strings.TrimSpace(toText(got)), toText(want); g != w {
		t.Errorf("%s is %s, want %s", what, g, w)
	}
}

func toText(v any) string {
	r := migrate.Result{Settings: []migrate.Setting{{Path: []string{"t", "k"}, Value: v}}}
	b, err := r.TOML("")
	if err != nil {
		return err.Error()
	}
	_, text, _ := strings.Cut(string(b), "k = ")
	return strings.TrimSpace(text)
}

func TestContainerd3(t *testing.T) {
	cfg, r := translated(t, migrate.Containerd, migrate.ContainerdConfig, map[string]string{migrate.ContainerdConfig: `
version = 3
imports = ["/etc/containerd/conf.d/*.toml", "more.toml"]
root = '/var/lib/containerd'
[debug]
level = 'warn'
[grpc]
max_recv_message_size = 67108864
[plugins.'io.containerd.cri.v1.images']
snapshotter = 'overlayfs'
max_concurrent_downloads = 7
image_pull_progress_timeout = '5m'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = 'registry.k8s.io/pause:3.10'
agent = 'example.org/agent:1'
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = '/etc/containerd/certs.d:/opt/certs.d'
[plugins.'io.containerd.cri.v1.runtime']
enable_selinux = false
cdi_spec_dirs = ['/opt/cdi']
max_container_log_line_size = 32768
something_new = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = 'runc'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'
sandboxer = 'podsandbox'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'fast.one']
runtime_type = 'io.containerd.runc.v2'
privileged_without_host_devices = true
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'fast.one'.options]
BinaryName = '/opt/bin/crun'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]
runtime_type = 'io.containerd.kata.v2'
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['/opt/cni/bin', '/usr/libexec/cni']
[plugins.'io.containerd.grpc.v1.cri']
stream_server_address = '127.0.0.1'
stream_server_port = '10010'
stream_idle_timeout = '4h0m0s'
[plugins.'io.containerd.nri.v1.nri']
disable = false
socket_path = '/run/nri.sock'
[plugins.'io.containerd.gc.v1.scheduler']
mutation_threshold = 100
`, "/etc/containerd/conf.d/a.toml": `
[plugins.'io.containerd.cri.v1.images']
max_concurrent_downloads = 9
`, "/etc/containerd/more.toml": `
[plugins.'io.containerd.cri.v1.runtime'.cni]
conf_dir = '/opt/cni/conf'
`})
	equal(t, "log level", cfg.Agent.LogLevel, "warn")
	equal(t, "message size", cfg.Face.CRI.MaxMessageBytes, 67108864)
	equal(t, "layers", cfg.Images.MaxConcurrentLayers, 9)
	equal(t, "pinned", cfg.Face.CRI.PinnedImages, []string{"example.org/agent:1"})
	equal(t, "hosts", cfg.Images.RegistryConfig, []string{"/etc/containerd/certs.d", "/opt/certs.d"})
	equal(t, "CDI", cfg.Engine.CDIDirs, []string{"/opt/cdi"})
	equal(t, "driver", cfg.Engine.CgroupDriver+" "+cfg.Face.CRI.CgroupDriver, "systemd systemd")
	equal(t, "runtime", cfg.Runtimes["fast.one"].Path, "/opt/bin/crun")
	equal(t, "devices", cfg.Face.CRI.PrivilegedWithoutHostDevices, []string{"fast.one"})
	equal(t, "network", string(cfg.Network.Mode)+" "+cfg.Network.CNI.ConfDir, "cni /opt/cni/conf")
	equal(t, "plugins", cfg.Network.CNI.BinDirs, []string{"/opt/cni/bin", "/usr/libexec/cni"})
	equal(t, "streams", cfg.Face.CRI.StreamAddress, "127.0.0.1:10010")
	equal(t, "NRI", cfg.Face.CRI.NRISocket, "/run/nri.sock")
	wantNotes(t, r, 1, "max_container_log_line_size: the length", "something_new: not known", "kata: runtime_type io.containerd.kata.v2 is a shim", "runc: the default becomes", "none are started by the agent")
	if len(r.Files) > 0 {
		t.Errorf("files %v", r.Files)
	}
}

// The old form of mirrors becomes files, with the mirrors' own TLS and the registries' logins.
func TestContainerd2Registries(t *testing.T) {
	cfg, r := translated(t, migrate.Containerd, "/c.toml", map[string]string{"/c.toml": `
version = 2
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
endpoint = ["https://mirror.example:5000", "http://10.0.0.1/proxy/v2"]
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."*"]
endpoint = ["https://all.example"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."mirror.example:5000".tls]
ca_file = "/etc/ca.pem"
cert_file = "/etc/c.pem"
key_file = "/etc/k.pem"
[plugins."io.containerd.grpc.v1.cri".registry.configs."private.example".tls]
insecure_skip_verify = true
[plugins."io.containerd.grpc.v1.cri".registry.configs."private.example".auth]
username = "u"
password = "planted"
[plugins."io.containerd.grpc.v1.cri".registry.configs."../x".tls]
insecure_skip_verify = true
`})
	equal(t, "hosts", cfg.Images.RegistryConfig, []string{"/etc/longshore/certs.d"})
	equal(t, "logins", cfg.Images.DockerConfig, "/etc/longshore/registries.json")
	want := map[string]string{
		"/etc/longshore/certs.d/docker.io/hosts.toml": `[host.'https://mirror.example:5000']
capabilities = ["pull", "resolve"]
ca = '/etc/ca.pem'
client = [['/etc/c.pem', '/etc/k.pem']]

[host.'http://10.0.0.1/proxy/v2']
capabilities = ["pull", "resolve"]
override_path = true
`,
		"/etc/longshore/certs.d/_default/hosts.toml": `[host.'https://all.example']
capabilities = ["pull", "resolve"]
`,
		"/etc/longshore/certs.d/private.example/hosts.toml": `[host.'https://private.example']
capabilities = ["pull", "resolve"]
skip_verify = true
`,
		"/etc/longshore/registries.json": `{
  "auths": {
    "private.example": {
      "auth": "dTpwbGFudGVk"
    }
  }
}
`,
	}
	for _, f := range r.Files {
		if string(f.Body) != want[f.Name] {
			t.Errorf("%s:\n%s\nwant\n%s", f.Name, f.Body, want[f.Name])
		}
		if delete(want, f.Name); f.Mode.Perm() != 0o600 && strings.HasSuffix(f.Name, ".json") {
			t.Errorf("%s has mode %v", f.Name, f.Mode)
		}
	}
	if len(want) > 0 {
		t.Errorf("missing %v", want)
	}
	wantNotes(t, r, 1, `"../x" is no name of a registry`)
	if text, _ := r.TOML(""); strings.Contains(string(text), "planted") {
		t.Error("a password is in the settings")
	}
}

func TestCRIO(t *testing.T) {
	cfg, r := translated(t, migrate.CRIO, migrate.CRIOConfig, map[string]string{"/etc/crio/crio.conf": `
[crio]
storage_driver = "overlay"
[crio.api]
listen = "/var/run/crio/crio.sock"
stream_address = "192.0.2.1"
[crio.runtime]
default_runtime = "crun"
log_level = "debug"
log_size_max = 1048576
pids_limit = 100
hooks_dir = ["/usr/share/hooks"]
[crio.runtime.runtimes.crun]
runtime_path = "/usr/bin/crun"
monitor_path = "/usr/bin/conmon"
[crio.runtime.workloads.w]
activation_annotation = "x"
[crio.network]
plugin_dirs = ["/opt/cni/bin"]
[crio.metrics]
enable_metrics = true
metrics_port = 9537
`, "/etc/crio/crio.conf.d/10.conf": `
[crio.runtime]
cgroup_manager = "cgroupfs"
log_level = "info"
[crio.nri]
enable_nri = false
`, "/etc/crio/crio.conf.d/ignored.txt": `[`, "/etc/containers/registries.conf": `
unqualified-search-registries = ["quay.example", "docker.io"]
[[registry]]
prefix = "docker.io"
location = "docker.io"
[[registry.mirror]]
location = "mirror.example/hub"
[[registry]]
location = "bad.example"
blocked = true
[[registry]]
prefix = "x.example/team"
location = "y.example/team"
`})
	equal(t, "driver", cfg.Face.CRI.CgroupDriver+" "+cfg.Engine.CgroupDriver, "cgroupfs auto")
	equal(t, "log level", cfg.Agent.LogLevel, "info")
	equal(t, "log size", cfg.Face.CRI.LogMaxBytes, 1048576)
	equal(t, "NRI", cfg.Face.CRI.NRISocket, "")
	equal(t, "runtime", cfg.Runtimes["crun"].Path, "/usr/bin/crun")
	equal(t, "short names", cfg.Images.DefaultRegistry, "quay.example")
	equal(t, "rule", cfg.Images.Policy.Rules[0].Match[0]+" "+cfg.Images.Policy.Rules[0].Verdict, "bad.example/** reject")
	wantNotes(t, r, 2, "stream_address: 192.0.2.1 is no address of loopback", "pids_limit: limits of a pod's processes", "hooks_dir: ", "workloads: ", "only the first of quay.example, docker.io",
		"registry x.example/team: mirrors", "that there was 127.0.0.1:9537")
	if len(r.Files) != 1 || string(r.Files[0].Body) != "[host.'https://mirror.example/v2/hub']\ncapabilities = [\"pull\", \"resolve\"]\noverride_path = true\n" {
		t.Errorf("files %s", r.Files)
	}
}

func TestWhatCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		read  reader
		files map[string]string
		want  string
	}{
		"no file":          {migrate.Containerd, nil, "name the configuration with --config"},
		"no file of CRI-O": {migrate.CRIO, nil, "neither this file nor one in"},
		"no TOML":          {migrate.Containerd, map[string]string{"/c": "\n[x"}, "/c:2:"},
		"a newer version":  {migrate.Containerd, map[string]string{"/c": "version = 5"}, "versions up to 4"},
		"a missing import": {migrate.Containerd, map[string]string{"/c": `imports = ["/d"]`}, "read /d"},
		"too large":        {migrate.Containerd, map[string]string{"/c": strings.Repeat("#", 5<<20)}, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.read(tree(c.files), "/c"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	// A file that imports itself is read once.
	if _, err := migrate.Containerd(tree(map[string]string{"/c": `imports = ["/c", "*"]`}), "/c"); err != nil {
		t.Error(err)
	}
	// A value that the agent does not accept is a note.
	cfg, r := translated(t, migrate.Containerd, "/c", map[string]string{"/c": "[plugins.cri]\nstream_idle_timeout = \"soon\""})
	wantNotes(t, r, 1, "soon is not valid here")
	equal(t, "network", string(cfg.Network.Mode), "cni")
}

func TestWriteReplacesNothing(t *testing.T) {
	root := t.TempDir()
	r := &migrate.Result{Files: []migrate.File{{Name: "/etc/longshore/certs.d/h/hosts.toml", Body: []byte("x"), Mode: 0o644}}}
	names, err := migrate.Write(root, r, []byte("a"))
	if err != nil || len(names) != 2 {
		t.Fatal(names, err)
	}
	settings := filepath.Join(root, names[1])
	if b, err := os.ReadFile(settings); string(b) != "a" {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.Remove(settings); err != nil {
		t.Fatal(err)
	}
	if _, err := migrate.Write(root, r, []byte("b")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("a second write: %v", err)
	}
	if _, err := os.Stat(settings); err == nil {
		t.Error("a refused write has left a file")
	}
}

// The notes name pages of the documentation that exist.
func TestNotesNamePages(t *testing.T) {
	pages := map[string]bool{}
	for _, file := range []string{"containerd.go", "crio.go", "registries.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range regexp.MustCompile(`docs/[a-z/-]+\.md`).FindAllString(string(text), -1) {
			pages[page] = true
			if _, err := os.Stat(filepath.Join("../../..", page)); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if len(pages) < 3 {
		t.Errorf("only %d pages: does the pattern still fit?", len(pages))
	}
}

func FuzzMigrate(f *testing.F) {
	f.Add([]byte("version = 2\n[plugins.cri.registry.mirrors.\"a\".b]\nendpoint = [\"x\"]"))
	f.Add([]byte("[crio.runtime.runtimes.\"x\\n]\"]\nruntime_path = \"/x\""))
	f.Add([]byte("[[registry]]\nprefix = \"a\\u0000\"\nblocked = true"))
	f.Fuzz(func(t *testing.T, data []byte) {
		files := map[string]string{"/c": string(data), "/etc/containers/registries.conf": string(data)}
		for _, read := range []reader{migrate.Containerd, migrate.CRIO} {
			r, err := read(tree(files), "/c")
			if err != nil {
				continue
			}
			migrate.Check(r)
			text, err := r.TOML("fuzz")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := config.Parse("fuzz.toml", text); err != nil {
				t.Fatalf("%v:\n%s", err, text)
			}
			for _, f := range r.Files {
				if !strings.HasPrefix(filepath.Clean(f.Name), migrate.Dir+"/") || filepath.Clean(f.Name) != f.Name {
					t.Fatalf("file %q", f.Name)
				}
			}
		}
	})
}
