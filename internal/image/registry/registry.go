// Package registry reads images from registries: it finds the hosts of a name, authenticates, and
// explains refusals.
//
// It does not know the content store: it returns bytes with their source. Everything in it handles
// input from outside, so it runs in the confined worker. Start reading at Open and
// Repository.Resolve.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/pelletier/go-toml/v2"

	"github.com/longshore/longshore/internal/image/hostname"
)

// MaxManifest is the largest manifest or index that is read, in bytes.
const MaxManifest = 4 << 20

// accept lists the types that Resolve and Manifest can use, and the old schema 1, so that a
// registry that has only that says so by its content type.
var accept = strings.Join([]string{
	ocispec.MediaTypeImageIndex, ocispec.MediaTypeImageManifest,
	"application/vnd.docker.distribution.manifest.list.v2+json",
	"application/vnd.docker.distribution.manifest.v2+json",
	"*/*",
}, ", ")

// Options say how to reach registries.
type Options struct {
	// HostDirs contain <host>/hosts.toml and _default/hosts.toml, in containerd's form; the first
	// directory that has the host is used.
	HostDirs []string
	// Credentials are for the registry of the name only.
	Credentials Credentials
	// Auths are the credentials by host of a docker config.json, also for mirrors.
	Auths map[string]Credentials
	// CredentialHosts are, by the host of a registry or mirror, other hosts that get its
	// credentials too: token servers and the targets of redirects. "docker.io" is Docker Hub
	// under any of its names.
	CredentialHosts map[string][]string
	// Stall is how long a server may send nothing; 0 is one minute.
	Stall time.Duration
	// MinRate is how many bytes per second a server must send on average over each Window; 0 is
	// no limit. A Window of 0 is half a minute.
	MinRate int64
	Window  time.Duration
	// Retries is how often a request is repeated after 429, 5xx or a broken
	// connection; 0 is 4, negative is never.
	Retries int
	// Backoff is the first pause between attempts, doubled each time; 0 is 250ms.
	Backoff time.Duration
	// MaxWait is the longest Retry-After that is obeyed; 0 is one minute.
	MaxWait time.Duration
	// UserAgent identifies this program to the server.
	UserAgent string
}

func (o Options) withDefaults() Options {
	if o.Stall == 0 {
		o.Stall = time.Minute
	}
	if o.Window == 0 {
		o.Window = 30 * time.Second
	}
	if o.Retries == 0 {
		o.Retries = 4
	}
	if o.Backoff == 0 {
		o.Backoff = 250 * time.Millisecond
	}
	if o.MaxWait == 0 {
		o.MaxWait = time.Minute
	}
	return o
}

// Repository is one repository of a registry, with its mirrors.
type Repository struct {
	domain string // as in the name: docker.io
	path   string
	hosts  []docker.RegistryHost
	opts   Options
	home   string // the registry's own host: registry-1.docker.io
	ownDir bool   // it has a directory of its own among HostDirs
	server string // the server of its own hosts.toml, or ""

	headers map[string]bool // the header names that hosts.toml files set, in canonical form

	mu       sync.Mutex        // guards holdBack, held
	holdBack bool              // while a challenge is handled: give out no credentials
	held     map[string]string // by host, why credentials were withheld
}

