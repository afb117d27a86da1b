package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// The bounds of a list of tags.
const (
	maxTags     = 10_000
	maxTagPages = 200
)

// Tags lists the tags of the repository.
func (r *Repository) Tags(ctx context.Context) (tags []string, err error) {
	err = r.each(docker.HostCapabilityResolve, func(h docker.RegistryHost) error {
		tags = nil
		query := url.Values{"n": {"1000"}}
		for range maxTagPages {
			page, next, err := r.tagsAt(ctx, h, query)
			if err != nil {
				return err
			}
			tags = append(tags, page...)
			if len(tags) > maxTags {
				break
			}
			if query = next; query == nil {
				return nil
			}
		}
		return fmt.Errorf("list the tags of %s: it has more than %d, or its pages do not end: %w", r.Name(), maxTags, errdefs.ErrResourceExhausted)
	})
	return tags, err
}

// tagsAt gets a page of tags, and the query of the next page; nil after the last one. Only the query of the registry's link is used: it
// cannot lead to another place.
func (r *Repository) tagsAt(ctx context.Context, h docker.RegistryHost, query url.Values) (tags []string, next url.Values, err error) {
	q := question{what: "tags", method: http.MethodGet, path: "/tags/list", accept: "application/json", query: query}
	resp, err := r.ask(ctx, h, q) //nolint:bodyclose // readManifest does
	if err != nil {
		return nil, nil, err
	}
	next = nextPage(resp.Header.Get("Link"))
	body, err := readManifest(resp)
	if err != nil {
		return nil, nil, r.wrap(h, q.what, err)
	}
	var doc struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, nil, r.wrap(h, q.what, fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err))
	}
	return doc.Tags, next, nil
}

// nextPage returns the query in a Link header of a next page; nil for none.
func nextPage(link string) url.Values {
	target, attributes, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(link), "<"), ">")
	if !ok || !strings.Contains(attributes, "next") {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil {
		return nil
	}
	values := u.Query()
	values.Del("ns")
	if len(values) == 0 {
		return nil
	}
	return values
}
