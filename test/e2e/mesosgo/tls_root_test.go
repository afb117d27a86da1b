package mesosgo

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/mesos/mesos-go/api/v1/lib/agent/calls"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/tlsconf/tlsconftest"
	"github.com/longshore/longshore/test/nodetest"
)

// authorized sends a header of that name with every request.
type authorized struct {
	header string // "" for none
	under  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (a authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	if a.header != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", a.header)
	}
	return a.under.RoundTrip(r)
}

// token is an executor's, signed with key.
func token(key, claims string) string {
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	mac := hmac.New(sha256.New, []byte(key))
	_, _ = mac.Write([]byte(text))
	return "Bearer " + text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// TestByTLS: calls, streams and sessions work over TLS, for clients with a certificate and with a
// token.
func TestByTLS(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		ca := tlsconftest.New(t)
		cert, key := ca.Issue("node")
		dir := t.TempDir()
		for name, text := range map[string]string{"key": "s3cret", "acls": `{"prune_images":[{"principals":{"values":["guest"]},"images":{"type":"NONE"}}]}`} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		n := nodetest.Start(t, nodetest.Options{Config: config + fmt.Sprintf(
			"listen = \"127.0.0.1:5051\"\ncert = %q\nkey = %q\nclient_ca = %q\njwt_secret_key = %q\nacls = %q\n", cert, key, ca.File, dir+"/key", dir+"/acls")})
		ref := n.Busybox(t)
		for form, codec := range forms() {
			t.Run(form, func(t *testing.T) {
				as := func(conf *tls.Config, header string) *trial {
					c := newClient(t, n, codec, &heard{})
					c.url = "https://127.0.0.1:5051/api/v1"
					c.http = http.Client{Transport: authorized{header, &http.Transport{TLSClientConfig: conf, DisableKeepAlives: true}}}
					return &trial{client: c, ref: ref, parent: id("parent")}
				}
				ops, guest := as(ca.Client("ops"), ""), as(ca.Client("guest"), "")
				ops.ok(calls.LaunchContainer(ops.parent, ops.forever(), image(ref), nil))
				guest.no(calls.PruneImages(nil), 403, "403 Forbidden.")
				ops.ok(calls.PruneImages(nil))
				if code, _, err := as(ca.Client(""), "").answer(calls.GetHealth()); code != 0 || err == nil {
					t.Errorf("without a certificate: %d, %v", code, err)
				}
				session := below(ops.parent, "s")
				for _, test := range []func(x *trial){probed, dropped} {
					test(ops)
					ops.ok(calls.RemoveNestedContainer(session))
				}

				executor := as(ca.Client("guest"), token("s3cret", `{"cid":"parent"}`))
				dropped(executor) // Mesos permits input to no token
				executor.ok(calls.RemoveNestedContainer(session))
				executor.no(calls.GetFlags(), 403, "403 Forbidden.")
				executor.no(calls.WaitContainer(id("parent")), 403, "403 Forbidden.")
				as(ca.Client("guest"), token("s3cret", `{"cid":"other"}`)).no(calls.WaitNestedContainer(session), 403, "403 Forbidden.")
				if code, _, err := as(ca.Client("ops"), token("wrong", `{"cid":"parent"}`)).answer(calls.GetHealth()); code != http.StatusUnauthorized {
					t.Errorf("with another's token: %d, %v", code, err)
				}
				ops.end(ops.parent)
				n.Check()
			})
		}
	})
}