// Open finds the hosts that serve named's repository. It does not contact them.
func Open(ctx context.Context, named reference.Named, opts Options) (*Repository, error) {
	opts = opts.withDefaults()
	named, err := hostname.Image(named)
	if err != nil {
		return nil, fmt.Errorf("image name: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	opts.CredentialHosts = normalHosts(opts.CredentialHosts)
	r := &Repository{domain: reference.Domain(named), path: reference.Path(named), opts: opts, headers: map[string]bool{}, held: map[string]string{}}
	r.home = upstream(r.domain)
	ho := config.HostOptions{
		HostDir:     r.hostDir,
		Credentials: r.credentials,
		UpdateClient: func(c *http.Client) error {
			c.Transport = &transport{base: c.Transport, opts: opts, scrub: r.scrub}
			c.CheckRedirect = r.redirect
			return nil
		},
	}
	if loopback(r.domain) {
		ho.DefaultScheme = "http"
	}
	hosts, err := config.ConfigureHosts(ctx, ho)(r.domain)
	if err != nil {
		return nil, fmt.Errorf("read registry config of %s: %w: %w", r.domain, errdefs.ErrInvalidArgument, err)
	}
	if len(hosts) == 0 {
		return nil, fmt.Errorf("read registry config of %s: no host to ask: %w", r.domain, errdefs.ErrFailedPrecondition)
	}
	r.hosts = hosts
	for _, h := range hosts {
		for key := range h.Header {
			r.headers[http.CanonicalHeaderKey(key)] = true
		}
	}
	if r.ownDir {
		r.server = hosts[len(hosts)-1].Host
	}
	return r, nil
}

func upstream(domain string) string {
	if domain == "docker.io" {
		return "registry-1.docker.io"
	}
	return domain
}

func loopback(host string) bool { return hostname.Loopback(host) }

// normalHosts returns a table of hosts in their normal form.
func normalHosts(table map[string][]string) map[string][]string {
	normal := map[string][]string{}
	for host, others := range table {
		normal[canonicalHost(host)] = append(normal[canonicalHost(host)], others...)
	}
	return normal
}

// dirOf returns the directory of a host in one of HostDirs, under whichever name of the host it
// has; NotFound when there is none and no default.
func dirOf(root, host string) (string, error) {
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	exact, err := config.HostDirFromRoot(root)(host)
	if err == nil && filepath.Base(exact) != "_default" {
		return exact, nil
	}
	for _, e := range entries {
		name := e.Name()
		if at := strings.LastIndexByte(strings.TrimSuffix(name, "_"), '_'); at > 0 && strings.HasSuffix(name, "_") {
			name = name[:at] + ":" + name[at+1:len(name)-1] // HOST_PORT_
		}
		if hostname.Same(name, host) {
			return filepath.Join(root, e.Name()), nil
		}
	}
	return exact, err
}

func (r *Repository) hostDir(host string) (string, error) {
	for _, dir := range r.opts.HostDirs {
		found, err := dirOf(dir, host)
		if err == nil {
			r.ownDir = filepath.Base(found) != "_default"
			return found, wellFormed(filepath.Join(found, "hosts.toml"))
		}
		if !errdefs.IsNotFound(err) {
			return "", err
		}
	}
	return "", fmt.Errorf("registry config of %s: %w", host, errdefs.ErrNotFound)
}

// wellFormed parses a hosts.toml only to check it: a broken one would otherwise count as none.
func wellFormed(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var doc map[string]any
	if err := toml.Unmarshal(data, &doc); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// bearer returns the registry token to send to host unchanged, or "".
func (r *Repository) bearer(host string) string { return r.credentialsOf(host).Bearer }

// Name returns the full name of the repository, docker.io/library/redis.
func (r *Repository) Name() string { return r.domain + "/" + r.path }

// Resolve returns the descriptor of ref, a tag or a digest. The body is returned when the server
// had to send it anyway, otherwise nil.
func (r *Repository) Resolve(ctx context.Context, ref string) (ocispec.Descriptor, []byte, error) {
	need := docker.HostCapabilityResolve
	if _, err := digest.Parse(ref); err == nil {
		need = docker.HostCapabilityPull
	}
	var desc ocispec.Descriptor
	var body []byte
	err := r.each(need, func(h docker.RegistryHost) (err error) {
		desc, body, err = r.resolveAt(ctx, h, ref)
		return err
	})
	return desc, body, err
}

func (r *Repository) resolveAt(ctx context.Context, h docker.RegistryHost, ref string) (ocispec.Descriptor, []byte, error) {
	q := question{what: "manifest " + ref, method: http.MethodHead, path: "/manifests/" + ref, accept: accept}
	resp, err := r.ask(ctx, h, q)
	if err == nil {
		_ = resp.Body.Close()
		dgst, derr := digest.Parse(resp.Header.Get("Docker-Content-Digest"))
		size := resp.ContentLength
		if derr == nil && size >= 0 && dgst.Algorithm() == digest.SHA256 {
			if size > MaxManifest {
				return ocispec.Descriptor{}, nil, r.tooLarge(h, ref, size)
			}
			desc := ocispec.Descriptor{MediaType: mediaType(resp), Digest: dgst, Size: size}
			return desc, nil, r.checkDigest(h, ref, desc.Digest)
		}
	} else if !worthGet(err) {
		return ocispec.Descriptor{}, nil, err
	}
	// There is no digest in the answer, or only GET returns the reason of a refusal.
	q.method = http.MethodGet
	resp, err = r.ask(ctx, h, q) //nolint:bodyclose // readManifest does
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	body, err := readManifest(resp)
	if err != nil {
		return ocispec.Descriptor{}, nil, r.wrap(h, q.what, err)
	}
	desc := ocispec.Descriptor{MediaType: mediaType(resp), Digest: digest.FromBytes(body), Size: int64(len(body))}
	return desc, body, r.checkDigest(h, ref, desc.Digest)
}

// worthGet reports whether to repeat a refused HEAD as GET.
func worthGet(err error) bool {
	var se *StatusError
	if !errors.As(err, &se) {
		return false
	}
	return se.Status != http.StatusTooManyRequests && se.Status < 500
}

func (r *Repository) checkDigest(h docker.RegistryHost, ref string, got digest.Digest) error {
	if want, err := digest.Parse(ref); err != nil || want == got {
		return nil //nolint:nilerr // ref is a tag
	}
	return fmt.Errorf("get manifest %s of %s from %s: content is %s: %w", ref, r.Name(), h.Host, got, errdefs.ErrDataLoss)
}

func (r *Repository) tooLarge(h docker.RegistryHost, ref string, size int64) error {
	return fmt.Errorf("get manifest %s of %s from %s: %d bytes are more than %d: %w", ref, r.Name(), h.Host, size, MaxManifest, errdefs.ErrInvalidArgument)
}

func mediaType(resp *http.Response) string {
	mt, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(mt)
}

func readManifest(resp *http.Response) ([]byte, error) {
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxManifest+1))
	if err != nil {
		return nil, unavailable(err)
	}
	if len(body) > MaxManifest {
		return nil, fmt.Errorf("more than %d bytes: %w", MaxManifest, errdefs.ErrInvalidArgument)
	}
	return body, nil
}

// Manifest reads the manifest or index that desc describes and verifies its digest.
func (r *Repository) Manifest(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	var body []byte
	err := r.each(docker.HostCapabilityPull, func(h docker.RegistryHost) error {
		q := question{
			what: "manifest " + desc.Digest.String(), method: http.MethodGet,
			path: "/manifests/" + desc.Digest.String(), accept: accept,
		}
		resp, err := r.ask(ctx, h, q) //nolint:bodyclose // readManifest does
		if err != nil {
			return err
		}
		if body, err = readManifest(resp); err != nil {
			return r.wrap(h, q.what, err)
		}
		if got := desc.Digest.Algorithm().FromBytes(body); got != desc.Digest {
			return r.wrap(h, q.what, fmt.Errorf("content is %s: %w", got, errdefs.ErrDataLoss))
		}
		return nil
	})
	return body, err
}

// Referrers reads the index of the manifests that refer to subject: from the registry's API or,
// where there is none, from the tag that replaces it. When nothing refers to it the index is
// empty or nil.
func (r *Repository) Referrers(ctx context.Context, subject digest.Digest) ([]byte, error) {
	var body []byte
	err := r.each(docker.HostCapabilityPull, func(h docker.RegistryHost) error {
		q := question{
			what: "referrers of " + subject.String(), method: http.MethodGet,
			path: "/referrers/" + subject.String(), accept: ocispec.MediaTypeImageIndex,
		}
		resp, err := r.ask(ctx, h, q) //nolint:bodyclose // readManifest does
		if err != nil {
			return err
		}
		if body, err = readManifest(resp); err != nil {
			return r.wrap(h, q.what, err)
		}
		return nil
	})
	if !lacksReferrers(err) {
		return body, err
	}
	desc, body, err := r.Resolve(ctx, strings.ReplaceAll(subject.String(), ":", "-"))
	switch {
	case errdefs.IsNotFound(err):
		return nil, nil
	case err != nil || body != nil:
		return body, err
	}
	return r.Manifest(ctx, desc)
}

// lacksReferrers reports whether err means that the registry does not have the API.
func lacksReferrers(err error) bool {
	var se *StatusError
	if !errors.As(err, &se) {
		return false
	}
	switch se.Status {
	case http.StatusNotFound, http.StatusBadRequest, http.StatusMethodNotAllowed, http.StatusNotAcceptable, http.StatusNotImplemented:
		return true
	}
	return false
}

// Blob opens a blob at offset. Reading returns Unavailable when the server stalls or closes
// early; the caller continues from where it was.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	var body io.ReadCloser
	err := r.each(docker.HostCapabilityPull, func(h docker.RegistryHost) (err error) {
		body, err = r.blobAt(ctx, h, desc, offset)
		return err
	})
	return body, err
}

