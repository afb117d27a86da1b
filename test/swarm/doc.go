// Package swarm tests the whole node as a worker of a Swarm, by a manager of the tests'
// own: what no real manager lets a test look at.
package swarm
