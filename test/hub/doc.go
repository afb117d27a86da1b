// Package hub tests longshore-hub as a program, with whole nodes of ours as its workers.
package hub
