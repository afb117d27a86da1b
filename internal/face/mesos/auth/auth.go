// Package auth authorizes calls of the agent API over TCP: Authenticator identifies a client by
// credentials, token or certificate, and Rules select its allowed calls. The unix socket has its
// file mode instead, and is not authenticated.
//
// It must not know how calls are executed. Start reading at Authenticator.Wrap and
// Rules.Allow.
package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/mesos/api"
)

// Authenticator identifies clients.
type Authenticator struct {
	hosts        map[string]bool
	users        map[string][sha256.Size]byte // SHA-256 of the secrets by principal; nil without credentials
	tokens       tokenKey                     // nil if no tokens are accepted
	certificates bool
	now          func() time.Time
}

// Options configure an Authenticator; at least one of Credentials, Tokens and
// Certificates is required.
type Options struct {
	// Credentials is a file of principals and secrets.
	Credentials string
	// Tokens is a file with the key that executors' tokens are signed with. The key is
	// the whole content of the file.
	Tokens string
	// Certificates accepts clients by the common name of a certificate that TLS has
	// verified. A request with an Authorization header is judged by that alone.
	Certificates bool
	// Hosts are the host names of the agent for clients.
	Hosts []string
}

// New reads the files. An error describes the problem of a file, but never shows its content.
func New(o Options) (*Authenticator, error) {
	a := &Authenticator{hosts: map[string]bool{}, certificates: o.Certificates, now: time.Now}
	for _, h := range o.Hosts {
		a.hosts[strings.ToLower(h)] = true
	}
	if o.Credentials != "" {
		raw, err := readPrivate("credentials", o.Credentials)
		if err != nil {
			return nil, err
		}
		users, err := parseCredentials(raw)
		if err != nil {
			return nil, fmt.Errorf("credentials %s: %w", o.Credentials, err)
		}
		a.users = map[string][sha256.Size]byte{}
		for name, secret := range users {
			a.users[name] = sha256.Sum256([]byte(secret))
		}
	}
	if o.Tokens != "" {
		raw, err := readPrivate("key of tokens", o.Tokens)
		if err != nil {
			return nil, err
		}
		if len(raw) == 0 {
			return nil, fmt.Errorf("key of tokens %s: it is empty: %w", o.Tokens, errdefs.ErrInvalidArgument)
		}
		a.tokens = raw
	}
	if a.users == nil && a.tokens == nil && !a.certificates {
		return nil, fmt.Errorf("nothing identifies clients: credentials, a token key or certificates are required: %w", errdefs.ErrInvalidArgument)
	}
	return a, nil
}

// readPrivate reads a file and returns an error if others than its owner can open it. The first
// argument names it in errors.
func readPrivate(what, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s %s: others than its owner may open it (mode %04o); set the mode to 0600: %w", what, path, info.Mode().Perm(), errdefs.ErrInvalidArgument)
	}
	raw, err := io.ReadAll(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, err)
	}
	return raw, nil
}

// parseCredentials reads credentials in either of Mesos' forms: JSON, or lines of a
// principal and a secret.
func parseCredentials(raw []byte) (map[string]string, error) {
	users := map[string]string{}
	if text := bytes.TrimSpace(raw); len(text) > 0 && text[0] == '{' {
		var file struct {
			Credentials []struct {
				Principal string `json:"principal"`
				Secret    string `json:"secret"`
			} `json:"credentials"`
		}
		if json.Unmarshal(text, &file) != nil {
			return nil, fmt.Errorf("the file is not JSON with a list of credentials: %w", errdefs.ErrInvalidArgument)
		}
		for _, c := range file.Credentials {
			users[c.Principal] = c.Secret
		}
	} else {
		for line := range strings.Lines(string(raw)) {
			p := strings.Fields(line)
			if len(p) == 0 || strings.HasPrefix(p[0], "#") {
				continue
			}
			if len(p) != 2 {
				return nil, fmt.Errorf("a line is not a principal and a secret: %w", errdefs.ErrInvalidArgument)
			}
			users[p[0]] = p[1]
		}
	}
	for name, secret := range users {
		if name == "" || strings.Contains(name, ":") || secret == "" {
			return nil, fmt.Errorf("a principal or a secret is empty, or a principal has a colon: %w", errdefs.ErrInvalidArgument)
		}
	}
	if len(users) == 0 {
		return nil, fmt.Errorf("the file has no credentials: %w", errdefs.ErrInvalidArgument)
	}
	return users, nil
}

// Wrap returns a handler that passes authenticated requests to next. realm returns
// Mesos' name of the part of the agent that a request is for.
func (a *Authenticator) Wrap(next http.Handler, realm func(r *http.Request) string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !a.isAgentHost(r.Host) {
			api.WriteError(w, r, api.Forbidden())
			return
		}
		who, ok := a.identify(r)
		if !ok {
			a.challenge(w, r, realm(r))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), principalKey{}, who)))
	})
}

// Principal is the origin of a request: a name, or for a token its claims and no name.
type Principal struct {
	Name   string
	Claims map[string]string
}

// principalKey is the context key of the Principal.
type principalKey struct{}

// PrincipalFrom returns the principal of a request; false if the request was not authenticated.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	who, ok := ctx.Value(principalKey{}).(Principal)
	return who, ok
}

// isAgentHost reports whether a Host header names this agent. A web page with its name rebound to
// our address (DNS rebinding) sends another name.
func (a *Authenticator) isAgentHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return a.hosts[strings.ToLower(strings.Trim(host, "[]"))]
}
