//go:build !weakened && race

package weaken

import "os"

// raceEnv is the environment variable with the race detector's settings.
const raceEnv = "GORACE"

// Environ returns what must be in the environment of a program started with a small one:
// the race detector's settings, so that tests may take away its pause of one second at
// the end of each process.
func Environ() []string {
	if v, ok := os.LookupEnv(raceEnv); ok {
		return []string{raceEnv + "=" + v}
	}
	return nil
}
