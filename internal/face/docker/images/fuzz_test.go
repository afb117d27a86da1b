package images

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/dockerhttp"
)

// FuzzNames: a name from outside is a full name that stays the same, or InvalidArgument.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"nginx", "a/b:c", "localhost:5000/x@sha256:" + strings.Repeat("0", 64), "sha256:abc", "UPPER", "../x", "a\x00b", "docker.io/library/a"} {
		f.Add(seed, "latest", "")
		f.Add(seed, "sha256:"+strings.Repeat("a", 64), "reg.local:5000")
	}
	f.Fuzz(func(t *testing.T, name, tag, registry string) {
		s := &Server{DefaultRegistry: registry}
		named, err := s.parseTagged(name, tag)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q %q: %v", name, tag, err)
			}
			return
		}
		full := reference.TagNameOnly(named).String()
		again, err := (&Server{}).parse(full)
		if err != nil || again.String() != full || familiar(full) == "" || repository(full) != named.Name() {
			t.Errorf("%q %q is %q, and that %v, %v", name, tag, full, again, err)
		}
	})
}

// FuzzPlatform: the platform of a request has an operating system and an architecture, or the request is refused.
func FuzzPlatform(f *testing.F) {
	for _, seed := range []string{"", "{}", "null", `{"os":"linux","architecture":"arm64","variant":"v8"}`, `{"os":["x"]}`, "linux/amd64"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		in := httptest.NewRequest(http.MethodGet, "/?platform="+url.QueryEscape(text), nil)
		p, err := platformOf(&dockerhttp.Request{Request: in})
		if err == nil && p == nil && text != "" || p != nil && (p.OS == "" || p.Architecture == "") || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	})
}
