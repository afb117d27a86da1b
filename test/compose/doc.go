// Package compose runs Compose files on the real command line and the real agent: up, changes, scale and down, with the
// orders, conditions, profiles, overrides and variables that their users rely on. Each case is a script in testdata.
package compose
