// Package ui serves the web page of a node: the built files of web/, which are embedded, and the data that they show.
//
// It has no access to the engine. Everything comes from the control API, as a client of it, so the same handler works in the agent
// and in a process of its own (`longshore ui`), with the rights of the socket that it is connected to. Start reading at
// Server.ServeHTTP; feed.go has the live data, actions.go the calls that change something.
package ui

import (
	"embed"
	"io/fs"
)

//go:embed dist
var dist embed.FS

// assets are the built files.
func assets() fs.FS {
	sub, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // the name is valid
	}
	return sub
}