func (r *Repository) blobAt(ctx context.Context, h docker.RegistryHost, desc ocispec.Descriptor, offset int64) (io.ReadCloser, error) {
	q := question{what: "blob " + desc.Digest.String(), method: http.MethodGet, path: "/blobs/" + desc.Digest.String(), accept: "*/*", offset: offset}
	resp, err := r.ask(ctx, h, q)
	if err != nil {
		return nil, err
	}
	start := int64(0)
	if resp.StatusCode == http.StatusPartialContent {
		start = contentStart(resp.Header.Get("Content-Range"))
	}
	bad := ""
	switch {
	case start != 0 && start != offset:
		bad = fmt.Sprintf("asked for byte %d and following, it answers %q", offset, resp.Header.Get("Content-Range"))
	case resp.ContentLength >= 0 && start+resp.ContentLength != desc.Size:
		bad = fmt.Sprintf("it has %d bytes, the manifest says %d", start+resp.ContentLength, desc.Size)
	}
	if bad != "" {
		_ = resp.Body.Close()
		return nil, r.wrap(h, q.what, fmt.Errorf("%s: %w", bad, errdefs.ErrDataLoss))
	}
	if start < offset { // the server does not support ranges
		if _, err := io.CopyN(io.Discard, resp.Body, offset); err != nil {
			_ = resp.Body.Close()
			return nil, r.wrap(h, q.what, unavailable(err))
		}
	}
	return &blobBody{ReadCloser: resp.Body, wrap: func(err error) error { return r.wrap(h, q.what, unavailable(err)) }}, nil
}

