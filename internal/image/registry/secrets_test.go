package registry

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/google/go-cmp/cmp"
)

// internet answers requests by their origin, and records the secrets that it gets.
type internet struct {
	hosts map[string]http.HandlerFunc
	leaks []string // "https://host:port/path secret"
}

// RoundTrip implements http.RoundTripper.
func (n *internet) RoundTrip(req *http.Request) (*http.Response, error) {
	body := ""
	if req.Body != nil {
		raw, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		body = string(raw)
	}
	for what, found := range map[string]bool{
		"basic": strings.HasPrefix(req.Header.Get("Authorization"), "Basic "), "token": strings.HasPrefix(req.Header.Get("Authorization"), "Bearer "),
		"password": strings.Contains(body, "s3cret"), "header": req.Header.Get("X-Key") != "",
	} {
		if found {
			n.leaks = append(n.leaks, origin(req.URL)+" "+what)
		}
	}
	h := n.hosts[origin(req.URL)]
	if h == nil {
		return nil, fmt.Errorf("no such host as %s", origin(req.URL))
	}
	w := httptest.NewRecorder()
	h(w, req)
	resp := w.Result()
	resp.Request = req
	return resp, nil
}

// got returns the secrets that a host was sent, except the test's own.
func (n *internet) got(host string) string {
	var list []string
	for _, l := range n.leaks {
		if where, what, _ := strings.Cut(l, " "); where == host {
			list = append(list, what)
		}
	}
	return strings.Join(list, " ")
}

