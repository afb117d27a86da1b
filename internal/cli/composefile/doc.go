// Package composefile has the objects that Compose files declare, as requests of the control API, and reads files by
// longshore-compose. That is a program of its own, because the libraries that read the files would cost time and memory at
// each start of longshore. Package read is that program.
//
// Start at Load.
package composefile
