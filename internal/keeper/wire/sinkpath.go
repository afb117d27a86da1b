package wire

import (
	"path"
	"strings"

	"github.com/longshore/longshore/internal/beneath"
)

// JoinPath is a Sink's Path: p, of which the directory below is trusted, or all
// of it when below is "". It reports false when p is not below that.
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

// SplitPath takes a Path apart as JoinPath put it together; below is "" when all
// of it is trusted.
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
