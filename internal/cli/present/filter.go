package present

import (
	"fmt"
	"slices"
	"strings"
)

// Filters are the values of --filter NAME=VALUE. Values of one name are alternatives, but those of
// label must all match; all names must match.
type Filters map[string][]string

// ParseFilters parses NAME=VALUE; other names than those of known are refused.
func ParseFilters(list []string, known ...string) (Filters, error) {
	f := Filters{}
	for _, s := range list {
		name, value, ok := strings.Cut(s, "=")
		name = strings.ToLower(strings.TrimSpace(name))
		if !ok || value == "" {
			return nil, fmt.Errorf("--filter %q is not NAME=VALUE", s)
		}
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("--filter %q: %q is none of %s", s, name, strings.Join(known, ", "))
		}
		f[name] = append(f[name], value)
	}
	return f, nil
}

// Any reports whether the filter of this name is absent, or one of its values fits.
func (f Filters) Any(name string, fits func(value string) bool) bool {
	return len(f[name]) == 0 || slices.ContainsFunc(f[name], fits)
}

// Labels reports whether labels have all that the filter "label" asks for, NAME or NAME=VALUE, and
// nothing that "label!" names.
func (f Filters) Labels(labels map[string]string) bool {
	for _, want := range f["label"] {
		if !hasLabel(labels, want) {
			return false
		}
	}
	return !slices.ContainsFunc(f["label!"], func(s string) bool { return hasLabel(labels, s) })
}

func hasLabel(labels map[string]string, want string) bool {
	name, value, isPair := strings.Cut(want, "=")
	got, ok := labels[name]
	return ok && (!isPair || got == value)
}

// Image reports whether an image with these names matches a filter: a whole name, one without
// registry or tag, or the beginning of its ID.
func Image(want, id string, names ...string) bool {
	bare := strings.TrimPrefix(id, "sha256:")
	if w := strings.TrimPrefix(want, "sha256:"); len(w) >= 4 && strings.HasPrefix(bare, w) {
		return true
	}
	for _, n := range names {
		repository, _ := Repository(n)
		for _, form := range []string{n, repository} {
			if form == want || strings.HasSuffix(form, "/"+want) {
				return true
			}
		}
	}
	return false
}

// Repository takes a full name of an image apart: docker.io/library/redis:7 is docker.io/library/redis
// and 7. A name with a digest has no tag.
func Repository(name string) (repository, tag string) {
	if r, _, ok := strings.Cut(name, "@"); ok {
		return r, ""
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i], name[i+1:]
	}
	return name, ""
}

// Nearest returns the word of known that is most similar to word, "" if none is similar.
func Nearest(word string, known []string) string {
	best, distance := "", 1+len(word)/3 // one difference in three letters
	if len(word) < 2 {
		return ""
	}
	for _, k := range known {
		d := editDistance(word, k)
		if len(word) >= 3 && strings.HasPrefix(k, word) {
			d = 1 // word is a prefix
		}
		if d < distance || d == distance && best == "" {
			best, distance = k, d
		}
	}
	return best
}

// editDistance returns the least number of insertions, deletions, substitutions and exchanges of neighbours that turn a
// into b.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
