// Package foreign has the commands and flags of docker's and podman's command lines that Longshore does not have. Each has
// the reason, with the replacement if there is one. Start reading at flags.go.
package foreign
