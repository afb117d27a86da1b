package dockerhttp

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// Filters limit a list: for each key, one of the values must match. The boolean of a value does not matter, as in dockerd.
type Filters map[string]map[string]bool

// maxFilters is the size of filters, in bytes.
const maxFilters = 64 << 10

// ParseFilters reads a query's filters, in the present form, {"key": {"value": true}}, or in the older one, {"key": ["value"]}.
// Unknown keys are InvalidArgument.
func ParseFilters(text string, known ...string) (Filters, error) {
	f, err := ParseAnyFilters(text)
	if err != nil {
		return nil, err
	}
	for _, k := range slices.Sorted(maps.Keys(f)) {
		if !slices.Contains(known, k) {
			return nil, invalid.Errorf("invalid filter '%.80s'", k)
		}
	}
	return f, nil
}

// ParseAnyFilters is ParseFilters without a check of the keys, for events: dockerd ignores their unknown filters.
func ParseAnyFilters(text string) (Filters, error) {
	f := Filters{}
	if text == "" {
		return f, nil
	}
	if len(text) > maxFilters {
		return nil, invalid.Errorf("the filters have %d bytes, at most %d", len(text), maxFilters)
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		var lists map[string][]string
		if err := json.Unmarshal([]byte(text), &lists); err != nil {
			return nil, invalid.Errorf("invalid filter")
		}
		f = Filters{}
		for k, values := range lists {
			f[k] = map[string]bool{}
			for _, v := range values {
				f[k][v] = true
			}
		}
	}
	return f, nil
}

// Has reports whether a key has a value.
func (f Filters) Has(key string) bool { return len(f[key]) > 0 }

// Values returns the values of a key, sorted.
func (f Filters) Values(key string) []string { return slices.Sorted(maps.Keys(f[key])) }

// Exact reports whether one of the values of a key is among values; yes if the key has none.
func (f Filters) Exact(key string, values ...string) bool {
	return f.Any(key, func(v string) bool { return slices.Contains(values, v) })
}

// Any reports whether holds is true for one of the values of a key; yes if the key has none.
func (f Filters) Any(key string, holds func(string) bool) bool {
	return !f.Has(key) || slices.ContainsFunc(f.Values(key), holds)
}

// Match reports whether one of the values of a key, regular expressions, matches a part of one of names; yes if the key has none. A
// value that is no regular expression matches the same name only.
func (f Filters) Match(key string, names ...string) bool {
	return f.Any(key, func(v string) bool {
		re, err := regexp.Compile(v)
		return slices.ContainsFunc(names, func(n string) bool { return n == v || err == nil && re.MatchString(n) })
	})
}

// Prefix reports whether value begins with one of the values of a key; yes if the key has none.
func (f Filters) Prefix(key, value string) bool {
	return f.Any(key, func(v string) bool { return strings.HasPrefix(value, v) })
}

// Part reports whether value contains one of the values of a key; yes if the key has none.
func (f Filters) Part(key, value string) bool {
	return f.Any(key, func(v string) bool { return strings.Contains(value, v) })
}

// Labels reports whether labels have all values of the key label and none of label!.
func (f Filters) Labels(labels map[string]string) bool {
	return f.All("label", labels) && !slices.ContainsFunc(f.Values("label!"), func(v string) bool { return labeled(labels, v) })
}

// All reports whether labels have all values of a key.
func (f Filters) All(key string, labels map[string]string) bool {
	return !slices.ContainsFunc(f.Values(key), func(v string) bool { return !labeled(labels, v) })
}

// labeled reports whether labels have NAME or NAME=VALUE.
func labeled(labels map[string]string, text string) bool {
	name, value, exact := strings.Cut(text, "=")
	got, ok := labels[name]
	return ok && (!exact || got == value)
}

// Bool returns the boolean value of a key. set is false if the key has no value. Several values, and others than true, 1, false and 0,
// are InvalidArgument.
func (f Filters) Bool(key string) (value, set bool, err error) {
	values := f.Values(key)
	if len(values) == 0 {
		return false, false, nil
	}
	yes := slices.Contains(values, "true") || slices.Contains(values, "1")
	no := slices.Contains(values, "false") || slices.Contains(values, "0")
	if yes == no || slices.ContainsFunc(values, func(v string) bool { return !slices.Contains([]string{"true", "1", "false", "0"}, v) }) {
		return false, true, invalid.Errorf("invalid filter '%s=%s'", key, values)
	}
	return yes, true, nil
}
