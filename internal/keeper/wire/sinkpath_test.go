package wire_test

import (
	"testing"

	"github.com/longshore/longshore/internal/keeper/wire"
)

// TestSinkPaths: the keeper splits the agent's joined path, and a keeper that does not know of it
// finds the same file.
func TestSinkPaths(t *testing.T) {
	for _, c := range []struct{ below, path, joined string }{
		{"/logs/pod", "/logs/pod/c/0.log", "/logs/pod//c/0.log"},
		{"/", "/a/b", "//a/b"},
		{"", "/a/b", "/a/b"},
	} {
		joined, ok := wire.JoinPath(c.below, c.path)
		if !ok || joined != c.joined {
			t.Errorf("%q in %q is joined to %q, %t", c.path, c.below, joined, ok)
		}
		if below, path := wire.SplitPath(joined); below != c.below || path != c.path {
			t.Errorf("%q is taken apart to %q and %q", joined, below, path)
		}
	}
	if joined, ok := wire.JoinPath("", "/a//b"); !ok || joined != "/a/b" {
		t.Errorf("two slashes of no meaning: %q, %t", joined, ok)
	}
	for _, c := range [][2]string{{"/a", "/b"}, {"/a", "/a/../b"}, {"/a", "/a"}, {"a", "a/b"}} {
		if joined, ok := wire.JoinPath(c[0], c[1]); ok {
			t.Errorf("%q in %q is joined to %q", c[1], c[0], joined)
		}
	}
}
