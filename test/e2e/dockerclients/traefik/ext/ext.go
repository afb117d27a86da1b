// Package ext stands in for Traefik's own module of this name, which the module proxy does not have.
package ext

// HTTP has no extensions.
type HTTP struct{}

// Router has no extensions.
type Router struct{}
