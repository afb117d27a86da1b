// Package mesos drives the agent's real binary by Mesos' own tools: test files
// only. MESOS_CLI names the Mesos command line, MESOS_EXPORTER mesos_exporter's
// binary; without them nothing runs.
package mesos
