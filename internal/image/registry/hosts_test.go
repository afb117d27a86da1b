package registry

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

func hostsFile(tb testing.TB, host, text string) Options {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.Mkdir(filepath.Join(dir, host), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, host, "hosts.toml"), []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return Options{HostDirs: []string{filepath.Join(dir, "absent"), dir}}
}

func named(tb testing.TB, s string) reference.Named {
	tb.Helper()
	n, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// urls returns the hosts of a repository's requests, in order.
func urls(r *Repository) string {
	var list []string
	for _, h := range r.hosts {
		list = append(list, h.Scheme+"://"+h.Host+h.Path)
	}
	return strings.Join(list, " ")
}

func TestHosts(t *testing.T) {
	for name, tc := range map[string]struct {
		image string
		opts  Options
		want  string
	}{
		"docker hub":        {"redis", Options{}, "https://registry-1.docker.io/v2"},
		"other":             {"quay.example/a/b", Options{}, "https://quay.example/v2"},
		"loopback is plain": {"127.0.0.1:5000/a", Options{}, "http://127.0.0.1:5000/v2"},
		"localhost":         {"localhost:5000/a", Options{}, "http://localhost:5000/v2"},
		"mirror":            {"redis", hostsFile(t, "docker.io", "[host.\"https://mirror.example\"]\ncapabilities=[\"pull\",\"resolve\"]\n"), "https://mirror.example/v2 https://registry-1.docker.io/v2"},
		"default":           {"quay.example/a", hostsFile(t, "_default", "[host.\"http://mirror.example:8080/prefix\"]\n"), "http://mirror.example:8080/prefix/v2 https://quay.example/v2"},
		"another name":      {"LOCALHOST:05000/a", hostsFile(t, "localhost_5000_", "server = \"https://elsewhere.example\"\n"), "https://elsewhere.example/v2"},
		"its directory":     {"quay.example/a", hostsFile(t, "Quay.example:443", "server = \"https://elsewhere.example\"\n"), "https://elsewhere.example/v2"},
		"another port":      {"localhost:5001/a", hostsFile(t, "localhost_5000_", "server = \"https://elsewhere.example\"\n"), "http://localhost:5001/v2"},
		"server":            {"quay.example/a", hostsFile(t, "quay.example", "server = \"https://elsewhere.example\"\n"), "https://elsewhere.example/v2"},
	} {
		r, err := Open(t.Context(), named(t, tc.image), tc.opts)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := urls(r); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

// TestPlainHTTPIsExplained asks a server of plain HTTP by HTTPS: the error names the file that
// allows it, and with that file the server gets a request.
func TestPlainHTTPIsExplained(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(server.Close)
	host := server.Listener.Addr().String()
	resolve := func(o Options) error {
		r, err := Open(t.Context(), named(t, host+"/a"), o)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = r.Resolve(t.Context(), "latest")
		return err
	}
	o := hostsFile(t, "elsewhere", "")
	o.HostDirs = append(o.HostDirs[1:], hostsFile(t, host, "server = \"https://"+host+"\"\n").HostDirs...)
	err := resolve(o)
	if want := filepath.Join(o.HostDirs[0], host, "hosts.toml"); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `server = "http://`+host+`"`) {
		t.Errorf("%v, want %s", err, want)
	}
	err = resolve(hostsFile(t, host, "server = \"http://"+host+"\"\n"))
	if !errdefs.IsNotFound(err) || asked.Load() == 0 {
		t.Errorf("with the file: %v, asked %d times", err, asked.Load())
	}
}

func TestBrokenHostsFileIsSaid(t *testing.T) {
	for _, text := range []string{"server = [", "[host.\"https://m.example\"]\nca = \"/does/not/exist.pem\"\n"} {
		_, err := Open(t.Context(), named(t, "quay.example/a"), hostsFile(t, "quay.example", text))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "quay.example") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func FuzzHostsFile(f *testing.F) {
	f.Add("server = \"https://a.example\"\n[host.\"https://m.example\"]\ncapabilities = [\"pull\"]\nskip_verify = true\nca = [\"a\", \"b\"]\nclient = [[\"c\", \"k\"]]\n[host.\"https://m.example\".header]\nx = \"y\"\n")
	f.Add("[host.\"\"]\noverride_path = true\ndial_timeout = \"1s\"")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Open(t.Context(), named(t, "quay.example/a"), hostsFile(t, "quay.example", text))
		if err == nil && len(r.hosts) == 0 {
			t.Error("neither hosts nor an error")
		}
	})
}
