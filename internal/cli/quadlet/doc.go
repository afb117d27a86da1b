// Package quadlet translates Podman's Quadlet files, which describe containers, volumes and networks, into services of systemd
// that use longshore. Files are its input and units its output; it reads and writes nothing. Start reading at generate.go.
package quadlet
