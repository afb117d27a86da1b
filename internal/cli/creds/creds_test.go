package creds_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/cli/creds"
)

func TestTheFileItself(t *testing.T) {
	dir := t.TempDir()
	f := creds.File{Path: filepath.Join(dir, "new", "config.json")}
	if _, ok, err := f.Get(t.Context(), "docker.io"); ok || err != nil {
		t.Errorf("without a file: %v, %v", ok, err)
	}
	want := creds.Credentials{Username: "me", Password: "a:b:c"}
	for _, host := range []string{"docker.io", "registry.example.com:5000"} {
		if err := f.Put(t.Context(), host, want); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(f.Path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the file: %v, %v", fi.Mode(), err)
	}
	for _, host := range []string{"", "index.docker.io", "https://registry.example.com:5000/v2/"} {
		if got, ok, err := f.Get(t.Context(), host); !ok || err != nil || got != want {
			t.Errorf("%q: %+v, %v, %v", host, got, ok, err)
		}
	}
	if _, ok, err := f.Get(t.Context(), "registry.example.com"); ok || err != nil {
		t.Errorf("another port: %v, %v", ok, err)
	}
	if had, err := f.Delete(t.Context(), "docker.io"); !had || err != nil {
		t.Errorf("delete: %v, %v", had, err)
	}
	if had, err := f.Delete(t.Context(), "docker.io"); had || err != nil {
		t.Errorf("delete again: %v, %v", had, err)
	}
}

// TestOthersKeys checks that members of other programs stay in the file, and that keys of docker and podman are read.
func TestOthersKeys(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "real.json"), filepath.Join(dir, "config.json")
	const docker = `{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6cHc="}, "token.example.com": {"identitytoken": "tok"}, "repo.example.com/team": {"auth": "eDp5"}},
		"detachKeys": "ctrl-x", "HttpHeaders": {"A": "b"}}`
	if err := os.WriteFile(target, []byte(docker), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real.json", link); err != nil {
		t.Fatal(err)
	}
	f := creds.File{Path: link}
	if got, ok, err := f.Get(t.Context(), "docker.io"); !ok || err != nil || got.Username != "me" || got.Password != "pw" {
		t.Errorf("docker's: %+v, %v, %v", got, ok, err)
	}
	if got, ok, err := f.Get(t.Context(), "token.example.com"); !ok || err != nil || got.Token != "tok" {
		t.Errorf("a token: %+v, %v, %v", got, ok, err)
	}
	if got, ok, err := f.Get(t.Context(), "repo.example.com"); ok || err != nil {
		t.Errorf("a single repository's are the whole registry's: %+v, %v", got, err)
	}
	if err := f.Put(t.Context(), "new.example.com", creds.Credentials{Username: "x", Password: "y"}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil || doc["detachKeys"] != "ctrl-x" || doc["HttpHeaders"] == nil {
		t.Errorf("what others have is lost: %s, %v", raw, err)
	}
	if fi, err := os.Lstat(link); err != nil || fi.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link: %v, %v", fi, err)
	}
	if fi, err := os.Stat(target); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("others can read the file: %v, %v", fi.Mode(), err)
	}
	for _, bad := range []string{`{`, `{"auths": 1}`, `{"auths": {"docker.io": {"auth": "!"}}}`, `{"auths": {"docker.io": {"auth": "bWU="}}}`, `[]`} {
		if err := os.WriteFile(target, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := f.Get(t.Context(), "docker.io"); ok || err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
}

// helper is a credential helper that keeps one secret in a file beside it.
const helper = `#!/bin/sh
kept=${0%/*}/kept
case $1 in
store) cat >"$kept" ;;
get) read -r url; grep -q "\"$url\"" "$kept" 2>/dev/null && cat "$kept" || { echo "credentials not found in native keychain"; exit 1; } ;;
erase) rm "$kept" ;;
esac
`

func TestHelpers(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "docker-credential-mine")
	if err := os.WriteFile(program, []byte(helper), 0o755); err != nil {
		t.Fatal(err)
	}
	f := creds.File{Path: filepath.Join(dir, "config.json"), Look: func(name string) (string, error) {
		if name != "docker-credential-mine" {
			return "", os.ErrNotExist
		}
		return program, nil
	}}
	if err := os.WriteFile(f.Path, []byte(`{"credsStore": "mine", "credHelpers": {"other.example.com": "other", "bad.example.com": "../../bin/sh"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := f.Get(t.Context(), "docker.io"); ok || err != nil {
		t.Errorf("a helper without secrets: %v, %v", ok, err)
	}
	for _, want := range []creds.Credentials{{Username: "me", Password: "pw"}, {Token: "tok"}} {
		if err := f.Put(t.Context(), "docker.io", want); err != nil {
			t.Fatal(err)
		}
		if got, ok, err := f.Get(t.Context(), "docker.io"); !ok || err != nil || got != want {
			t.Errorf("%+v, %v, %v, want %+v", got, ok, err, want)
		}
	}
	if raw, err := os.ReadFile(f.Path); err != nil || strings.Contains(string(raw), "auths") {
		t.Errorf("the file has what the helper keeps: %s, %v", raw, err)
	}
	if had, err := f.Delete(t.Context(), ""); !had || err != nil {
		t.Errorf("erase: %v, %v", had, err)
	}
	if _, ok, err := f.Get(t.Context(), "docker.io"); ok || err != nil {
		t.Errorf("after erase: %v, %v", ok, err)
	}
	for host, want := range map[string]string{"other.example.com": "docker-credential-other, which is not installed", "bad.example.com": "is not a program's name"} {
		if _, _, err := f.Get(t.Context(), host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestWhereTheFileIs(t *testing.T) {
	for want, env := range map[string]map[string]string{
		"/a":                     {"LONGSHORE_AUTH_FILE": "/a", "REGISTRY_AUTH_FILE": "/b", "DOCKER_CONFIG": "/c", "HOME": "/h"},
		"/b":                     {"REGISTRY_AUTH_FILE": "/b", "DOCKER_CONFIG": "/c", "HOME": "/h"},
		"/c/config.json":         {"DOCKER_CONFIG": "/c", "HOME": "/h"},
		"/h/.docker/config.json": {"HOME": "/h"},
		"":                       {},
	} {
		if got := creds.Open(func(name string) string { return env[name] }).Path; got != want {
			t.Errorf("%v: %s, want %s", env, got, want)
		}
	}
}
