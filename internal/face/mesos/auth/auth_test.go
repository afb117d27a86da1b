package auth

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func file(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// readwrite is the realm of every request here.
func readwrite(*http.Request) string { return "mesos-agent-readwrite" }

// passed answers with the principal.
func passed(w http.ResponseWriter, r *http.Request) {
	who, ok := PrincipalFrom(r.Context())
	w.WriteHeader(http.StatusTeapot)
	fmt.Fprintf(w, "%s %v %v", who.Name, who.Claims, ok)
}

func TestWhoMayPass(t *testing.T) {
	for _, text := range []string{`{"credentials":[{"principal":"ops","secret":"s3cret"},{"principal":"x","secret":"y"}]}`, "# people\nops s3cret\n\nx y\n"} {
		g, err := New(Options{Credentials: file(t, text, 0o600), Hosts: []string{"node-1", "127.0.0.1", "::1"}})
		if err != nil {
			t.Fatal(err)
		}
		h := g.Wrap(http.HandlerFunc(passed), readwrite)
		for _, c := range []struct {
			host, user, secret string
			code               int
		}{
			{"node-1:5051", "ops", "s3cret", 418},
			{"NODE-1", "x", "y", 418},
			{"127.0.0.1:5051", "ops", "s3cret", 418},
			{"[::1]:5051", "ops", "s3cret", 418},
			{"evil.example:5051", "ops", "s3cret", 403},
			{"", "ops", "s3cret", 403},
			{"node-1:5051", "", "", 401},
			{"node-1:5051", "ops", "", 401},
			{"node-1:5051", "ops", "y", 401},
			{"node-1:5051", "nobody", "", 401},
		} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1", nil)
			r.Host = c.host
			if c.user != "" {
				r.SetBasicAuth(c.user, c.secret)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != c.code {
				t.Errorf("%+v: %d", c, w.Code)
			}
			if c.code == 418 && w.Body.String() != c.user+" map[] true" {
				t.Errorf("%+v: %q", c, w.Body)
			}
			if c.code == 401 && (w.Body.String() != "401 Unauthorized." || w.Header().Get("WWW-Authenticate") != `Basic realm="mesos-agent-readwrite"`) {
				t.Errorf("%+v: %q %v", c, w.Body, w.Header())
			}
		}
	}
}

// TestByToken: a client with a token, alone and beside credentials.
func TestByToken(t *testing.T) {
	const (
		basicToo   = `Basic realm="mesos-agent-readwrite",`
		bearerOnly = `Bearer realm="mesos-agent-readwrite"`
		invalid    = bearerOnly + `, error="invalid_token", error_description="`
	)
	key := file(t, "k\n", 0o600)
	for name, o := range map[string]Options{"tokens alone": {Tokens: key}, "beside credentials": {Tokens: key, Credentials: file(t, "ops s3cret", 0o600)}} {
		o.Hosts = []string{"n"}
		g, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		g.now = func() time.Time { return time.Unix(1000, 0) }
		h := g.Wrap(http.HandlerFunc(passed), readwrite)
		basicCode, basicBody, basicChallenge := 401, "401 Unauthorized.", invalid+`Scheme 'Basic' unsupported"`
		both := ""
		if o.Credentials != "" {
			basicCode, basicBody, basicChallenge, both = 418, "ops map[] true", "", basicToo
		}
		for _, c := range []struct {
			lines           []string // of Authorization
			code            int
			body, challenge string
		}{
			{[]string{"Bearer " + signed("k\n", hs, `{"cid":"c","exp":1000}`)}, 418, " map[cid:c exp:1000] true", ""},
			{[]string{"Basic b3BzOnMzY3JldA=="}, basicCode, basicBody, basicChallenge},
			{[]string{"Bearer x", "Bearer " + signed("k\n", hs, `{"cid":"c"}`)}, 418, " map[cid:c] true", ""},
			{nil, 401, "", bearerOnly},
			{[]string{"Bearer"}, 401, "", invalid + `Malformed 'Authorization' header"`},
			{[]string{"Bearer a b"}, 401, "", invalid + `Malformed 'Authorization' header"`},
			{[]string{"bearer x"}, 401, "", invalid + `Scheme 'bearer' unsupported"`},
			{[]string{"Basic b3BzOndyb25n"}, 401, "", invalid + `Scheme 'Basic' unsupported"`},
			{[]string{"Bearer x"}, 401, "", invalid + `Invalid JWT: Expected 3 components in token, got 1"`},
			{[]string{"Bearer " + signed("k\n", hs, `{"cid":"c","exp":999}`)}, 401, "", invalid + `Invalid JWT: Token has expired: exp(999) < now(1000)"`},
			{[]string{"Bearer " + signed("k", hs, `{"cid":"c"}`)}, 401, "", invalid + `Invalid JWT: Token signature does not match"`},
			{[]string{"Bearer " + signed("k\n", hs, `{}`)}, 401, "", invalid + `JWT claims missing"`},
			{[]string{"Bearer " + signed("k\n", hs, `{"cid":"c"}`), "Bearer x"}, 401, "", invalid + `Invalid JWT: Expected 3 components in token, got 1"`},
		} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1", nil)
			r.Host = "n"
			r.Header["Authorization"] = c.lines
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if c.code == 401 && c.body == "" {
				c.body, c.challenge = "401 Unauthorized.", both+c.challenge
				if both != "" {
					c.body = "\"Basic\" authenticator returned:\n401 Unauthorized.\n\n\"Bearer\" authenticator returned:\n401 Unauthorized."
				}
			}
			if w.Code != c.code || w.Body.String() != c.body || w.Header().Get("WWW-Authenticate") != c.challenge {
				t.Errorf("%s, %q: %d %q %q, want %d %q %q", name, c.lines, w.Code, w.Body, w.Header().Get("WWW-Authenticate"), c.code, c.body, c.challenge)
			}
		}
	}
}

