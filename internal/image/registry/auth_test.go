package registry

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
)

func TestParseAuths(t *testing.T) {
	got, err := ParseAuths([]byte(`{"auths": {
		"https://index.docker.io/v1/": {"auth": "YWxpY2U6c2VjcmV0OndpdGg6Y29sb25z"},
		"quay.example": {"username": "bob", "password": "pw"},
		"http://127.0.0.1:5000/v2/": {"identitytoken": "refresh"},
		"reg.example:443": {"registrytoken": "bearer"},
		"empty.example": {}
	}, "HttpHeaders": {"User-Agent": "x"}}`))
	want := map[string]Credentials{
		"docker.io":      {Username: "alice", Password: "secret:with:colons"},
		"quay.example":   {Username: "bob", Password: "pw"},
		"127.0.0.1:5000": {Token: "refresh"},
		"reg.example":    {Bearer: "bearer"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	for doc, is := range map[string]func(error) bool{
		`{"auths": {"h": {"auth": "%%%"}}}`:          errdefs.IsInvalidArgument,
		`{"auths": {"h": {"auth": "bm9jb2xvbg=="}}}`: errdefs.IsInvalidArgument,
		`not json`:                              errdefs.IsInvalidArgument,
		`{"credHelpers": {"gcr.io": "gcloud"}}`: errdefs.IsNotImplemented,
		`{"credsStore": "desktop", "auths": {"gcr.io": {}}}`:    errdefs.IsNotImplemented,
		`{"auths": {"h": {"username": 12}}}`:                    errdefs.IsInvalidArgument,
		`{"auths": ["a list"], "credHelpers": {"x": "y"}}` + "": errdefs.IsInvalidArgument,
	} {
		if _, err := ParseAuths([]byte(doc)); !is(err) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

func TestCredentialsGoToTheirRegistryOnly(t *testing.T) {
	r := &Repository{held: map[string]string{}, domain: "docker.io", home: "registry-1.docker.io", opts: Options{
		Credentials: Credentials{Username: "alice", Password: "secret"},
		Auths:       map[string]Credentials{"mirror.example": {Username: "m", Password: "mp"}, "docker.io": {Username: "other", Password: "x"}},
	}}
	for host, want := range map[string]string{"registry-1.docker.io": "alice/secret", "docker.io": "alice/secret", "mirror.example": "m/mp", "evil.example": "/"} {
		user, pass, err := r.credentials(host)
		if err != nil || user+"/"+pass != want {
			t.Errorf("%s gets %s/%s, %v; want %s", host, user, pass, err, want)
		}
	}
	r.opts.Credentials = Credentials{Bearer: "b"}
	if r.bearer("evil.example") != "" || r.bearer("registry-1.docker.io") != "b" {
		t.Error("registry token goes to the wrong host")
	}
}

func TestServerMessageIsCleaned(t *testing.T) {
	for body, want := range map[string]string{
		`{"errors":[{"code":"A","message":"b"},{"code":"","message":"c"}]}`: "A: b; c",
		`{"details":"d"}`:                      "d",
		"<html>\n<b>502</b>\x1b[2J\x00</html>": "<html> <b>502</b> [2J </html>",
		"":                                     "",
		"\xff\xfe":                             "",
	} {
		if got := serverMessage([]byte(body)); got != want {
			t.Errorf("%q gives %q, want %q", body, got, want)
		}
	}
	if got := serverMessage(make([]byte, 100_000)); len(got) > 400 {
		t.Errorf("%d bytes", len(got))
	}
}

// TestScopeThatIsMissing has the answer of Docker Hub for a repository that does not exist.
func TestScopeThatIsMissing(t *testing.T) {
	answer := func(challenge string) string {
		return statusError(&http.Response{
			StatusCode: http.StatusUnauthorized, Header: http.Header{"Www-Authenticate": {challenge}},
			Body: io.NopCloser(strings.NewReader(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)),
		}).Message
	}
	const challenge = `Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/none:pull"`
	if got := answer(challenge + `,error="insufficient_scope"`); !strings.HasPrefix(got, "DENIED: ") {
		t.Errorf("without the scope: %q", got)
	}
	if got := answer(challenge); got != "UNAUTHORIZED: authentication required" {
		t.Errorf("without a token: %q", got)
	}
}

func FuzzParseAuths(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"YTpi"}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		auths, err := ParseAuths(data)
		if err == nil {
			for host := range auths {
				if canonicalHost(host) != host {
					t.Errorf("host %q is not canonical", host)
				}
			}
		}
	})
}

func FuzzServerMessage(f *testing.F) {
	f.Add([]byte(`{"errors":[{"code":"A","message":"b"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, r := range serverMessage(data) {
			if r < ' ' || r == 0x7f {
				t.Errorf("control character %U", r)
			}
		}
	})
}
