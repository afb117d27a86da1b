// Package tour types common command lines of docker, nerdctl and podman, and compares the answers
// with the real podman's where PODMAN= names it (make e2e-cli).
package tour
