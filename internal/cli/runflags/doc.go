// Package runflags has the flags of the commands run and create, and makes the request to create a container from them. It
// accepts the names and forms of docker's and podman's flags. Start reading at runflags.go.
package runflags