// contentStart returns the first byte of a Content-Range, -1 when it is malformed.
func contentStart(v string) int64 {
	rest, ok := strings.CutPrefix(v, "bytes ")
	if !ok {
		return -1
	}
	first, _, ok := strings.Cut(rest, "-")
	n, err := strconv.ParseInt(first, 10, 64)
	if !ok || err != nil || n < 0 {
		return -1
	}
	return n
}

type blobBody struct {
	io.ReadCloser
	wrap func(error) error
}

func (b *blobBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.wrap(err)
	}
	return n, err
}

// each tries the hosts in order until one answers. The error is that of the last one, the
// registry itself, followed by those of the mirrors.
func (r *Repository) each(need docker.HostCapabilities, try func(docker.RegistryHost) error) error {
	var before []string
	var last error
	for _, h := range r.hosts {
		if !h.Capabilities.Has(need) {
			continue
		}
		if last != nil {
			before = append(before, last.Error())
		}
		last = try(h)
		if last == nil {
			return nil
		}
		if errors.Is(last, context.Canceled) || errors.Is(last, context.DeadlineExceeded) {
			return last
		}
	}
	switch {
	case last == nil:
		return fmt.Errorf("read %s: no configured host has the capability for this: %w", r.Name(), errdefs.ErrFailedPrecondition)
	case len(before) > 0:
		return fmt.Errorf("%w (tried before: %s)", last, strings.Join(before, "; "))
	}
	return last
}

