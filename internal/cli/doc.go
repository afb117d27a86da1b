// Package cli is the command line, one file per command. Each command translates flags into a
// call of the control API, and the answer into a table, JSON or an attached terminal.
//
// It knows neither the engine nor its parts: any client of api/longshore/v1 can do the same. main
// passes the agent in. Start reading at cli.go, then run.go.
package cli
