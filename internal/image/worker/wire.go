package worker

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/trust"
)

// MaxMessage bounds one message between agent and worker, in bytes: an image
// of 500 layers needs some 200 KiB.
const MaxMessage = 4 << 20

// Message is a message between agent and worker over a socket: four bytes of length, then JSON. Job
// is the number of its job; exactly one other field is set.
type Message struct {
	Job      uint64             `json:"job,omitempty"`
	Hello    *Hello             `json:"hello,omitempty"`
	Pull     *PullJob           `json:"pull,omitempty"`
	Push     *PushJob           `json:"push,omitempty"`
	Import   bool               `json:"import,omitempty"` // the archive's descriptor is sent with the message
	Cancel   bool               `json:"cancel,omitempty"`
	Ask      *Ask               `json:"ask,omitempty"`
	Answer   *Answer            `json:"answer,omitempty"`
	Progress *core.PullProgress `json:"progress,omitempty"`
	Done     *Done              `json:"done,omitempty"`
}

// Hello is the first message of each side: the agent sends the settings, the worker how it is
// confined.
type Hello struct {
	Root        string   `json:"root,omitempty"`
	Settings    Settings `json:"settings"`
	Confinement string   `json:"confinement,omitempty"`
}

// Ask is a call of Agent.Lease, or of Agent.Admit when it has a claim; an Answer returns the
// result.
type Ask struct {
	Seq    uint64          `json:"seq"`
	Blobs  []digest.Digest `json:"blobs,omitempty"`
	Chains []digest.Digest `json:"chains,omitempty"`
	Claim  *trust.Claim    `json:"claim,omitempty"`
}

// Answer answers the Ask of the same Seq.
type Answer struct {
	Seq    uint64                  `json:"seq"`
	Places map[digest.Digest]Place `json:"places,omitempty"`
	Err    *WireError              `json:"err,omitempty"`
}

// Done ends a job.
type Done struct {
	Images []Image    `json:"images,omitempty"`
	Err    *WireError `json:"err,omitempty"`
}

// WireError is an error with its class.
type WireError struct {
	Class string `json:"class"`
	Text  string `json:"text"`
}

// classes returns the classes that an error may have.
func classes() []error {
	return []error{
		context.Canceled, context.DeadlineExceeded, errdefs.ErrInvalidArgument, errdefs.ErrNotFound,
		errdefs.ErrAlreadyExists, errdefs.ErrPermissionDenied, errdefs.ErrResourceExhausted,
		errdefs.ErrFailedPrecondition, errdefs.ErrAborted, errdefs.ErrOutOfRange, errdefs.ErrNotImplemented,
		errdefs.ErrInternal, errdefs.ErrUnavailable, errdefs.ErrDataLoss, errdefs.ErrUnauthenticated,
	}
}

// ToWire encodes an error; nil stays nil.
func ToWire(err error) *WireError {
	if err == nil {
		return nil
	}
	w := &WireError{Text: err.Error()}
	for _, c := range classes() {
		if errors.Is(err, c) {
			w.Class = c.Error()
			break
		}
	}
	return w
}

// Unpack decodes the error.
func (w *WireError) Unpack() error {
	if w == nil {
		return nil
	}
	e := &remoteError{text: w.Text, class: errdefs.ErrUnknown}
	for _, c := range classes() {
		if c.Error() == w.Class {
			e.class = c
		}
	}
	return e
}

type remoteError struct {
	text  string
	class error
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.class }

// Conn carries messages. Send may be called concurrently, Receive only by one goroutine.
type Conn struct {
	c  *net.UnixConn
	mu sync.Mutex // serializes Send: one message at a time
}

// NewConn takes over a socket.
func NewConn(f *os.File) (*Conn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%s is not a unix socket: %w", f.Name(), errdefs.ErrInvalidArgument)
	}
	return &Conn{c: uc}, nil
}

// Send writes m, and file's descriptor with it when file is not nil.
func (c *Conn) Send(m Message, file *os.File) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > MaxMessage {
		return fmt.Errorf("message of %d bytes: %w", len(body), errdefs.ErrResourceExhausted)
	}
	frame := make([]byte, 4, 4+len(body))
	binary.BigEndian.PutUint32(frame, uint32(len(body)))
	frame = append(frame, body...)
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, _, err := c.c.WriteMsgUnix(frame, rights, nil)
	if err == nil && n < len(frame) {
		_, err = c.c.Write(frame[n:])
	}
	return err
}

// Receive reads the next message, and the file that came with it or nil.
func (c *Conn) Receive() (m Message, file *os.File, err error) {
	head, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	n, oobn, flags, _, err := c.c.ReadMsgUnix(head, oob)
	if err != nil {
		return m, nil, err
	}
	if n == 0 {
		return m, nil, io.EOF
	}
	if flags&unix.MSG_CTRUNC != 0 {
		return m, nil, fmt.Errorf("receive a message's file: %w", unix.EMFILE)
	}
	if oobn > 0 {
		if file, err = received(oob[:oobn]); err != nil {
			return m, nil, err
		}
	}
	defer func() {
		if err != nil && file != nil {
			_ = file.Close()
		}
	}()
	if _, err := io.ReadFull(c.c, head[n:]); err != nil {
		return m, file, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > MaxMessage {
		return m, file, fmt.Errorf("message of %d bytes: %w", size, errdefs.ErrInvalidArgument)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.c, body); err != nil {
		return m, file, err
	}
	return m, file, json.Unmarshal(body, &m)
}

func received(oob []byte) (*os.File, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) == 0 {
		return nil, err
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) == 0 {
		return nil, err
	}
	// So that closing it ends a read that is in progress.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_ = unix.Close(fds[0])
		return nil, err
	}
	return os.NewFile(uintptr(fds[0]), "received"), nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }
