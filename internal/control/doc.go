// Package control serves the control API (api/longshore/v1) on a unix socket, for the command
// line and for other programs of the node's operator.
//
// Only this package holds the engine's unscoped view. It shows every owner's objects, changes its
// own (owner "cli") freely, and changes those of others only with force. It knows no face, and
// not how images, networks or runtimes are made. Start reading at server.go, then create.go.
package control
