// Package audit tests the audit trail of a running node: the lines of all faces, and that none is missing after the agent was
// killed.
package audit
