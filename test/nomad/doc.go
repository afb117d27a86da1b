// Package nomad drives the agent's real binary, as plugin and as agent, by the
// contract of Nomad's task drivers: test files only. Nomad itself is not needed.
package nomad
