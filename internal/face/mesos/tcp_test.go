package mesos

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
)

// written is a file with this text that only its owner may open.
func written(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTCPNeedsToKnowItsClients: nothing that anybody could call is started.
func TestTCPNeedsToKnowItsClients(t *testing.T) {
	none := func(*Config) {}
	for name, c := range map[string]struct {
		set  func(c *Config)
		want string
	}{
		"nobody is known":                {none, "a TCP listener must know its clients, set face.mesos.credentials, face.mesos.jwt_secret_key or face.mesos.client_ca"},
		"TLS alone tells nobody":         {func(c *Config) { c.Cert, c.Key = "/c", "/k" }, "a TCP listener must know its clients"},
		"a certificate without its key":  {func(c *Config) { c.Credentials, c.Cert = "/x", "/c" }, "go together"},
		"an authority without TLS":       {func(c *Config) { c.ClientCA = "/a" }, "face.mesos.client_ca needs both"},
		"a key of tokens by no path":     {func(c *Config) { c.JWTSecretKey = "key" }, `face.mesos.jwt_secret_key "key" is not an absolute path`},
		"an address that is none":        {func(c *Config) { c.Listen, c.Credentials = "localhost", "/x" }, "face.mesos.listen"},
		"credentials":                    {func(c *Config) { c.Credentials = "/x" }, ""},
		"tokens":                         {func(c *Config) { c.JWTSecretKey = "/x" }, ""},
		"certificates":                   {func(c *Config) { c.Cert, c.Key, c.ClientCA = "/c", "/k", "/a" }, ""},
		"what nothing listens by is not": {func(c *Config) { c.Listen, c.ClientCA = "", "/a" }, ""},
	} {
		cfg := DefaultConfig()
		cfg.Listen = "127.0.0.1:0"
		c.set(&cfg)
		if err := cfg.Validate(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestRulesAreRead(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Listen, cfg.Credentials, cfg.ACLs = "127.0.0.1:0", written(t, "ops s3cret"), filepath.Join(t.TempDir(), "acls")
	n := enginetest.New(t)
	o := Options{Deps: face.Deps{Engine: n.As(core.OwnerMesos), Logger: slog.New(slog.DiscardHandler)}, Config: cfg, Root: t.TempDir()}
	for text, want := range map[string]string{"": "no such file", `{"view_flogs":[]}`: "face.mesos.acls " + cfg.ACLs + ": view_flogs: ", `{"permissive":true}`: ""} {
		if text != "" {
			if err := os.WriteFile(cfg.ACLs, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := New(o); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("rules %q: %v, want %q", text, err, want)
		}
		_ = os.Remove(cfg.ACLs)
	}
}

// TestFilesAreCheckedAsTheyAreRead: a check of the configuration fails in the words of the face.
func TestFilesAreCheckedAsTheyAreRead(t *testing.T) {
	n := enginetest.New(t)
	public := written(t, "ops s3cret")
	if err := os.Chmod(public, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, set := range map[string]func(c *Config){
		"credentials " + public + ": others than its owner may open it (mode 0644); set the mode to 0600": func(c *Config) { c.Credentials = public },
		"credentials %s: the file has no credentials":                                                     func(c *Config) { c.Credentials = written(t, "") },
		"key of tokens " + public + ": others than its owner":                                             func(c *Config) { c.JWTSecretKey = public },
		"read face.mesos.cert and face.mesos.key: ":                                                       func(c *Config) { c.Credentials, c.Cert, c.Key = written(t, "ops s3cret"), public, public },
		"face.mesos.acls ": func(c *Config) { c.Credentials, c.ACLs = written(t, "ops s3cret"), written(t, "{") },
		"":                 func(c *Config) { c.Credentials = written(t, "ops s3cret") },
	} {
		cfg := DefaultConfig()
		cfg.Listen = "127.0.0.1:0"
		set(&cfg)
		_, err := New(Options{Deps: face.Deps{Engine: n.As(core.OwnerMesos), Logger: slog.New(slog.DiscardHandler)}, Config: cfg, Root: t.TempDir()})
		want = strings.ReplaceAll(want, "%s", cfg.Credentials)
		if checked := cfg.CheckFiles(); fmt.Sprint(checked) != fmt.Sprint(err) || (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("the check says %v, the face %v, want %q", checked, err, want)
		}
	}
}

// listen makes the face listen by TCP too, and returns its address.
func (n *testNode) listen(set func(c *Config)) string {
	n.t.Helper()
	n.shutdown()
	n.tcp = set
	n.serve()
	return n.address
}

// visitor is a client by TCP.
type visitor struct {
	t             *testing.T
	address       string
	tls           *tls.Config // nil for plain HTTP
	authorization string
	host          string // its name for the agent; "" is the address
}

// does makes one request, by POST when there is a body.
func (v visitor) does(ctx context.Context, path, body string) (*http.Response, error) {
	v.t.Helper()
	scheme, method := "http://", http.MethodGet
	if v.tls != nil {
		scheme = "https://"
	}
	if body != "" {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(ctx, method, scheme+v.address+path, strings.NewReader(body))
	if err != nil {
		v.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Host = v.host
	if v.authorization != "" {
		r.Header.Set("Authorization", v.authorization)
	}
	return (&http.Client{Transport: &http.Transport{TLSClientConfig: v.tls, DisableKeepAlives: true}}).Do(r)
}

// is makes a request and wants this answer; a status of 0 is that there is none.
func (v visitor) is(path, body string, code int, text, challenge string) {
	v.t.Helper()
	resp, err := v.does(v.t.Context(), path, body)
	if err != nil {
		if code != 0 {
			v.t.Errorf("%+v %s %s: %v", v, path, body, err)
		}
		return
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		v.t.Fatal(err)
	}
	if resp.StatusCode != code || text != "" && string(got) != text || resp.Header.Get("WWW-Authenticate") != challenge {
		v.t.Errorf("%s %s as %q: %d %q %q, want %d %q %q", path, body, v.authorization, resp.StatusCode, got, resp.Header.Get("WWW-Authenticate"), code, text, challenge)
	}
}

const (
	getHealth401 = "401 Unauthorized."
	healthCall   = `{"type":"GET_HEALTH"}`
	healthAnswer = `{"type":"GET_HEALTH","get_health":{"healthy":true}}`
	opsBasic     = "Basic b3BzOnMzY3JldA==" // ops:s3cret
)

// TestByCredentials: requests over TCP are authenticated and held against the rules.
func TestByCredentials(t *testing.T) {
	n := newTestNode(t)
	v := visitor{t: t, address: n.listen(func(c *Config) {
		c.Credentials = written(t, "ops s3cret")
		c.ACLs = written(t, `{"view_flags":[{"principals":{"values":["ops"]},"flags":{"type":"NONE"}}]}`)
	})}
	v.is("/api/v1", healthCall, 401, getHealth401, `Basic realm="mesos-agent-readwrite"`)
	v.is("/slave(1)/state", "", 401, getHealth401, `Basic realm="mesos-agent-readonly"`)
	v.authorization = "Basic b3BzOndyb25n" // ops:wrong
	v.is("/api/v1", healthCall, 401, getHealth401, `Basic realm="mesos-agent-readwrite"`)
	v.authorization = opsBasic
	v.is("/api/v1", healthCall, 200, healthAnswer, "")
	v.is("/api/v1", `{"type":"GET_FLAGS"}`, 403, "403 Forbidden.", "")
	v.is("/flags", "", 403, "403 Forbidden.", "")
	v.is("/state", healthCall, 405, "405 Method Not Allowed. Expecting one of { 'GET' }, but received 'POST'.", "")
	v.host = "rebound.example"
	v.is("/api/v1", healthCall, 403, "403 Forbidden.", "")
}

// bearer is a token with these claims, signed with the key "k".
func bearer(claims string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	mac := hmac.New(sha256.New, []byte("k"))
	_, _ = mac.Write([]byte(text))
	return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// TestByTokens: an executor with a token may act in its own container, and an invalid token is
// refused with the cause.
func TestByTokens(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	v := visitor{t: t, address: n.listen(func(c *Config) {
		c.Credentials, c.JWTSecretKey, c.ACLs = written(t, "ops s3cret"), written(t, "k"), written(t, `{"permissive":true}`)
	})}
	const wait = `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"container_id":{"value":"b","parent":{"value":"a"}}}}`
	v.authorization = bearer(`{"fid":"f","eid":"e","cid":"a"}`)
	v.is("/api/v1", healthCall, 200, healthAnswer, "")
	v.is("/api/v1", wait, 404, "Container a.b cannot be found", "")
	v.is("/api/v1", `{"type":"GET_FLAGS"}`, 403, "403 Forbidden.", "")
	v.is("/api/v1", `{"type":"WAIT_CONTAINER","wait_container":{"container_id":{"value":"a"}}}`, 403, "403 Forbidden.", "")
	v.authorization = bearer(`{"cid":"other"}`)
	v.is("/api/v1", wait, 403, "403 Forbidden.", "")
	v.authorization = "Bearer x"
	v.is("/api/v1", healthCall, 401, "\"Basic\" authenticator returned:\n401 Unauthorized.\n\n\"Bearer\" authenticator returned:\n401 Unauthorized.",
		`Basic realm="mesos-agent-readwrite",Bearer realm="mesos-agent-readwrite", error="invalid_token", error_description="Invalid JWT: Expected 3 components in token, got 1"`)
	v.authorization = opsBasic
	v.is("/api/v1", `{"type":"GET_FLAGS"}`, 200, "", "")
}

// TestByCertificates: over TLS, a certificate names the caller, and a stream of a session ends with
// its client as it does without TLS.
func TestByCertificates(t *testing.T) {
	n := newTestNode(t)
	n.Supervisor.Program("dbg", echo)
	ca := tlsconftest.New(t)
	cert, key := ca.Issue("node")
	address := n.listen(func(c *Config) {
		c.Cert, c.Key, c.ClientCA = cert, key, ca.File
		c.ACLs = written(t, `{"view_flags":[{"principals":{"values":["guest"]},"flags":{"type":"NONE"}}]}`)
	})
	ann, guest := visitor{t: t, address: address, tls: ca.Client("ann")}, visitor{t: t, address: address, tls: ca.Client("guest")}
	ann.is("/api/v1", healthCall, 200, healthAnswer, "")
	ann.is("/flags", "", 200, "", "")
	guest.is("/flags", "", 403, "403 Forbidden.", "")
	visitor{t: t, address: address, tls: ca.Client("")}.is("/api/v1", healthCall, 0, "", "")
	visitor{t: t, address: address}.is("/api/v1", healthCall, 400, "", "")

	n.is(launchA, 200, "")
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	resp, err := ann.does(ctx, "/api/v1", sessionS)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := resp.Body.Read(make([]byte, 1)); err != nil { // a sign of life
		t.Fatal(err)
	}
	leave()
	n.is(waitS, 200, `{"type":"WAIT_NESTED_CONTAINER","wait_nested_container":{"exit_status":9}}`)
}
