// Package broker is the board's process, and the agent's client of it.
//
// The process outlives the agent, and needs neither agent nor keeper to broker. It holds one end of each handle and of
// each server's socket, and no connection: it sends both ends of a new one to the programs. Its state is small and
// follows the kernel's: a server or a handle ends when its other end is closed, and a container loses all of its
// handles at the end of its process.
//
// At an upgrade it hands everything over to a process of the next program (yield.go, succeed.go, renew.go).
//
// One goroutine does everything, in the order of epoll's events. Nobody can block it: it sends only where there is
// room, and reads from a handle only when its last answers were taken. Start reading at broker.run.
package broker
