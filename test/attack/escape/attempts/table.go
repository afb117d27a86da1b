//go:build amd64

package main

import (
	"slices"
)

// all returns every attempt, in order.
func all() []attempt {
	return slices.Concat(paths(), parents(), links(), rights(), files(), sockets(), processes(), namespaces(), mounts(), kernel(), shared(), self())
}

// of gives attempts their class.
func of(class string, list map[string]func(*world) error) (out []attempt) {
	for name, try := range list {
		out = append(out, attempt{class, name, try})
	}
	slices.SortFunc(out, func(a, b attempt) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return out
}
