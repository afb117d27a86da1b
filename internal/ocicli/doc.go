// Package ocicli is the native runtime as an OCI command line, `longshore oci` or longshore-oci:
// create, start, state, kill, delete, exec and the other commands that callers of runc expect, so
// that Docker, Podman, containerd and Slurm can use it. It needs neither agent nor keeper: each
// command is a process that does its work and ends, and its lasting state is in a directory per
// container below --root.
//
// It must not know engine, faces or the agent. Start at Main, then create.go.
package ocicli
