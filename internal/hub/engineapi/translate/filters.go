package translate

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// Filters limit a list: for each key, one of the values must match.
type Filters map[string][]string

// maxFilters is the size of filters, in bytes.
const maxFilters = 64 << 10

// ReadFilters reads a query's filters, in the form of now, {"key": {"value": true}}, or in the one before,
// {"key": ["value"]}. Keys that are none of those known are refused.
func ReadFilters(text string, known ...string) (Filters, error) {
	f := Filters{}
	if text == "" {
		return f, nil
	}
	if len(text) > maxFilters {
		return nil, invalid.Errorf("the filters have %d bytes, at most %d", len(text), maxFilters)
	}
	var now map[string]map[string]bool
	if err := json.Unmarshal([]byte(text), &now); err == nil {
		for k, values := range now {
			for v, on := range values {
				if on {
					f[k] = append(f[k], v)
				}
			}
			slices.Sort(f[k])
		}
	} else if err := json.Unmarshal([]byte(text), (*map[string][]string)(&f)); err != nil || f == nil {
		return nil, invalid.Errorf("invalid filter: %.200q", text)
	}
	for k := range f {
		if !slices.Contains(known, k) {
			return nil, invalid.Errorf("invalid filter %.80q", k)
		}
	}
	return f, nil
}

// Exact reports whether one of the values of a key is this one; yes when there are none.
func (f Filters) Exact(key string, values ...string) bool {
	return f.any(key, func(v string) bool { return slices.Contains(values, v) })
}

// Prefix reports whether something begins with one of the values of a key.
func (f Filters) Prefix(key, value string) bool {
	return f.any(key, func(v string) bool { return strings.HasPrefix(value, v) })
}

// Part reports whether something contains one of the values of a key.
func (f Filters) Part(key, value string) bool {
	return f.any(key, func(v string) bool { return strings.Contains(value, v) })
}

// Labels reports whether all of the values of a key, NAME or NAME=VALUE, are among labels.
func (f Filters) Labels(key string, labels map[string]string) bool {
	for _, v := range f[key] {
		name, value, exact := strings.Cut(v, "=")
		if has, ok := labels[name]; !ok || exact && has != value {
			return false
		}
	}
	return true
}

func (f Filters) any(key string, holds func(string) bool) bool {
	return len(f[key]) == 0 || slices.ContainsFunc(f[key], holds)
}
