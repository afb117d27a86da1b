// Package guard stands before the agent API where it is reached by TCP: who
// calls it, and under which name. A unix socket has its mode instead.
//
// It must not know the API. Start at New.
package guard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/containerd/errdefs"
)

// Guard lets through whom it knows.
type Guard struct {
	hosts map[string]bool
	users map[string][sha256.Size]byte // of their secrets
}

// New returns what lets through the users of a credentials file, when they call
// the agent by one of these hosts' names. An error says what is wrong with the
// file, never what is in it.
func New(credentials string, hosts ...string) (*Guard, error) {
	raw, err := os.ReadFile(credentials)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	info, err := os.Stat(credentials)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("credentials %s: others than its owner may open it (mode %04o): %w", credentials, info.Mode().Perm(), errdefs.ErrInvalidArgument)
	}
	g := &Guard{hosts: map[string]bool{}, users: map[string][sha256.Size]byte{}}
	for _, h := range hosts {
		g.hosts[strings.ToLower(h)] = true
	}
	users, err := parse(raw)
	if err != nil {
		return nil, fmt.Errorf("credentials %s: %w", credentials, err)
	}
	for name, secret := range users {
		g.users[name] = sha256.Sum256([]byte(secret))
	}
	return g, nil
}

// parse reads credentials in either of Mesos' forms: JSON, or lines of a
// principal and a secret.
func parse(raw []byte) (map[string]string, error) {
	users := map[string]string{}
	if text := bytes.TrimSpace(raw); len(text) > 0 && text[0] == '{' {
		var file struct {
			Credentials []struct {
				Principal string `json:"principal"`
				Secret    string `json:"secret"`
			} `json:"credentials"`
		}
		if json.Unmarshal(text, &file) != nil {
			return nil, fmt.Errorf("it is no JSON of credentials: %w", errdefs.ErrInvalidArgument)
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
		return nil, fmt.Errorf("it names nobody: %w", errdefs.ErrInvalidArgument)
	}
	return users, nil
}

// realm is what Mesos calls what is guarded here.
const realm = `Basic realm="mesos-agent-readwrite"`

// Wrap puts the guard before next.
func (g *Guard) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !g.named(r.Host):
			refuse(w, http.StatusForbidden, "403 Forbidden.")
		case !g.known(r):
			w.Header().Set("WWW-Authenticate", realm)
			refuse(w, http.StatusUnauthorized, "401 Unauthorized.")
		default:
			name, _, _ := r.BasicAuth()
			next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), principal{}, name)))
		}
	})
}

// principal is the context's key of who calls.
type principal struct{}

// Principal is who makes a request that a guard has let through; false for one that
// no guard stood before.
func Principal(ctx context.Context) (string, bool) {
	name, ok := ctx.Value(principal{}).(string)
	return name, ok
}

func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = w.Write([]byte(text))
}

// named reports whether a Host header is one of ours: a page from elsewhere whose
// name has been turned to our address has another.
func (g *Guard) named(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return g.hosts[strings.ToLower(strings.Trim(host, "[]"))]
}

func (g *Guard) known(r *http.Request) bool {
	name, secret, ok := r.BasicAuth()
	if !ok {
		return false
	}
	got := sha256.Sum256([]byte(secret))
	want, known := g.users[name]
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && known
}