func (r *Repository) wrap(h docker.RegistryHost, what string, err error) error {
	return fmt.Errorf("get %s of %s from %s: %w", what, r.Name(), h.Host, err)
}

// unreachable is the error of a host that has not answered, or not by HTTPS.
func (r *Repository) unreachable(h docker.RegistryHost, err error) error {
	if !errors.Is(err, http.ErrSchemeMismatch) {
		return unavailable(unURL(err))
	}
	dir := "/etc/longshore/certs.d"
	if len(r.opts.HostDirs) > 0 {
		dir = r.opts.HostDirs[0]
	}
	return fmt.Errorf("the registry serves plain HTTP and not HTTPS: to allow that, put the line server = %q into %s: %w",
		"http://"+h.Host, filepath.Join(dir, h.Host, "hosts.toml"), errdefs.ErrUnavailable)
}

// question is one request to a repository.
type question struct {
	what, method, path, accept string
	offset                     int64
	push                       *upload // nil when it only reads
	query                      url.Values
}

// ask sends q to h and authenticates if asked to. Any status but 200 and 206, or those that q
// expects of a push, is a *StatusError.
func (r *Repository) ask(ctx context.Context, h docker.RegistryHost, q question) (*http.Response, error) {
	ctx = context.WithValue(docker.WithScope(ctx, q.scope(r.path)), asking{}, h)
	u := url.URL{Scheme: h.Scheme, Host: h.Host, Path: h.Path + "/" + r.path + q.path}
	if h.Host != r.home && h.Host != r.domain {
		u.RawQuery = url.Values{"ns": {r.domain}}.Encode()
	}
	if len(q.query) > 0 {
		values := u.Query()
		maps.Copy(values, q.query)
		u.RawQuery = values.Encode()
	}
	if q.push != nil && q.push.at != nil {
		u = *q.push.at
	}
	var refused []*http.Response
	for {
		req, err := q.request(ctx, &u)
		if err != nil {
			return nil, r.wrap(h, q.what, fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err))
		}
		for k, v := range h.Header {
			req.Header[k] = append([]string(nil), v...)
		}
		req.Header.Set("Accept", q.accept)
		req.Header.Set("Accept-Encoding", "identity") // the digest is of the bytes as they are
		if r.opts.UserAgent != "" {
			req.Header.Set("User-Agent", r.opts.UserAgent)
		}
		if q.offset > 0 {
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", q.offset))
		}
		token := r.bearer(h.Host)
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		} else if h.Authorizer != nil {
			if err := h.Authorizer.Authorize(context.WithValue(ctx, forToken{}, true), req); err != nil {
				return nil, r.wrap(h, q.what, tokenError(ctx, err, r.whyHeld(h)))
			}
		}
		resp, err := h.Client.Do(req)
		if err != nil {
			return nil, r.wrap(h, q.what, r.unreachable(h, err))
		}
		if q.answered(resp.StatusCode) {
			return resp, nil
		}
		se := statusError(resp)
		se.Tried = req.Header.Get("Authorization") != ""
		if token != "" && !r.trusts(h, &u) {
			r.mu.Lock()
			r.noteHeld(h, &u)
			r.mu.Unlock()
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized || token != "" || h.Authorizer == nil || len(refused) >= 2 ||
			(se.Tried && strings.HasPrefix(req.Header.Get("Authorization"), "Basic ")) {
			se.Held = r.whyHeld(h)
			return nil, r.wrap(h, q.what, se)
		}
		refused = append(refused, resp)
		if err := r.challenged(ctx, h, refused); err != nil {
			se.Held = r.whyHeld(h)
			return nil, r.wrap(h, q.what, se)
		}
	}
}
