package kubelet

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore/longshore/test/nodetest"
)

// TestCredentialProvider: kubelet asks a plugin for the login of a registry, and the agent pulls
// with it.
func TestCredentialProvider(t *testing.T) { isolated(t, credentialProvider) }

func credentialProvider(t *testing.T) {
	var password atomic.Value
	password.Store("first")
	n := start(t, options{prepared: func(n *node) {
		// The plugin answers with the password of a file and keeps the requests in another one.
		bin := filepath.Join(n.Dir, "providers")
		mkdir(t, bin)
		write(t, filepath.Join(bin, "password"), "first")
		script := `#!/bin/sh
cat >>` + bin + `/requests
echo '{"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1", "cacheKeyType": "Registry", "cacheDuration": "0s",
 "auth": {"` + n.Registry.Host + `": {"username": "node", "password": "'$(cat ` + bin + `/password)'"}}}'
`
		if err := os.WriteFile(filepath.Join(bin, "keys"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		config := filepath.Join(n.Dir, "providers.yaml")
		write(t, config, fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1
kind: CredentialProviderConfig
providers:
- name: keys
  matchImages: [%q]
  defaultCacheDuration: 0s
  apiVersion: credentialprovider.kubelet.k8s.io/v1
`, n.Registry.Host))
		n.flags = []string{"--image-credential-provider-config=" + config, "--image-credential-provider-bin-dir=" + bin}
	}})
	n.Registry.Push("private", "1", image(t))
	n.Registry.Intercept(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if user, pass, _ := req.BasicAuth(); user != "node" || pass != password.Load() {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, req)
	})
	private := func(name string) *corev1.Pod {
		p := pod(name, shell("main", idle))
		p.Spec.Containers[0].Image = n.Registry.Host + "/private:1"
		p.Spec.Containers[0].ImagePullPolicy = corev1.PullAlways
		return p
	}
	n.run(t, private("first"))
	asked, err := os.ReadFile(filepath.Join(n.Dir, "providers/requests"))
	if err != nil {
		t.Fatal(err)
	}
	contains(t, string(asked), `"image":"`+n.Registry.Host+`/private"`)
	// A login that is no longer valid fails the pull, and kubelet's next question repairs it.
	password.Store("second")
	n.add(t, private("second"))
	n.wait(t, "second", "is refused by the registry", func(p *corev1.Pod) bool {
		w := status(p, "main").State.Waiting
		return w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff")
	})
	write(t, filepath.Join(n.Dir, "providers/password"), "second")
	n.wait(t, "second", "is ready", ready)
}

// TestLogSizes: kubelet keeps a container's logs below their sizes by renaming files and asking the
// agent for new ones. No line is lost between two files.
func TestLogSizes(t *testing.T) { isolated(t, logSizes) }

func logSizes(t *testing.T) {
	const most, lines = 3, 60000
	n := start(t, options{config: map[string]any{
		"containerLogMaxSize": "256Ki", "containerLogMaxFiles": most, "containerLogMonitorInterval": "3s",
	}})
	// 6 MB, while kubelet looks every three seconds.
	p := pod("writes", shell("main", fmt.Sprintf(`i=0
while [ $i -lt %d ]; do
	echo line $i 012345678901234567890123456789
	i=$((i+1)); [ $((i%%500)) -gt 0 ] || sleep 0.25
done
echo end of lines; %s`, lines, idle)))
	n.run(t, p)
	var files []string
	nodetest.Eventually(t, "the log has rotated after the last line", func() bool {
		var err error
		if files, err = filepath.Glob(filepath.Join(n.logs, "default_writes-node_*/main/0.log*")); err != nil {
			t.Fatal(err)
		}
		if len(files) > most+1 { // one is renamed or compressed meanwhile
			t.Fatalf("%d files: %v", len(files), files)
		}
		return len(files) == most && strings.HasSuffix(n.output(t, "writes", "main", "tailLines=1"), "end of lines\n")
	})
	slices.SortFunc(files, func(a, b string) int { // the newest has no time in its name
		if strings.HasSuffix(a, "/0.log") {
			return 1
		}
		if strings.HasSuffix(b, "/0.log") {
			return -1
		}
		return strings.Compare(a, b)
	})
	next, compressed := -1, 0
	for _, f := range files {
		if strings.HasSuffix(f, ".gz") {
			compressed++
		}
		for line := range strings.Lines(logText(t, f)) {
			var i int
			_, text, _ := strings.Cut(line, " line ")
			if _, err := fmt.Sscan(text, &i); err != nil {
				continue
			}
			if next >= 0 && i != next {
				t.Fatalf("%s: line %d after %d", f, i, next-1)
			}
			next = i + 1
		}
	}
	if next != lines || compressed == 0 {
		t.Errorf("the last line is %d of %d, and %d of %v are compressed", next, lines, compressed, files)
	}
}

// logText is the text of a log file, which kubelet may have compressed.
func logText(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
