// Package checkpoint tests checkpoints and restores of containers on a whole node, by the CRIU that the environment variable CRIU
// names.
package checkpoint
