package registry

import (
	"strings"
	"testing"
)

// FuzzNextPage: a registry's link gives the query of a request to the same place, or nothing.
func FuzzNextPage(f *testing.F) {
	for _, seed := range []string{`</v2/a/tags/list?last=x&n=5>; rel="next"`, `<https://evil.example/?n=1>;rel=next`, `<?ns=x>; rel=next`, "", "<", `<%zz>; rel=next`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, link string) {
		q := nextPage(link)
		if q.Has("ns") || q != nil && (len(q) == 0 || !strings.Contains(link, "next")) {
			t.Errorf("%q: %v", link, q)
		}
	})
}
