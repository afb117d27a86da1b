// Package creds keeps registries' credentials as docker and podman do: in the file config.json or
// auth.json, or with the helper programs that it names.
package creds

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/image/hostname"
	"github.com/longshore/longshore/internal/subprocess"
)

// Credentials authenticate at a registry.
type Credentials struct {
	Username string
	Password string
	Token    string // an identity token in place of name and password
}

// File is a credential file.
type File struct {
	Path string
	// Look finds the file of a helper's program; nil is exec.LookPath.
	Look func(program string) (string, error)
}

// The limits of a file's and of a helper's answer's size, and of a helper's time.
const (
	maxFile    = 4 << 20
	maxAnswer  = 1 << 20
	helperTime = time.Minute
)

// Open returns the file that the environment names: LONGSHORE_AUTH_FILE, podman's
// REGISTRY_AUTH_FILE, docker's DOCKER_CONFIG or docker's file in the home directory.
func Open(getenv func(string) string) File {
	switch {
	case getenv("LONGSHORE_AUTH_FILE") != "":
		return File{Path: getenv("LONGSHORE_AUTH_FILE")}
	case getenv("REGISTRY_AUTH_FILE") != "":
		return File{Path: getenv("REGISTRY_AUTH_FILE")}
	case getenv("DOCKER_CONFIG") != "":
		return File{Path: filepath.Join(getenv("DOCKER_CONFIG"), "config.json")}
	case getenv("HOME") != "":
		return File{Path: filepath.Join(getenv("HOME"), ".docker", "config.json")}
	}
	return File{}
}

// dockerHub is the key of Docker Hub, for all of its names.
const dockerHub = "https://index.docker.io/v1/"

// Host returns one name for all forms of a registry's name: with a scheme, with a path, and Docker
// Hub's. "" is Docker Hub.
func Host(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
	s, _, _ = strings.Cut(s, "/")
	if s == "" {
		return hostname.DockerHub
	}
	return hostname.Host(s)
}

// key is a host's key in the file and for helpers.
func key(host string) string {
	if host == "docker.io" {
		return dockerHub
	}
	return host
}

// config has the members of the file that we use. rest has all members.
type config struct {
	auths   map[string]json.RawMessage
	store   string
	helpers map[string]string
	rest    map[string]json.RawMessage
}

func (f File) read() (config, error) {
	c := config{auths: map[string]json.RawMessage{}, rest: map[string]json.RawMessage{}}
	if f.Path == "" {
		return c, nil
	}
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("read credentials: %w", err)
	}
	defer func() { _ = file.Close() }()
	raw, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(raw) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err == nil && len(bytes.TrimSpace(raw)) > 0 {
		err = c.parse(raw)
	}
	if err != nil {
		return c, fmt.Errorf("read credentials %s: %w", f.Path, err)
	}
	return c, nil
}

