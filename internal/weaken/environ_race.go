//go:build !weakened && race

package weaken

import "os"

// raceEnv is the environment variable with the race detector's settings.
const raceEnv = "GORACE"

// Environ returns the variables for a program with a small environment: the race detector's
// settings, so that tests may remove its pause of one second at the end of each process.
func Environ() []string {
	if v, ok := os.LookupEnv(raceEnv); ok {
		return []string{raceEnv + "=" + v}
	}
	return nil
}
