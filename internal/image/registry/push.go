package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// upload is the body of a request.
type upload struct {
	body   func() (io.ReadCloser, error) // opened again when the request is repeated; nil for none
	length int64
	kind   string   // media type of the body
	at     *url.URL // where the server wants it, nil for the question's own path
	expect []int    // statuses of success
	node   bool     // asks the registry itself, and no repository
}

// scope returns the rights to request from a token server.
func (q question) scope(path string) string {
	switch {
	case q.push == nil:
		return "repository:" + path + ":pull"
	case q.push.node:
		return ""
	}
	return "repository:" + path + ":pull,push"
}

// answered reports whether a status is one of success.
func (q question) answered(status int) bool {
	if q.push != nil {
		return slices.Contains(q.push.expect, status)
	}
	return status == http.StatusOK || status == http.StatusPartialContent
}

func (q question) request(ctx context.Context, u *url.URL) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, q.method, u.String(), nil)
	if err != nil || q.push == nil || q.push.body == nil {
		return req, err
	}
	if req.Body, err = q.push.body(); err != nil {
		return nil, err
	}
	req.GetBody, req.ContentLength = q.push.body, q.push.length
	req.Header.Set("Content-Type", q.push.kind)
	return req, nil
}

// Push stores a blob in the repository, unless it is there, and reports whether it was. open
// returns its content; it may be called more than once.
func (r *Repository) Push(ctx context.Context, desc ocispec.Descriptor, open func() (io.ReadCloser, error)) (existed bool, err error) {
	err = r.each(docker.HostCapabilityPush, func(h docker.RegistryHost) error {
		existed, err = r.pushAt(ctx, h, desc, open)
		return err
	})
	return existed, err
}

func (r *Repository) pushAt(ctx context.Context, h docker.RegistryHost, desc ocispec.Descriptor, open func() (io.ReadCloser, error)) (existed bool, err error) {
	what := "blob " + desc.Digest.String()
	found := upload{expect: []int{http.StatusOK, http.StatusNotFound}}
	resp, err := r.ask(ctx, h, question{what: what, method: http.MethodHead, path: "/blobs/" + desc.Digest.String(), accept: "*/*", push: &found})
	if err != nil {
		return false, err
	}
	_ = resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return true, nil
	}
	begin := upload{expect: []int{http.StatusAccepted, http.StatusCreated}}
	resp, err = r.ask(ctx, h, question{what: what, method: http.MethodPost, path: "/blobs/uploads/", accept: "*/*", push: &begin})
	if err != nil {
		return false, err
	}
	_ = resp.Body.Close()
	to, err := resp.Location()
	if err != nil {
		return false, r.wrap(h, what, fmt.Errorf("it does not say where the content goes: %w: %w", errdefs.ErrDataLoss, err))
	}
	query := to.Query()
	query.Set("digest", desc.Digest.String())
	to.RawQuery = query.Encode()
	send := upload{body: open, length: desc.Size, kind: "application/octet-stream", at: to, expect: []int{http.StatusCreated, http.StatusNoContent, http.StatusOK}}
	resp, err = r.ask(ctx, h, question{what: what, method: http.MethodPut, accept: "*/*", push: &send})
	if errors.Is(err, errSecret) {
		return false, r.wrap(h, what, fmt.Errorf("it wants the content sent to %s, another host: if that is right, add it to %q in images.credential_hosts: %w",
			to.Host, canonicalHost(h.Host), errdefs.ErrPermissionDenied))
	}
	if err != nil {
		return false, err
	}
	_ = resp.Body.Close()
	return false, nil
}

// PushManifest stores a manifest under a tag or its digest. Its blobs must be there.
func (r *Repository) PushManifest(ctx context.Context, ref, mediaType string, body []byte) error {
	return r.each(docker.HostCapabilityPush, func(h docker.RegistryHost) error {
		open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		send := upload{body: open, length: int64(len(body)), kind: mediaType, expect: []int{http.StatusCreated, http.StatusOK, http.StatusAccepted}}
		resp, err := r.ask(ctx, h, question{what: "manifest " + ref, method: http.MethodPut, path: "/manifests/" + ref, accept: "*/*", push: &send})
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
}

// Login asks a registry whether it takes the credentials of opts.
func Login(ctx context.Context, domain string, opts Options) error {
	named, err := reference.ParseNormalizedNamed(domain + "/any")
	if err != nil || reference.Domain(named) != domain {
		return fmt.Errorf("registry %q is not a host: %w", domain, errdefs.ErrInvalidArgument)
	}
	r, err := Open(ctx, named, opts)
	if err != nil {
		return err
	}
	return r.each(docker.HostCapabilityPush, func(h docker.RegistryHost) error {
		at := &url.URL{Scheme: h.Scheme, Host: h.Host, Path: h.Path + "/"}
		resp, err := r.ask(ctx, h, question{what: "its version", method: http.MethodGet, accept: "*/*", push: &upload{at: at, expect: []int{http.StatusOK}, node: true}})
		if err != nil {
			return err
		}
		return resp.Body.Close()
	})
}