func (c *config) parse(raw []byte) error {
	if err := json.Unmarshal(raw, &c.rest); err != nil {
		return err
	}
	for name, to := range map[string]any{"auths": &c.auths, "credsStore": &c.store, "credHelpers": &c.helpers} {
		if v, ok := c.rest[name]; ok {
			if err := json.Unmarshal(v, to); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if c.auths == nil {
		c.auths = map[string]json.RawMessage{}
	}
	if c.rest == nil {
		c.rest = map[string]json.RawMessage{}
	}
	return nil
}

// helper returns the helper for a host, "" when its credentials are in the file.
func (c *config) helper(host string) string {
	for k, name := range c.helpers {
		if Host(k) == host {
			return name
		}
	}
	return c.store
}

// entry is a member of auths.
type entry struct {
	Auth          string `json:"auth,omitempty"`
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
}

// Get returns the credentials for a host, and whether there are any.
func (f File) Get(ctx context.Context, host string) (Credentials, bool, error) {
	host = Host(host)
	c, err := f.read()
	if err != nil {
		return Credentials{}, false, err
	}
	if name := c.helper(host); name != "" {
		return f.ask(ctx, name, host)
	}
	for k, raw := range c.auths {
		if Host(k) != host || strings.Contains(strings.TrimPrefix(strings.TrimPrefix(k, "https://"), "http://"), "/") && k != dockerHub && host != "docker.io" {
			continue // skip podman's keys of single repositories
		}
		var e entry
		if err := json.Unmarshal(raw, &e); err != nil {
			return Credentials{}, false, fmt.Errorf("read credentials %s: auths of %q: %w", f.Path, k, err)
		}
		found := Credentials{Username: e.Username, Password: e.Password, Token: e.IdentityToken}
		if e.Auth != "" {
			text, err := base64.StdEncoding.DecodeString(e.Auth)
			name, password, ok := strings.Cut(string(text), ":")
			if err != nil || !ok {
				return Credentials{}, false, fmt.Errorf("read credentials %s: auth of %q is not the base64 of user:password", f.Path, k)
			}
			found.Username, found.Password = name, strings.TrimRight(password, "\x00")
		}
		if found != (Credentials{}) {
			return found, true, nil
		}
	}
	return Credentials{}, false, nil
}

// Put stores the credentials for a host.
func (f File) Put(ctx context.Context, host string, cred Credentials) error {
	host = Host(host)
	if f.Path == "" {
		return errors.New("store credentials: neither HOME nor LONGSHORE_AUTH_FILE is set")
	}
	c, err := f.read()
	if err != nil {
		return err
	}
	if name := c.helper(host); name != "" {
		secret := helperMessage{key(host), cred.Username, cred.Password}
		if cred.Token != "" {
			secret.Username, secret.Secret = tokenUser, cred.Token
		}
		in, err := json.Marshal(secret) //nolint:gosec // the helper stores it
		if err != nil {
			return err
		}
		_, err = f.run(ctx, name, "store", in)
		return err
	}
	e := entry{IdentityToken: cred.Token}
	if cred.Username != "" {
		e.Auth = base64.StdEncoding.EncodeToString([]byte(cred.Username + ":" + cred.Password))
	}
	c.drop(host)
	if c.auths[key(host)], err = json.Marshal(e); err != nil { //nolint:gosec // it is written where credentials are kept
		return err
	}
	return f.write(c)
}

// Delete removes the credentials for a host, and reports whether there were any.
func (f File) Delete(ctx context.Context, host string) (bool, error) {
	host = Host(host)
	c, err := f.read()
	if err != nil {
		return false, err
	}
	if name := c.helper(host); name != "" {
		_, had, err := f.ask(ctx, name, host)
		if err != nil || !had {
			return false, err
		}
		_, err = f.run(ctx, name, "erase", []byte(key(host)))
		return err == nil, err
	}
	if !c.drop(host) {
		return false, nil
	}
	return true, f.write(c)
}

// Hosts returns the hosts that have credentials in the file itself.
func (f File) Hosts() ([]string, error) {
	c, err := f.read()
	var list []string
	for k := range c.auths {
		list = append(list, Host(k))
	}
	return list, err
}

func (c *config) drop(host string) bool {
	had := false
	for k := range c.auths {
		if Host(k) == host {
			delete(c.auths, k)
			had = true
		}
	}
	return had
}

// write replaces the file, which only its user can read. Unknown members stay in it.
func (f File) write(c config) (err error) {
	if c.rest["auths"], err = json.Marshal(c.auths); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(c.rest, "", "\t")
	if err != nil {
		return err
	}
	path := f.Path
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a link stays one
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("store credentials: %w", err)
	}
	tmp, err := os.CreateTemp(dir, ".credentials-*") // has mode 0600
	if err != nil {
		return fmt.Errorf("store credentials: %w", err)
	}
	_, err = tmp.Write(append(raw, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("store credentials: %w", err)
	}
	return nil
}

// helperMessage is a message to or from a helper.
type helperMessage struct {
	ServerURL string
	Username  string
	Secret    string
}

// tokenUser is the user name of a token at a helper.
const tokenUser = "<token>"

// notFound is the output of a helper without credentials for a host.
const notFound = "credentials not found in native keychain"

// ask asks a helper for the credentials for a host.
func (f File) ask(ctx context.Context, name, host string) (Credentials, bool, error) {
	out, err := f.run(ctx, name, "get", []byte(key(host)))
	if err != nil {
		if strings.Contains(err.Error(), notFound) {
			return Credentials{}, false, nil
		}
		return Credentials{}, false, err
	}
	var h helperMessage
	if err := json.Unmarshal(out, &h); err != nil {
		return Credentials{}, false, fmt.Errorf("docker-credential-%s get: its answer is not JSON", name) // and is not printed, because it may be a secret
	}
	if h.Username == tokenUser {
		return Credentials{Token: h.Secret}, true, nil
	}
	return Credentials{Username: h.Username, Password: h.Secret}, h.Username != "" || h.Secret != "", nil
}

// run runs a helper's program.
func (f File) run(ctx context.Context, name, verb string, in []byte) ([]byte, error) {
	program := "docker-credential-" + name
	if strings.ContainsAny(name, "/\x00") {
		return nil, fmt.Errorf("credential helper %q is not a program's name", name)
	}
	look := f.Look
	if look == nil {
		look = exec.LookPath
	}
	path, err := look(program)
	if err != nil {
		return nil, fmt.Errorf("the credential file %s names the helper %s, which is not installed: %w", f.Path, program, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helperTime, fmt.Errorf("it did not answer for %s", helperTime))
	defer cancel()
	cmd := subprocess.Command(ctx, path, verb)
	out, stderr := &subprocess.Head{Max: maxAnswer}, &subprocess.Head{Max: 4 << 10}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), out, stderr
	// A helper may start an agent of its own, which keeps running.
	if err := subprocess.RunLeaving(ctx, cmd); err != nil {
		text := strings.TrimSpace(stderr.String())
		if verb != "get" || !json.Valid(out.Bytes()) { // helpers complain on their standard output
			text = strings.TrimSpace(text + " " + out.String())
		}
		if len(text) > 300 {
			text = text[:300]
		}
		return nil, fmt.Errorf("%s %s: %w: %q", program, verb, err, text)
	}
	if out.Truncated() {
		return nil, fmt.Errorf("%s %s: its answer has more than %d bytes", program, verb, maxAnswer)
	}
	return out.Bytes(), nil
}
