// Package program is for programs that Longshore starts with nothing but their grants. It covers the board, where
// servers and clients find each other by labels. !server and !client grant a descriptor; Open makes a Handle of
// it.
//
// The protocol is simple enough to speak it without this package: see docs/guide/grants.md, and wire.go. Nothing here
// opens a path or makes a socket, which such a program may not do.
package program
