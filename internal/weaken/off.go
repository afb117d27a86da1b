//go:build !weakened

package weaken

// Off reports whether the defence is switched off: never, in this build.
func Off(Defence) bool { return false }
