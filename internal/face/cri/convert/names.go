package convert

import (
	"path"
	"slices"
)

// Named reports whether one of an image's names is one of the patterns', which
// are those of path.Match.
func Named(patterns, names []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return slices.ContainsFunc(names, func(name string) bool {
			ok, err := path.Match(pattern, name)
			return ok && err == nil
		})
	})
}