// TestCertificates: a verified one names the principal, unless the request has credentials.
func TestCertificates(t *testing.T) {
	verified := func(name string) *tls.ConnectionState {
		return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: name}}}}}
	}
	unverified := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: "eve"}}}}
	users := file(t, "ops s3cret", 0o600)
	for _, c := range []struct {
		credentials, certs bool
		state              *tls.ConnectionState
		secret             string
		code               int
		body               string
	}{
		{false, true, verified("ann"), "", 418, "ann map[] true"},
		{false, true, verified("ann"), "wrong", 418, "ann map[] true"}, // it is ignored
		{false, true, verified(""), "", 401, "401 Unauthorized."},
		{false, true, unverified, "", 401, "401 Unauthorized."},
		{false, true, nil, "", 401, "401 Unauthorized."},
		{true, true, verified("ann"), "", 418, "ann map[] true"},
		{true, true, verified("ann"), "s3cret", 418, "ops map[] true"},
		{true, true, verified("ann"), "wrong", 401, "401 Unauthorized."},
		{true, false, verified("ann"), "", 401, "401 Unauthorized."},
	} {
		o := Options{Certificates: c.certs, Hosts: []string{"n"}}
		if c.credentials {
			o.Credentials = users
		}
		g, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1", nil)
		r.Host, r.TLS = "n", c.state
		if c.secret != "" {
			r.SetBasicAuth("ops", c.secret)
		}
		w := httptest.NewRecorder()
		g.Wrap(http.HandlerFunc(passed), readwrite).ServeHTTP(w, r)
		if w.Code != c.code || w.Body.String() != c.body {
			t.Errorf("%+v: %d %q", c, w.Code, w.Body)
		}
	}
}

func TestBadCredentialsAreRefusedAndNotShown(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "has no credentials",
		"{}":                                    "has no credentials",
		`{"credentials":"s3cret"}`:              "not JSON with a list of credentials",
		"ops s3cret more":                       "a line is not",
		`{"credentials":[{"principal":"ops"}]}`: "is empty",
		"a:b s3cret":                            "has a colon",
	} {
		if _, err := New(Options{Credentials: file(t, text, 0o600)}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"credentials that all may read": {Options{Credentials: file(t, "ops s3cret", 0o644)}, "0644"},
		"a key that a group may read":   {Options{Tokens: file(t, "s3cret", 0o640)}, "0640"},
		"an empty key":                  {Options{Tokens: file(t, "", 0o600)}, "it is empty"},
		"no credentials there":          {Options{Credentials: filepath.Join(t.TempDir(), "none")}, "read credentials: "},
		"no key there":                  {Options{Credentials: file(t, "ops s3cret", 0o600), Tokens: filepath.Join(t.TempDir(), "none")}, "read key of tokens: "},
		"nobody":                        {Options{Hosts: []string{"n"}}, "nothing identifies clients"},
	} {
		if _, err := New(c.o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// FuzzCredentials: no bytes make it panic, and nobody has an empty secret.
func FuzzCredentials(f *testing.F) {
	f.Add([]byte("ops s3cret"))
	f.Add([]byte(`{"credentials":[{"principal":"ops","secret":"s"}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		users, err := parseCredentials(raw)
		for name, secret := range users {
			if name == "" || secret == "" {
				t.Errorf("%q %q, %v", name, secret, err)
			}
		}
	})
}
