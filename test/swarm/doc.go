// Package swarm tests the whole node as a worker of a Swarm, by a manager of the tests' own, for
// facts that no real manager shows to a test.
package swarm
