//go:build !weakened

package weaken

// Off reports whether the defence is switched off: never, in this build.
func Off(Defence) bool { return false }

// Environ returns what must be in the environment of a program started with a small one:
// nothing, in this build.
func Environ() []string { return nil }
