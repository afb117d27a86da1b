// Package read is the whole of longshore-compose: it reads Compose files as the objects that the control API creates.
// compose-go reads, merges and validates the files. This package translates the result, and refuses impossible settings by
// their names and lines. It is the only package of the command line that knows compose-go's types.
//
// It does not talk to the agent. Start at Load.
package read