// via makes n answer a repository's requests.
func via(t *testing.T, n http.RoundTripper, image string, opts Options) *Repository {
	t.Helper()
	opts.Retries = -1
	r, err := Open(t.Context(), named(t, image), opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range r.hosts {
		tr, ok := h.Client.Transport.(*transport)
		if !ok {
			t.Fatalf("a client without our transport: %T", h.Client.Transport)
		}
		tr.base = n
	}
	return r
}

const (
	regHost  = "https://reg.example:443"
	blobText = "blob"
)

func blobDesc() ocispec.Descriptor {
	return ocispec.Descriptor{Digest: digest.FromString(blobText), Size: int64(len(blobText))}
}

// protected requires a token from realm.
func protected(realm string, serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t0ken" {
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="x"`, realm))
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		serve(w, r)
	}
}

func serveBlob(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, blobText) }

func serveToken(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") == "" && r.Method == http.MethodGet {
		w.WriteHeader(http.StatusUnauthorized) // every request needs credentials
		return
	}
	_, _ = io.WriteString(w, `{"token":"t0ken","access_token":"t0ken"}`)
}

func redirectTo(where string, code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", where)
		w.WriteHeader(code)
	}
}

// TestCredentialsGoNowhereElse: a host that the configuration does not name gets nothing. A named
// host gets the registry's credentials, but not by plain HTTP, so nothing else kept them back.
func TestCredentialsGoNowhereElse(t *testing.T) {
	for name, c := range map[string]struct {
		elsewhere string // where the registry redirects
		hosts     map[string]http.HandlerFunc
		is        string // the other host's credential when it is named
		wants     string // a part of the error
	}{
		"token server": {"https://auth.example:443", map[string]http.HandlerFunc{
			regHost: protected("https://auth.example/token", serveBlob), "https://auth.example:443": serveToken,
		}, "password", `auth.example, another host: if they are meant for it, add it to "reg.example" in images.credential_hosts`},
		"token server on another port": {"https://reg.example:444", map[string]http.HandlerFunc{
			regHost: protected("https://reg.example:444/token", serveBlob), "https://reg.example:444": serveToken,
		}, "password", "images.credential_hosts"},
		"token server that redirects": {"https://other.example:443", map[string]http.HandlerFunc{
			regHost: func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/token" {
					redirectTo("https://other.example/token", http.StatusTemporaryRedirect)(w, r)
					return
				}
				protected("https://reg.example/token", serveBlob)(w, r)
			}, "https://other.example:443": serveToken,
		}, "password", "credentials are not sent there"},
		"redirect":            {"https://cdn.example:443", map[string]http.HandlerFunc{regHost: signedIn("https://cdn.example/b"), "https://cdn.example:443": serveBlob}, "token header", ""},
		"redirect below":      {"https://cdn.reg.example:443", map[string]http.HandlerFunc{regHost: signedIn("https://cdn.reg.example/b"), "https://cdn.reg.example:443": serveBlob}, "token header", ""},
		"redirect to a port":  {"https://reg.example:8443", map[string]http.HandlerFunc{regHost: signedIn("https://reg.example:8443/b"), "https://reg.example:8443": serveBlob}, "token header", ""},
		"redirect to http":    {"http://reg.example:80", map[string]http.HandlerFunc{regHost: signedIn("http://reg.example/b"), "http://reg.example:80": serveBlob}, "", ""},
		"token server's http": {"http://auth.example:80", map[string]http.HandlerFunc{regHost: protected("http://auth.example/token", serveBlob), "http://auth.example:80": serveToken}, "", "not sent by plain HTTP"},
	} {
		for _, isNamed := range []bool{false, true} {
			n := &internet{hosts: c.hosts}
			opts := hostsFile(t, "reg.example", "[header]\nX-Key = \"k\"\n")
			opts.Credentials = Credentials{Username: "alice", Password: "s3cret"}
			if isNamed {
				opts.CredentialHosts = map[string][]string{"reg.example": {strings.TrimPrefix(strings.TrimPrefix(c.elsewhere, "https://"), "http://")}}
			}
			r := via(t, n, "reg.example/team/app", opts)
			body, err := r.Blob(t.Context(), blobDesc(), 0)
			if err == nil {
				_ = body.Close()
			}
			got, want := n.got(c.elsewhere), ""
			if isNamed {
				want = c.is
			}
			for what := range strings.FieldsSeq(want) {
				if !strings.Contains(got, what) {
					t.Errorf("%s, named: it was sent %q, want %q (%v)", name, got, want, err)
				}
			}
			if want == "" && got != "" {
				t.Errorf("%s, named %v: it was sent %q", name, isNamed, got)
			}
			if want == "" && (c.wants == "") != (err == nil) || c.wants != "" && err != nil && !strings.Contains(err.Error(), c.wants) {
				t.Errorf("%s, named %v: %v, want %q", name, isNamed, err, c.wants)
			}
			if isNamed && c.is != "" && err != nil {
				t.Errorf("%s, named: %v", name, err)
			}
		}
	}
}

// signedIn issues tokens of its own, and redirects authenticated clients elsewhere for the blob.
func signedIn(elsewhere string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			serveToken(w, r)
			return
		}
		protected("https://reg.example/token", redirectTo(elsewhere, http.StatusTemporaryRedirect))(w, r)
	}
}

// TestPlainHTTPHasNoCredentials, of any kind, except on loopback.
func TestPlainHTTPHasNoCredentials(t *testing.T) {
	basic := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		serveBlob(w, r)
	}
	for name, c := range map[string]struct {
		image, host string
		creds       Credentials
		want        string
	}{
		"password":        {"reg.example/a", "http://reg.example:80", Credentials{Username: "alice", Password: "s3cret"}, ""},
		"registry token":  {"reg.example/a", "http://reg.example:80", Credentials{Bearer: "t0ken"}, ""},
		"loopback":        {"127.0.0.1:5000/a", "http://127.0.0.1:5000", Credentials{Username: "alice", Password: "s3cret"}, "basic"},
		"loopback, token": {"127.0.0.1:5000/a", "http://127.0.0.1:5000", Credentials{Bearer: "t0ken"}, "token"},
	} {
		n := &internet{hosts: map[string]http.HandlerFunc{c.host: basic}}
		opts := hostsFile(t, "reg.example", "server = \"http://reg.example\"\n[header]\nX-Key = \"k\"\n")
		opts.Credentials = c.creds
		_, err := via(t, n, c.image, opts).Blob(t.Context(), blobDesc(), 0)
		if got := n.got(c.host); got != c.want {
			t.Errorf("%s: sent %q, want %q", name, got, c.want)
		}
		if c.want == "" && (!errdefs.IsUnauthorized(err) || !strings.Contains(err.Error(), "credentials are not sent by plain HTTP")) || c.want != "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestContentGoesByPlainHTTP to a registry that the configuration reaches by it, without credentials, and not from there to another.
func TestContentGoesByPlainHTTP(t *testing.T) {
	opts := hostsFile(t, "reg.example", "server = \"http://reg.example\"\n[header]\nX-Key = \"k\"\n")
	opts.Credentials = Credentials{Username: "alice", Password: "s3cret"}
	const content = `{"a":"s3cret"}` // internet reports it as a password
	created := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }
	n := &internet{hosts: map[string]http.HandlerFunc{"http://reg.example:80": created}}
	if err := via(t, n, "reg.example/a", opts).PushManifest(t.Context(), "v1", "application/json", []byte(content)); err != nil {
		t.Error(err)
	}
	if got := n.got("http://reg.example:80"); got != "password" {
		t.Errorf("sent %q, want the content alone", got)
	}
	for _, elsewhere := range []string{"http://other.example:80", "http://reg.example:81"} {
		n := &internet{hosts: map[string]http.HandlerFunc{"http://reg.example:80": redirectTo(elsewhere+"/x", http.StatusTemporaryRedirect), elsewhere: created}}
		err := via(t, n, "reg.example/a", opts).PushManifest(t.Context(), "v1", "application/json", []byte(content))
		if got := n.got(elsewhere); err == nil || got != "" {
			t.Errorf("%s was sent %q, %v", elsewhere, got, err)
		}
	}
}

// TestCredentialsGoToARegistrysOwnServer in its hosts.toml, and not to a mirror, nor to a server
// that is configured for all registries.
func TestCredentialsGoToARegistrysOwnServer(t *testing.T) {
	const text = "server = \"https://inner.example\"\n[host.\"https://mirror.example\"]\n"
	for dir, want := range map[string]map[string]string{
		"reg.example": {"inner.example": "alice", "mirror.example": "", "reg.example": "alice"},
		"_default":    {"inner.example": "", "mirror.example": "", "reg.example": "alice"},
	} {
		for kind, set := range map[string]func(*Options){
			"given": func(o *Options) { o.Credentials = Credentials{Username: "alice", Password: "s3cret"} },
			"config": func(o *Options) {
				o.Auths = map[string]Credentials{"reg.example": {Username: "alice", Password: "s3cret"}}
			},
		} {
			opts := hostsFile(t, dir, text)
			set(&opts)
			r := via(t, &internet{}, "reg.example/a", opts)
			got := map[string]string{}
			for host := range want {
				got[host], _, _ = r.credentials(host)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s of %s (-want +got):\n%s", kind, dir, diff)
			}
		}
	}
}

// TestASlowServerIsGivenUp, and without a limit a server that is as slow is not.
func TestASlowServerIsGivenUp(t *testing.T) {
	const size = 100
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for range size {
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return
			}
			if _, err := io.WriteString(w, "x"); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}))
	t.Cleanup(srv.Close)
	desc := ocispec.Descriptor{Digest: digest.FromString(strings.Repeat("x", size)), Size: size}
	for least, want := range map[int64]bool{0: true, 1 << 40: false} {
		r, err := Open(t.Context(), named(t, strings.TrimPrefix(srv.URL, "http://")+"/a"), Options{MinRate: least, Window: 20 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		body, err := r.Blob(t.Context(), desc, 0)
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(body)
		_ = body.Close()
		if want && (err != nil || len(got) != size) || !want && (!IsSlow(err) || !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "images.min_rate")) {
			t.Errorf("at least %d bytes a second: %d bytes, %v", least, len(got), err)
		}
	}
}

// TestATokenServersAnswerIsBounded: an endless one takes no memory.
func TestATokenServersAnswerIsBounded(t *testing.T) {
	n := &internet{hosts: map[string]http.HandlerFunc{regHost: func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" {
			_, _ = io.WriteString(w, `{"token":"`+strings.Repeat("t", 2*maxToken)+`"}`)
			return
		}
		protected("https://reg.example/token", serveBlob)(w, r)
	}}}
	_, err := via(t, n, "reg.example/a", Options{}).Blob(t.Context(), blobDesc(), 0)
	if err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("got %v", err)
	}
}
