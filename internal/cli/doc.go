// Package cli is the command line: one file per command, each a translation of
// flags into one call of the control API and of its answer into a table, JSON or
// a joined terminal.
//
// It must not know the engine or its parts: what a command can do, any client of
// api/longshore/v1 can do. The agent itself is handed in by main. Start reading
// at cli.go, then run.go.
package cli
