//go:build !weakened && !race

package weaken

// Environ returns what must be in the environment of a program started with a small one:
// nothing, in this build.
func Environ() []string { return nil }
