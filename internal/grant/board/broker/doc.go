// Package broker is the board's process, and the agent's client of it.
//
// The process outlives the agent, and needs neither agent nor keeper to broker. It holds one end of each handle and of
// each server's socket, and no connection: of one that it makes it sends both ends away. Its state is small, and what
// becomes of it is decided by the kernel: a server or a handle whose other end is closed is gone, a container whose
// process has ended loses all of its handles.
//
// One goroutine does everything, in the order in which epoll tells. Nobody can keep it waiting: it sends only where there is
// room, and reads from a handle only when its last answers were taken. Start reading at broker.run.
package broker
