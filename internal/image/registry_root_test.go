package image_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/roottest"
)

// tiny is an OCI layout with one small image, made by umoci.
func tiny(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	layout := filepath.Join(dir, "layout")
	run(t, dir, "umoci", "init", "--layout", layout)
	run(t, dir, "umoci", "new", "--image", layout+":t")
	write(t, filepath.Join(dir, "hello"), "hello")
	run(t, dir, "umoci", "insert", "--image", layout+":t", filepath.Join(dir, "hello"), "/hello")
	return layout
}

func TestBuildahImage(t *testing.T) { roottest.Run(t, buildahImage) }

func buildahImage(t *testing.T) {
	t.Helper()
	need(t, "umoci", "skopeo", "buildah", "docker-registry")
	unix.Umask(0o022)
	dir := t.TempDir()
	storage := []string{"buildah", "--root", dir + "/root", "--runroot", dir + "/runroot", "--storage-driver", "vfs"}
	buildah := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(run(t, dir, append(append([]string(nil), storage...), args...)...))
	}
	write(t, filepath.Join(dir, "policy.json"), `{"default":[{"type":"insecureAcceptAnything"}]}`)
	write(t, filepath.Join(dir, "context/app/run"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "context/app/data/one"), "1")
	ctr := buildah("from", "scratch")
	buildah("copy", "--chown", "1000:1000", ctr, dir+"/context", "/srv")
	buildah("config", "--user", "1000", "--cmd", "/srv/app/run", "--env", "A=b", ctr)
	buildah("commit", "--signature-policy", dir+"/policy.json", "--format", "docker", ctr, "oci:"+dir+"/first:t")
	buildah("commit", "--signature-policy", dir+"/policy.json", ctr, "localhost/first")
	next := buildah("from", "--signature-policy", dir+"/policy.json", "--pull-never", "localhost/first")
	root := buildah("mount", next)
	do(t, os.RemoveAll(filepath.Join(root, "srv/app/data")))
	write(t, filepath.Join(root, "srv/app/data/two"), "2")
	do(t, os.Link(filepath.Join(root, "srv/app/run"), filepath.Join(root, "srv/app/again")))
	buildah("umount", next)
	reg := startRegistry(t, false, false)
	for _, format := range []string{"docker", "oci"} {
		layout := dir + "/second-" + format
		buildah("commit", "--signature-policy", dir+"/policy.json", "--format", format, next, "oci:"+layout+":t")
		ref := reg.push(t, "oci:"+layout+":t", "buildah/"+format, map[string]string{"docker": "--format=v2s2", "oci": "--format=oci"}[format])
		s := open(t, t.TempDir())
		img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if img.Config.Config.User != "1000" || len(img.Config.Config.Env) == 0 {
			t.Errorf("%s: config %+v", format, img.Config.Config)
		}
		checkTree(t, s, "c1", img, unpacked(t, layout))
	}
}

func TestBasicAuth(t *testing.T) { roottest.Run(t, basicAuth) }

func basicAuth(t *testing.T) {
	t.Helper()
	need(t, "umoci", "skopeo", "docker-registry")
	reg := startRegistry(t, false, true)
	ref := reg.push(t, "oci:"+tiny(t)+":t", "private/app:v1")
	s := open(t, t.TempDir())
	_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
	if !errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "needs credentials") || !strings.Contains(err.Error(), reg.host) {
		t.Errorf("without credentials: %v", err)
	}
	_, err = s.Pull(t.Context(), "cri", ref, core.PullOptions{Username: testUser, Password: "wrong-" + testPassword})
	if !errdefs.IsUnauthorized(err) || strings.Contains(err.Error(), testPassword) {
		t.Errorf("with wrong credentials: %v", err)
	}
	if _, err = s.Pull(t.Context(), "cri", ref, core.PullOptions{Username: testUser, Password: testPassword}); err != nil {
		t.Errorf("with credentials: %v", err)
	}
	// Another owner cannot use the first one's credentials.
	if _, err = s.Pull(t.Context(), "nomad", ref, core.PullOptions{}); !errdefs.IsUnauthorized(err) {
		t.Errorf("another owner without credentials: %v", err)
	}

	file := filepath.Join(t.TempDir(), "config.json")
	auth := base64.StdEncoding.EncodeToString([]byte(testUser + ":" + testPassword))
	write(t, file, fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, reg.host, auth))
	cfg := image.Default()
	cfg.DockerConfig = file
	s = openWith(t, image.Options{Root: t.TempDir(), Config: cfg})
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Errorf("with a docker config.json: %v", err)
	}
	write(t, file, `{"auths":{},"credHelpers":{"`+reg.host+`":"helper"}}`)
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true}); !errdefs.IsNotImplemented(err) {
		t.Errorf("with a credential helper: %v", err)
	}
}

func TestTLSRegistryWithOwnCA(t *testing.T) { roottest.Run(t, tlsRegistryWithOwnCA) }

func tlsRegistryWithOwnCA(t *testing.T) {
	t.Helper()
	need(t, "umoci", "skopeo", "docker-registry")
	reg := startRegistry(t, true, false)
	ref := reg.push(t, "oci:"+tiny(t)+":t", "tls/app:v1")
	certs := t.TempDir()
	cfg := image.Default()
	cfg.RegistryConfig = []string{certs}
	cfg.Retries = 0
	s := openWith(t, image.Options{Root: t.TempDir(), Config: cfg})
	hosts := filepath.Join(certs, reg.host, "hosts.toml")
	host := "server = \"https://" + reg.host + "\"\n[host.\"https://" + reg.host + "\"]\n"

	write(t, hosts, host+"capabilities = [\"pull\", \"resolve\"]\n")
	_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("without the CA: %v", err)
	}
	do(t, s.Close()) // a worker sees only the certificates that existed when it started
	s = openWith(t, image.Options{Root: t.TempDir(), Config: cfg})
	write(t, hosts, host+"ca = \""+reg.ca+"\"\n")
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Errorf("with the CA: %v", err)
	}
	write(t, hosts, host+"skip_verify = true\n")
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{Always: true}); err != nil {
		t.Errorf("with skip_verify: %v", err)
	}
}

func TestMirrorIsAskedFirst(t *testing.T) { roottest.Run(t, mirrorIsAskedFirst) }

func mirrorIsAskedFirst(t *testing.T) {
	t.Helper()
	need(t, "umoci", "skopeo", "docker-registry")
	reg := startRegistry(t, false, false)
	reg.push(t, "oci:"+tiny(t)+":t", "library/app:v1")
	certs := t.TempDir()
	write(t, filepath.Join(certs, "_default", "hosts.toml"), "[host.\"http://"+reg.host+"\"]\ncapabilities = [\"pull\", \"resolve\"]\n")
	cfg := image.Default()
	cfg.RegistryConfig = []string{certs}
	s := openWith(t, image.Options{Root: t.TempDir(), Config: cfg})
	img, err := s.Pull(context.WithoutCancel(t.Context()), "cri", "app:v1", core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(img.Names) != 1 || img.Names[0] != "docker.io/library/app:v1" {
		t.Errorf("names %v", img.Names)
	}
}
