// Package control serves the control API (api/longshore/v1) on a unix socket:
// what the command line asks for, and any other program of the node's operator.
//
// It holds the engine's unscoped view, and is the only one that does: it shows
// every owner's objects, changes its own (owner "cli") freely, and those of
// others only when it is told to. It must not know any face, nor how images,
// networks or runtimes are made. Start reading at server.go, then create.go.
package control
