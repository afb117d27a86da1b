// Package swarm joins a node to a Swarm of a real manager, Debian's dockerd, and drives
// it by docker's own command line. It needs the unpacked package: see README.md.
package swarm
