// Package inroot opens the root of a container with the container's mounts, for the copy of files in and out. A running
// container's root is found by its process; that of an ended one is mounted in a mount namespace of its own.
package inroot
