// Package traces tests the spans that a running node exports.
package traces
