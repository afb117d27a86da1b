// Package swarmkit joins a node to a Swarm of moby/swarmkit's own manager, which runs in
// the test's process, and drives it by the manager's control API. It is a module of its
// own: the manager is a peer, and no part of us depends on it.
package swarmkit
