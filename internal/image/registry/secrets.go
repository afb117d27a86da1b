package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/auth"
	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/image/hostname"
	"github.com/longshore/longshore/internal/weaken"
)

// Credentials are sent to their own host, and to those that the configuration allows for it
// (Options.CredentialHosts), and never over plain HTTP, except on loopback. The transport removes
// them from every other request, so that neither a redirect nor a token server elsewhere gets them.

// asking is the context key of the host that a request is meant for. Requests to its token server
// and redirects have it too.
type asking struct{}

// forToken is the context key of requests to token servers.
type forToken struct{}

// maxToken bounds a token server's answer, in bytes.
const maxToken = 1 << 20

// errSecret is the error for a request with credentials in its body that must not be sent.
var errSecret = fmt.Errorf("credentials are not sent there: %w", errdefs.ErrPermissionDenied) //nolint:gochecknoglobals // an error value

// origin returns a URL's scheme, host and port.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return u.Scheme + "://" + hostname.Address(net.JoinHostPort(u.Hostname(), port))
}

// encrypted reports whether nobody between us and u can read the request.
func encrypted(u *url.URL) bool { return u.Scheme == "https" || loopback(u.Host) }

// trusts reports whether credentials for h may be sent to u.
func (r *Repository) trusts(h docker.RegistryHost, u *url.URL) bool {
	if weaken.Off(weaken.RegistryCredentials) {
		return true
	}
	if !encrypted(u) {
		return false
	}
	if origin(u) == origin(&url.URL{Scheme: h.Scheme, Host: h.Host}) {
		return true
	}
	named := slices.Clone(r.opts.CredentialHosts[canonicalHost(h.Host)])
	if r.own(h.Host) {
		named = append(named, r.opts.CredentialHosts[canonicalHost(r.domain)]...)
	}
	return slices.ContainsFunc(named, func(host string) bool { return origin(&url.URL{Scheme: u.Scheme, Host: host}) == origin(u) })
}

// scrub returns req without the credentials that must not be sent to its host.
func (r *Repository) scrub(req *http.Request) (*http.Request, error) {
	h, known := req.Context().Value(asking{}).(docker.RegistryHost)
	if known && r.trusts(h, req.URL) {
		return req, nil
	}
	if req.Body != nil && req.Body != http.NoBody && (!known || !isContent(req, h)) {
		_ = req.Body.Close()
		return nil, fmt.Errorf("%s: %w", origin(req.URL), errSecret)
	}
	clean := req.Clone(req.Context())
	for key := range clean.Header {
		if r.secret(key) {
			delete(clean.Header, key)
		}
	}
	return clean, nil
}

// isContent reports whether a request's body is content of an image for the registry itself, which may be one that the configuration
// reaches by plain HTTP. The body of a request to a token server has credentials.
func isContent(req *http.Request, h docker.RegistryHost) bool {
	return req.Context().Value(forToken{}) == nil && origin(req.URL) == origin(&url.URL{Scheme: h.Scheme, Host: h.Host})
}

// secret reports whether a header is a credential, or one that a hosts.toml sets for its host and
// that may be one.
func (r *Repository) secret(key string) bool {
	switch key = http.CanonicalHeaderKey(key); key {
	case "Authorization", "Proxy-Authorization", "Cookie":
		return true
	}
	return r.headers[key]
}

// redirect is the clients' CheckRedirect. net/http has already removed the credentials from a
// request to another domain. Those for a host that the configuration allows are put back; the
// transport removes all others.
func (r *Repository) redirect(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("more than ten redirects")
	}
	h, known := req.Context().Value(asking{}).(docker.RegistryHost)
	if value := via[0].Header.Get("Authorization"); value != "" && known && r.trusts(h, req.URL) {
		req.Header.Set("Authorization", value) //nolint:gosec // the configuration allows the target
	}
	return nil
}

// challenged handles a host's request for credentials. From a token server that must not have
// them they are withheld; it is then asked without.
func (r *Repository) challenged(ctx context.Context, h docker.RegistryHost, refused []*http.Response) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holdBack = false
	last := refused[len(refused)-1]
	for _, c := range auth.ParseAuthHeader(last.Header) {
		target := last.Request.URL
		if c.Scheme == auth.BearerAuth {
			realm, err := url.Parse(c.Parameters["realm"])
			if err != nil {
				return fmt.Errorf("token server %q: %w", c.Parameters["realm"], err)
			}
			target = realm
		}
		if !r.trusts(h, target) {
			r.noteHeld(h, target)
			r.holdBack = true
		}
	}
	return h.Authorizer.AddResponses(ctx, refused)
}

// noteHeld records, for messages, that credentials of h are withheld from u, if there are any.
// Preconditions: mu is held.
func (r *Repository) noteHeld(h docker.RegistryHost, u *url.URL) {
	if r.credentialsOf(h.Host) == (Credentials{}) {
		return
	}
	if !encrypted(u) {
		r.held[h.Host] = fmt.Sprintf("credentials are not sent by plain HTTP to %s: use https in its hosts.toml", u.Host)
		return
	}
	r.held[h.Host] = fmt.Sprintf("credentials for %s are not sent to %s, another host: if they are meant for it, add it to %q in images.credential_hosts", h.Host, u.Host, canonicalHost(h.Host))
}

// whyHeld returns why credentials of h were withheld, or "".
func (r *Repository) whyHeld(h docker.RegistryHost) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.held[h.Host]
}

// own reports whether host is the registry of the name itself: under its own address, or under
// the one that its hosts.toml has as server.
func (r *Repository) own(host string) bool {
	return host == r.home || host == r.domain || host == r.server && host != ""
}

// credentialsOf returns the credentials for host.
func (r *Repository) credentialsOf(host string) Credentials {
	if c := r.opts.Credentials; c != (Credentials{}) && r.own(host) {
		return c
	}
	c, ok := r.opts.Auths[canonicalHost(host)]
	if !ok && r.own(host) {
		c = r.opts.Auths[canonicalHost(r.domain)]
	}
	return c
}

// credentials returns credentials for the authorizer. Preconditions: mu is held, by challenged,
// which leads here.
func (r *Repository) credentials(host string) (string, string, error) {
	c := r.credentialsOf(host)
	switch {
	case r.holdBack:
		return "", "", nil
	case c.Token != "":
		return "", c.Token, nil
	}
	return c.Username, c.Password, nil
}
