// Package oci tests longshore-oci as the runtime of Debian's dockerd, containerd and Podman, by the cgroup driver of the machine: files,
// or units of systemd in a guest of hack/vm.sh.
package oci
