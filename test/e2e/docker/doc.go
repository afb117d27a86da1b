// Package docker runs test suites that others wrote for dockerd against a node with the Docker
// face: test files only. Each suite is named by an environment variable, and is skipped without it.
// The tables in testdata have a line for each test that fails or is left out, with the reason.
// Start at rig_root_test.go.
package docker
