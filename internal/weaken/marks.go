//go:build !weakened

package weaken

// Mark returns the number of a format: n, in this build.
func Mark(_ string, n int) int { return n }

// Die returns, in this build.
func Die(string, int) {}
