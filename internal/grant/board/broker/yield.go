package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/weaken"
)

// At an upgrade the process yields to one of the next program, over a socket between them. The process before sends everything that it
// has, and reads nothing from any program meanwhile, so that requests wait in their sockets. The next one commits by one message, after
// which the process before ends. Exactly one of them continues:
//
//   - If the next one dies before its message, the process before continues.
//   - If the message is late, the process before shuts its end of the socket down for reading. The next one's message fails, and it ends.
//     A message that has come just before still counts.
//   - If the process before dies, the next one finds the end of the socket, and continues with the items that came.

// yieldNumber is the number of the format of items. The next process states the number that it reads, and the agent passes that number on.
const yieldNumber = 1

// dies is the mark of test builds that die at a stage of a handover: 1 to 4 in the process before, 5 to 8 in the next one.
const dies = "board-dies"

// item is a message of a process that yields to the next one.
type item struct {
	Kind      itemKind          `json:"kind"`
	Container string            `json:"container,omitempty"`
	Realm     board.Realm       `json:"realm,omitzero"`
	Rights    board.Rights      `json:"rights,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Rules     board.Rules       `json:"rules,omitempty"`
	Made      uint64            `json:"made,omitempty"`  // connections
	Count     int               `json:"count,omitempty"` // of items before the end
}

type itemKind string

const (
	itemSocket    itemKind = "socket"    // at which agents connect; with the rules
	itemContainer itemKind = "container" // with its process, if it is bound
	itemHandle    itemKind = "handle"
	itemServer    itemKind = "server" // those without a connection for the longest time come first
	itemEnd       itemKind = "end"
)

// message is a message of the next process.
type message struct {
	// Reads is the number of the format of items, in the first message, which the agent reads.
	Reads int `json:"reads,omitempty"`
	// Serves says that the next process continues.
	Serves bool `json:"serves,omitempty"`
}

// yieldTime bounds how long programs wait for a process that yields, and yieldStep one message.
const (
	yieldTime = 5 * time.Second
	yieldStep = 2 * time.Second
)

// yield hands everything over to the next process at a socket. This one must end if it returns nil, and continues otherwise.
func (b *broker) yield(next int) error {
	weaken.Die(dies, 1)
	err := bounded(next, yieldStep)
	if err == nil {
		err = b.sendAll(next)
	}
	if err == nil {
		weaken.Die(dies, 3)
		err = awaitServes(next)
	}
	if err != nil {
		_ = unix.Shutdown(next, unix.SHUT_RD)
		if awaitServes(next) == nil { // it came at the last moment
			err = nil
		}
	}
	if err == nil {
		weaken.Die(dies, 4)
		b.ended = true
		return nil
	}
	// The next process takes an end of the socket for this one's death: it stays open as long as the other end.
	if aerr := b.add(next, withdrawn(next), 0); aerr != nil {
		return errors.Join(err, aerr)
	}
	return fmt.Errorf("the next process has not taken over: %w", err)
}

// withdrawn is the socket to a next process that has not taken over.
type withdrawn int

func (w withdrawn) ready(b *broker, events uint32) {
	if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		b.remove(int(w))
	}
}

// bounded makes a socket's calls block, and for a time at most.
func bounded(fd int, most time.Duration) error {
	if err := unix.SetNonblock(fd, false); err != nil {
		return err
	}
	tv := unix.NsecToTimeval(int64(most))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv); err != nil {
		return err
	}
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
}

// sendAll sends all items.
func (b *broker) sendAll(next int) error {
	until, count := time.Now().Add(yieldTime), 0
	put := func(i item, fd int) error {
		if time.Now().After(until) {
			return fmt.Errorf("it takes more than %v", yieldTime)
		}
		count++
		return sendItem(next, i, fd)
	}
	if err := put(item{Kind: itemSocket, Rules: b.rules, Made: b.made}, b.socket); err != nil {
		return err
	}
	for _, c := range b.containers {
		if err := put(item{Kind: itemContainer, Container: c.id}, c.pidfd); err != nil {
			return err
		}
		weaken.Die(dies, 2)
		for h := range c.handles {
			if err := put(describe(itemHandle, c, h.handle), h.fd); err != nil {
				return err
			}
		}
	}
	for _, id := range b.match.Order() {
		s := b.servers[id]
		if err := put(describe(itemServer, s.of, s.handle), s.fd); err != nil {
			return err
		}
	}
	return sendItem(next, item{Kind: itemEnd, Count: count}, -1)
}

func describe(kind itemKind, c *container, h board.Handle) item {
	return item{Kind: kind, Container: c.id, Realm: h.Realm(), Rights: h.Rights(), Labels: h.Labels()}
}

// sendItem sends an item, and a descriptor unless that is -1. It waits for room.
func sendItem(to int, i item, fd int) error {
	body, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if len(body) > maxMessage {
		return fmt.Errorf("an item of %d bytes", len(body))
	}
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	for {
		if err := unix.Sendmsg(to, body, oob, nil, unix.MSG_NOSIGNAL); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// awaitServes waits for the message of the next process that it takes over.
func awaitServes(next int) error {
	buf := make([]byte, 1024)
	n, _, _, err := receive(next, buf, nil)
	if err != nil {
		return err
	}
	if n == 0 {
		return errors.New("it has ended")
	}
	var m message
	if err := json.Unmarshal(buf[:n], &m); err != nil || !m.Serves {
		return fmt.Errorf("it answers %.100q", buf[:n])
	}
	return nil
}

// receive receives a message. It waits for one, for as long as the socket's bound.
func receive(fd int, buf, oob []byte) (n, oobn, flags int, err error) {
	for {
		n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, flags, err
		}
	}
}
