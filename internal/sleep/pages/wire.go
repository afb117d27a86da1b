package pages

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/uffd"
)

// The messages between an agent and its program are JSON, each in one packet of a socket, some with
// descriptors.

// The steps, which the program reports in this order, and the agent answers.
const (
	StepSeized  = "seized"  // all threads are traced; the agent thaws the cgroup
	StepOpened  = "opened"  // with the descriptors, which the agent stores
	StepCopied  = "copied"  // the files are complete
	StepDropped = "dropped" // the memory is free; the agent freezes the cgroup
	StepDone    = "done"    // sleep: the threads are released. Serve: all pages are restored

	StepServing = "serving" // serve: threads may run
	StepForked  = "forked"  // serve: with the descriptor of a forked process
	StepShort   = "short"   // serve: the memory limit forbids a page that a thread waits for
	StepDamaged = "damaged" // serve: a page cannot be read, and a thread waits for it

	AskEnd   = "end"   // serve: end
	AskAbort = "abort" // sleep: release the threads as they were
)

// Ask is the agent's message.
type Ask struct {
	Step string `json:"step"`
	// Pids are the processes, and Limit is the size of the file in bytes at most, in the first message.
	Pids  []int `json:"pids,omitempty"`
	Limit int64 `json:"limit,omitempty"`
}

// Message is the program's message.
type Message struct {
	Step    string `json:"step"`
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"` // Error is a property of the container
	Full    bool   `json:"full,omitempty"`    // Error is a full disk, or the limit of the file
	Report  Report `json:"report,omitzero"`
	Spaces  int    `json:"spaces,omitempty"` // descriptors, in all messages with StepOpened
	Faults  uint64 `json:"faults,omitempty"`
	Pages   uint64 `json:"pages,omitempty"` // supplied
	// Touched are the pages that threads waited for, or will use first, with StepDone.
	Touched []Touch `json:"touched,omitempty"`
}

// Report is about the memory of a sleeping container.
type Report struct {
	Processes int        `json:"processes"`
	Given     uint64     `json:"given"`  // bytes of freed memory
	Stored    uint64     `json:"stored"` // bytes in the file
	Resident  []Resident `json:"resident,omitempty"`
}

// Resident is memory that a process keeps.
type Resident struct {
	Pid   int    `json:"pid"`
	Why   string `json:"why"`
	Bytes uint64 `json:"bytes"`
}

// maxPacket bounds a message, and maxFiles its descriptors.
const (
	maxPacket = 1 << 16
	maxFiles  = 64
)

// Conn is a connection between an agent and a program.
type Conn struct{ c *net.UnixConn }

// NewConn takes over a connected socket.
func NewConn(f *os.File) (*Conn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	_ = f.Close()
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("no unix socket"), c.Close())
	}
	return &Conn{u}, nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Send sends a message and descriptors, which the caller keeps.
func (c *Conn) Send(m any, fds ...int) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxPacket || len(fds) > maxFiles {
		return fmt.Errorf("a message of %d bytes and %d descriptors", len(b), len(fds))
	}
	_, _, err = c.c.WriteMsgUnix(b, unix.UnixRights(fds...), nil)
	return err
}

// Receive receives a message and its descriptors, which are the caller's then.
func (c *Conn) Receive(m any) (fds []int, err error) {
	b, oob := make([]byte, maxPacket), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, on, _, _, err := c.c.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:on])
	if err != nil {
		return nil, err
	}
	for _, cm := range messages {
		more, err := unix.ParseUnixRights(&cm)
		if err == nil {
			fds = append(fds, more...)
		}
	}
	if n == 0 {
		return fds, net.ErrClosed
	}
	return fds, json.Unmarshal(b[:n], m)
}

// sendSpaces sends descriptors of spaces, as many as fit into each message.
func (c *Conn) sendSpaces(step string, spaces []uffd.Space) error {
	fds := make([]int, len(spaces))
	for i, s := range spaces {
		fds[i] = int(s)
	}
	for first := 0; first == 0 || first < len(fds); first += maxFiles {
		if err := c.Send(Message{Step: step, Spaces: len(fds)}, fds[first:min(first+maxFiles, len(fds))]...); err != nil {
			return err
		}
	}
	return nil
}
