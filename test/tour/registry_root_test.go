package tour

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// registryHost is where each tool finds a registry of its own, in its own network namespace.
const registryHost = "127.0.0.1:5055"

// registryConfig is that of Debian's docker-registry: users in the file may pull and push.
const registryConfig = `version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {inmemory: {}, delete: {enabled: true}}
http: {addr: "` + registryHost + `"}
auth: {htpasswd: {realm: tour, path: `

// registry starts the real docker-registry, in the namespaces that the command before it enters,
// and waits until it answers there.
func registry(t *testing.T, in ...string) {
	t.Helper()
	for _, name := range []string{"docker-registry", "htpasswd"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("no %s: hack/deps.sh test installs what is missing", name)
		}
	}
	dir := t.TempDir()
	users, err := exec.CommandContext(t.Context(), "htpasswd", "-Bbn", "-C", "4", "me", "secret").Output()
	if err != nil {
		t.Fatalf("htpasswd: %v", err)
	}
	for name, text := range map[string]string{"users": string(users), "config.yml": registryConfig + filepath.Join(dir, "users") + "}}\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	argv := slices.Concat(in, []string{"docker-registry", "serve", filepath.Join(dir, "config.yml")})
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...)
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("what the registry said: %s", said.String()[max(0, said.Len()-4096):])
		}
	})
	asked := slices.Concat(in, []string{"busybox", "wget", "-q", "-O", "-", "http://" + registryHost + "/v2/"})
	roottest.Eventually(t, "the registry answers", func() bool {
		out, _ := exec.CommandContext(t.Context(), asked[0], asked[1:]...).CombinedOutput() // that it wants a name is an error to wget
		return bytes.Contains(out, []byte("401"))
	})
}
