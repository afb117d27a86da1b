package names

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/shortage"
)

// Protocol is the number of the protocol between agent and process.
const Protocol = 1

// The operations of a request.
const (
	opHello = "hello" // the answer has Sandboxes, Pid, Unanswered and Refused
	opZone  = "zone"  // Network, Zone; nil removes it
	opPatch = "patch" // Network, Patch
	opAdd   = "add"   // Sandbox, Networks, Upstream, Egress, Again, Wait, and two sockets
	opSet   = "set"   // Sandbox, Networks, Upstream, Egress; the answer has Needs
	opDrop  = "drop"  // Sandbox
	opEnd   = "end"
	// The process answers the questions that it has read, reads no more, and ends. Another process has the same sockets.
	opRetire = "retire"
	// Sandbox; the answer has its two sockets.
	opSockets = "sockets"
	opLimit   = "limit"   // Sandbox, Egress, and three files: see limitLocked
	opReports = "reports" // Sandbox; the answer has the socket of its reports
	opVerify  = "verify"  // Sandbox, and the two files of a splice.Pair. It follows opLimit
)

// request is a message of the agent to the process. Both are of one release or of two that follow
// each other: fields are added, and none changes its meaning.
type request struct {
	Op       string           `json:"op"`
	Network  string           `json:"network,omitempty"`
	Zone     *Zone            `json:"zone,omitempty"`
	Patch    *patch           `json:"patch,omitempty"`
	Sandbox  core.ID          `json:"sandbox,omitempty"`
	Networks []string         `json:"networks,omitempty"`
	Upstream []netip.AddrPort `json:"upstream,omitempty"`
	// Egress is the list of the sandbox. Again says that its rules may have addresses that another process has opened.
	Egress *Restriction `json:"egress,omitempty"`
	Again  bool         `json:"again,omitempty"`
	// Wait makes questions wait for the zones of Networks, which follow.
	Wait bool `json:"wait,omitempty"`
}

type response struct {
	Error string `json:"error,omitempty"`
	// Short says that the process lacked descriptors or memory: the same request can succeed later.
	Short     bool      `json:"short,omitempty"`
	Sandboxes []core.ID `json:"sandboxes,omitempty"`
	Pid       int       `json:"pid,omitempty"`
	// Needs says that opLimit must follow.
	Needs bool `json:"needs,omitempty"`
	// Unanswered counts, by sandbox, the questions and connections that were not answered because of a bound.
	Unanswered map[core.ID]uint64 `json:"unanswered,omitempty"`
	// Refused counts, by sandbox, the names and connections that an egress list has refused.
	Refused map[core.ID]uint64 `json:"refused,omitempty"`
}

// maxMessage bounds a message: a network of ten thousand names is a megabyte.
const maxMessage = 64 << 20

// send sends a message, and descriptors with its first byte.
func send(c *net.UnixConn, v any, files []*os.File) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			// Fd would make the socket a blocking one, also in other processes.
			raw, err := f.SyscallConn()
			if err == nil {
				err = raw.Control(func(fd uintptr) { fds[i] = int(fd) })
			}
			if err != nil {
				return err
			}
		}
		oob = unix.UnixRights(fds...)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	if _, _, err := c.WriteMsgUnix(head, oob, nil); err != nil {
		if shortage.Is(err) { // nothing was sent, and the connection is as before
			err = fmt.Errorf("%w: send a message: %w", errShort, err)
		}
		return err
	}
	_, err = c.Write(body)
	return err
}

// receive receives a message with its descriptors. The error is errShort when the whole message was
// received, but not its descriptors, because this process can open no more.
func receive(c *net.UnixConn, v any) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
			files = nil
		}
	}()
	var head [4]byte
	oob := make([]byte, unix.CmsgSpace(3*4))
	n, oobn, flags, _, err := c.ReadMsgUnix(head[:], oob)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	if files, err = rights(oob[:oobn]); err != nil {
		return files, err
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return files, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > maxMessage {
		return files, fmt.Errorf("a message of %d bytes", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c, body); err != nil {
		return files, err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return files, err
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return files, fmt.Errorf("%w: receive a message's descriptors: %w", errShort, unix.EMFILE)
	}
	return files, nil
}

func rights(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range messages {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "socket"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// errRefused is an error answer of the process.
var errRefused = errors.New("the name server refused")

// errShort means that descriptors or memory are used up for now, in this process or in the name
// server. The connection can be used as before.
var errShort = errors.New("no descriptors or no memory left for now")
