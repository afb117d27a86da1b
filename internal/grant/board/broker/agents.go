package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/shortage"
)

// Protocol is the number of the protocol between agent and process.
const Protocol = 1

// op is the kind of a request.
type op string

const (
	opHello  op = "hello"  // response.Status; the request has the rules
	opHandle op = "handle" // the answer brings the program's end
	opBind   op = "bind"   // with a pidfd
	opDrop   op = "drop"
	opYield  op = "yield" // with a socket to the next process; this one ends after its answer
)

// request is a message of the agent to the process. Both are of one release or of two that follow each other: fields
// are added, and none changes its meaning.
type request struct {
	Op        op                `json:"op"`
	Rules     board.Rules       `json:"rules,omitempty"`
	Container string            `json:"container,omitempty"`
	Realm     board.Realm       `json:"realm,omitzero"`
	Rights    board.Rights      `json:"rights,omitempty"`
	Identity  map[string]string `json:"identity,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Reads     int               `json:"reads,omitempty"` // the number of the items that the next process reads, in opYield
}

type response struct {
	Error   string `json:"error,omitempty"`
	Invalid bool   `json:"invalid,omitempty"` // the request is not valid
	Status  Status `json:"status,omitzero"`
}

// Status is the state of the process.
type Status struct {
	PID         int    `json:"pid"`
	Confinement string `json:"confinement"`
	Containers  int    `json:"containers"`
	Handles     int    `json:"handles"`
	Servers     int    `json:"servers"`
	Connections uint64 `json:"connections"` // that were made so far
	// Unbound are the containers without a process yet.
	Unbound []string `json:"unbound,omitempty"`
}

// maxMessage bounds a message between agent and process.
const maxMessage = 128 << 10

// agent is a connection of an agent.
type agent int

func (a agent) ready(b *broker, _ uint32) {
	fd := int(a)
	n, oobn, flags, _, err := unix.Recvmsg(fd, b.buf, b.oob, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	if err != nil || n == 0 {
		a.close(b)
		return
	}
	came := descriptors(b.oob[:oobn])
	var r request
	var resp response
	other := -1
	if err = json.Unmarshal(b.buf[:n], &r); err == nil && flags&unix.MSG_TRUNC == 0 {
		resp, other, err = b.do(r, came)
	}
	for _, d := range came {
		if d >= 0 {
			_ = unix.Close(d)
		}
	}
	if err != nil {
		resp.Error, resp.Invalid = err.Error(), errors.Is(err, board.ErrInvalid)
	}
	body, err := json.Marshal(resp)
	if err == nil {
		err = send(fd, body, other)
	}
	if other >= 0 && shortage.Is(err) { // the answer has the error; the handle ends with the descriptor
		if body, err = json.Marshal(response{Error: "no descriptor can be sent: " + err.Error()}); err == nil {
			err = send(fd, body, -1)
		}
	}
	if other >= 0 {
		_ = unix.Close(other)
	}
	if err != nil {
		a.close(b)
	}
}

func (a agent) close(b *broker) {
	b.remove(int(a))
	b.agents--
	b.endIfIdle()
}

// do carries out a request. A descriptor that it keeps it replaces by -1.
func (b *broker) do(r request, came []int) (resp response, other int, err error) {
	switch r.Op {
	case opHello:
		b.setRules(r.Rules)
		resp.Status = b.status()
		return resp, -1, nil
	case opHandle:
		h, err := board.NewHandle(r.Realm, r.Rights, r.Identity, r.Labels)
		if err != nil {
			return resp, -1, err
		}
		c := b.container(r.Container)
		other, err = b.newHandle(c, h)
		if err != nil {
			b.left(c)
		}
		return resp, other, err
	case opBind:
		if len(came) != 1 {
			return resp, -1, errors.New("it needs the descriptor of a process")
		}
		c := b.containers[r.Container]
		if c == nil || c.pidfd >= 0 {
			return resp, -1, nil // nothing is left of it, or it is bound
		}
		if err := b.add(came[0], c, unix.EPOLLIN); err != nil {
			return resp, -1, err
		}
		c.pidfd, came[0] = came[0], -1
		return resp, -1, nil
	case opDrop:
		if c := b.containers[r.Container]; c != nil {
			b.revoke(c)
		}
		resp.Status.Containers = len(b.containers)
		return resp, -1, nil
	case opYield:
		if len(came) != 1 {
			return resp, -1, errors.New("it needs a socket to the next process")
		}
		if r.Reads != yieldNumber {
			return resp, -1, fmt.Errorf("the next process reads form %d of what a board hands over, and the present one has form %d: it is replaced when the last program with a handle has ended", r.Reads, yieldNumber)
		}
		next := came[0]
		came[0] = -1
		return resp, -1, b.yield(next)
	}
	return resp, -1, fmt.Errorf("unknown operation %q", r.Op)
}

// container returns the container of that name. After the end of its process, the name means
// another one.
func (b *broker) container(id string) *container {
	if c := b.containers[id]; c != nil {
		if c.pidfd < 0 || !readable(c.pidfd) {
			return c
		}
		b.revoke(c)
	}
	c := &container{id: id, pidfd: -1, handles: map[*handle]bool{}, servers: map[*server]bool{}}
	b.containers[id] = c
	return c
}

func readable(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 1
}

func (b *broker) status() Status {
	s := Status{PID: os.Getpid(), Confinement: b.confinement, Containers: len(b.containers), Servers: len(b.servers), Connections: b.made}
	for id, c := range b.containers {
		s.Handles += len(c.handles)
		if c.pidfd < 0 {
			s.Unbound = append(s.Unbound, id)
		}
	}
	slices.Sort(s.Unbound)
	if len(s.Unbound) > maxUnbound {
		s.Unbound = s.Unbound[:maxUnbound]
	}
	return s
}

// maxUnbound is how many names fit into an answer. An agent that has handled those gets others.
const maxUnbound = 256

// descriptors are those that came with a message.
func descriptors(oob []byte) (all []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err == nil {
			all = append(all, fds...)
		}
	}
	return all
}
