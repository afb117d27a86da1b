//go:build !weakened

package weaken

// Off reports whether the defence is switched off: never, in this build.
func Off(Defence) bool { return false }

// Environ is what a program started with a small environment has to be given:
// nothing, in this build.
func Environ() []string { return nil }
