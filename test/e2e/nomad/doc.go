// Package nomad drives a real Nomad, which drives the agent's real binary as its
// task driver: test files only. NOMAD names Nomad's binary; without it nothing
// runs.
package nomad
