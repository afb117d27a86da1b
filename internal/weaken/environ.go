//go:build !weakened && !race

package weaken

// Environ returns the variables for a program with a small environment: none, in this build.
func Environ() []string { return nil }
