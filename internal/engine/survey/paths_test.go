package survey

import (
	"strings"
	"testing"
)

func TestPathSetRelates(t *testing.T) {
	var none, s pathSet
	for _, p := range []string{"", "/a/b/c", "/a/b", "/x", "/x"} {
		s.add(p)
	}
	for path, want := range map[string]bool{
		"/a": true, "/a/b": true, "/a/b/c": true, "/a/b/c/d/e": true, "/a/b/other": true, "/x": true, "/x/y": true,
		"/a/bc": false, "/a/other": false, "/y": false, "/xx": false, "": false, "/": false,
	} {
		if got := s.relates(path); got != want {
			t.Errorf("%q: %t", path, got)
		}
		if none.relates(path) {
			t.Errorf("%q is related to nothing", path)
		}
	}
}

func FuzzPathSetRelates(f *testing.F) {
	f.Add("/a/b", "/a", "/a/b/c")
	f.Fuzz(func(t *testing.T, one, two, path string) {
		for _, p := range []string{one, two, path} {
			if !strings.HasPrefix(p, "/") || strings.HasSuffix(p, "/") || strings.Contains(p, "//") {
				t.Skip()
			}
		}
		var s pathSet
		want := false
		for _, p := range []string{one, two} {
			s.add(p)
			want = want || p == path || strings.HasPrefix(p, path+"/") || strings.HasPrefix(path, p+"/")
		}
		if got := s.relates(path); got != want {
			t.Errorf("%q, %q: %q is related: %t", one, two, path, got)
		}
	})
}
