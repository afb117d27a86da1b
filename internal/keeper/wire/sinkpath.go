package wire

import (
	"path"
	"strings"

	"github.com/longshore/longshore/internal/beneath"
)

// JoinPath encodes a Sink's path p with the trusted directory below; with below "" all
// of p is trusted. It reports false if p is not below that directory.
func JoinPath(below, p string) (string, bool) {
	if below == "" {
		return path.Clean(p), true
	}
	rel, ok := beneath.Rel(below, p)
	if !ok || rel == "." {
		return "", false
	}
	return strings.TrimSuffix(path.Clean(below), "/") + "//" + rel, true
}

// SplitPath decodes a path of JoinPath; below is "" if all of it is trusted.
func SplitPath(joined string) (below, p string) {
	base, rel, ok := strings.Cut(joined, "//")
	if !ok {
		return "", joined
	}
	if base == "" {
		return "/", "/" + rel
	}
	return base, base + "/" + rel
}
