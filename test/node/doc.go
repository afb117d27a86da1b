// Package node holds tests of a whole node over its real sockets: nothing
// leaks, a reboot is told as one, bad input is answered and leaves nothing.
package node
