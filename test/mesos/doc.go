// Package mesos drives the real agent by the Mesos v1 agent operator API, as
// curl would: JSON over the face's socket. It knows the agent by that only.
package mesos
