package policy

import (
	"errors"
	"path"
	"strings"
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

// matches reports whether a pattern matches a repository's full name.
func matches(pattern, name string) bool {
	return matchParts(strings.Split(pattern, "/"), strings.Split(name, "/"))
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
