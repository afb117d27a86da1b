package trust

import (
	"errors"
	"path"
	"strings"

	"github.com/longshore/longshore/internal/image/hostname"
)

// anyParts matches any number of parts of a name, also none.
const anyParts = "**"

func checkPattern(pattern string) error {
	if pattern == "" || strings.ContainsAny(pattern, " @") {
		return errors.New("it is not a pattern of a registry and a repository")
	}
	for i, part := range strings.Split(pattern, "/") {
		if part == "" {
			return errors.New("it has an empty part")
		}
		if _, err := path.Match(part, ""); err != nil {
			return err
		}
		if i > 0 && strings.Contains(part, ":") {
			return errors.New("tags are not matched, only repositories")
		}
		if part != anyParts && strings.Contains(part, anyParts) {
			return errors.New("** must be a part of its own")
		}
	}
	return nil
}

// matches reports whether a pattern matches a repository's full name. A registry is matched under
// each of its names.
func matches(pattern, name string) bool {
	registry, rest, _ := strings.Cut(pattern, "/")
	if registry == anyParts {
		return matchParts(strings.Split(pattern, "/"), strings.Split(name, "/"))
	}
	host, repository, _ := strings.Cut(name, "/")
	return hostname.Matcher(registry, func(pattern, text string) bool {
		ok, err := path.Match(pattern, text)
		return ok && err == nil
	})(host) && matchParts(parts(rest), parts(repository))
}

func parts(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, "/")
}

func matchParts(pattern, name []string) bool {
	if len(pattern) == 0 {
		return len(name) == 0
	}
	if pattern[0] == anyParts {
		return matchParts(pattern[1:], name) || len(name) > 0 && matchParts(pattern, name[1:])
	}
	if len(name) == 0 {
		return false
	}
	ok, err := path.Match(pattern[0], name[0])
	return ok && err == nil && matchParts(pattern[1:], name[1:])
}
