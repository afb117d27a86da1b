package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/shortage"
	"github.com/longshore/longshore/internal/subprocess"
)

// Options are the parameters of New.
type Options struct {
	Dir     string   // of the process's socket and log; made when it is missing
	Command []string // runs Main
	Environ []string // the process's environment besides its own settings
	// Started is called with the pid of a new process, which must outlive the agent.
	Started func(ctx context.Context, pid int)
	// Rules returns the present rules between realms; nil opens none.
	Rules func() board.Rules
	// Wanted is called when a handle is wanted; it must not wait, and must not call the client.
	Wanted func()
	Logger *slog.Logger
}

// Client is the agent's side. It starts the process when the first handle is wanted, and another one when that has
// died; handles of a process that has died are dead, too.
type Client struct {
	o Options

	renewing sync.Mutex // serializes Renew

	mu   sync.Mutex // guards conn, sent; one request at a time
	conn *net.UnixConn
	sent board.Rules // the rules at the process at conn
}

// New returns a client that has not connected yet.
func New(o Options) *Client { return &Client{o: o} }

// Want describes a new handle.
type Want struct {
	Container string // it ends with this container's process
	Realm     board.Realm
	Rights    board.Rights
	Identity  map[string]string // labels that nobody else can have set
	Labels    map[string]string
}

// ErrInvalid means that a Want is not valid.
var ErrInvalid = board.ErrInvalid

// Handle returns a new handle, for a program. It ends with the container's process once that is bound; until then,
// when nobody has it any more.
func (c *Client) Handle(ctx context.Context, w Want) (*os.File, error) {
	if c.o.Wanted != nil {
		c.o.Wanted()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.tellLocked(); err != nil {
		c.hangUpLocked() // it has died
	}
	_, f, err := c.askLocked(ctx, request{Op: opHandle, Container: w.Container, Realm: w.Realm, Rights: w.Rights, Identity: w.Identity, Labels: w.Labels}, nil)
	if err == nil && f == nil {
		err = errors.New("board: no handle came")
	}
	return f, err
}

// Bind says which process the container's is. The container's handles end when that does.
func (c *Client) Bind(ctx context.Context, container string, pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return errors.Join(os.NewSyscallError("pidfd_open", err), c.Drop(ctx, container))
	}
	f := os.NewFile(uintptr(fd), "process")
	defer func() { _ = f.Close() }()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reachLocked(ctx) {
		return nil
	}
	_, _, err = c.callLocked(request{Op: opBind, Container: container}, f)
	return err
}

// Drop ends all handles of a container, and the process with the last one. It succeeds when there are none.
func (c *Client) Drop(ctx context.Context, container string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reachLocked(ctx) {
		return nil
	}
	r, _, err := c.callLocked(request{Op: opDrop, Container: container}, nil)
	if err == nil && r.Status.Containers == 0 {
		c.hangUpLocked() // it ends
	}
	return err
}

// Recover binds the containers that an agent before did not come to bind. Pid is a container's process, 0 if it has
// none.
func (c *Client) Recover(ctx context.Context, pid func(container string) int) error {
	for {
		s, ok := c.Status(ctx)
		if !ok || len(s.Unbound) == 0 {
			return nil
		}
		for _, id := range s.Unbound {
			end := c.Drop
			if p := pid(id); p != 0 {
				end = func(ctx context.Context, id string) error { return c.Bind(ctx, id, p) }
			}
			if err := end(ctx, id); err != nil {
				return err
			}
		}
	}
}

// Status returns the state of the process, and whether there is one.
func (c *Client) Status(ctx context.Context) (Status, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.reachLocked(ctx) {
		return Status{}, false
	}
	r, err := c.helloLocked()
	return r.Status, err == nil
}

// Close ends the connection. The process continues if a program has a handle.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hangUpLocked()
}

// Release ends the connection and removes the files, when no program has a handle. The process ends then.
func (c *Client) Release() error {
	c.Close()
	return os.RemoveAll(c.o.Dir)
}

func (c *Client) socket() string { return filepath.Join(c.o.Dir, "socket") }
func (c *Client) log() string    { return filepath.Join(c.o.Dir, "log") }

func (c *Client) hangUpLocked() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// askLocked asks the process, and starts one if there is none. A living process is never replaced, even after errors:
// programs have their handles and servers in it, and another process would not have them.
func (c *Client) askLocked(ctx context.Context, r request, f *os.File) (response, *os.File, error) {
	for range maxDials {
		if c.conn == nil {
			switch err := c.dialLocked(); {
			case gone(err):
				if err := c.startLocked(ctx); err != nil {
					return response{}, nil, fmt.Errorf("board: %w", err)
				}
			case ended(err):
				continue // the next dial tells whether the process lives
			case err != nil:
				return response{}, nil, fmt.Errorf("board: connect to the process: %w", err)
			}
		}
		resp, got, err := c.callLocked(r, f)
		if !ended(err) {
			return resp, got, err
		}
	}
	return response{}, nil, errors.New("board: the process closes each connection: it may have no descriptor left")
}

// maxDials is how many connections to a process may end before it is given up: that of a process that has died, one that waited while it
// died, and one more.
const maxDials = 3

// gone reports whether an error of a dial means that there is no process.
func gone(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}

// ended reports whether an error means that the process has closed the connection.
func ended(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET)
}

// reachLocked connects to a process that runs, and reports whether there is one that answers.
func (c *Client) reachLocked(context.Context) bool {
	if c.conn != nil {
		return true
	}
	return c.dialLocked() == nil
}

// dialLocked connects, and tells the rules.
func (c *Client) dialLocked() error {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: c.socket(), Net: "unixpacket"})
	if err != nil {
		return err
	}
	c.conn = conn
	_, err = c.helloLocked()
	return err
}

// helloLocked sends the rules.
func (c *Client) helloLocked() (response, error) {
	var rules board.Rules
	if c.o.Rules != nil {
		rules = c.o.Rules()
	}
	r, _, err := c.callLocked(request{Op: opHello, Rules: rules}, nil)
	if err == nil {
		c.sent = rules
	}
	return r, err
}

// tellLocked sends the rules again if they have changed.
func (c *Client) tellLocked() error {
	if c.conn == nil || c.o.Rules == nil || slices.Equal(c.sent, c.o.Rules()) {
		return nil
	}
	_, err := c.helloLocked()
	return err
}

// startLocked starts the process. It listens already when startLocked returns: the socket is made here.
func (c *Client) startLocked(ctx context.Context) error {
	if err := errors.Join(os.RemoveAll(c.o.Dir), os.MkdirAll(c.o.Dir, 0o700)); err != nil {
		return err
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: c.socket(), Net: "unixpacket"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	socket, err := l.File()
	_ = l.Close()
	if err != nil {
		return err
	}
	defer func() { _ = socket.Close() }()
	if _, err := c.launch(ctx, socket, c.log()); err != nil {
		return err
	}
	return c.dialLocked()
}

// launch starts a process with a socket as its descriptor 3. Its output is written to a new file.
func (c *Client) launch(ctx context.Context, socket *os.File, logPath string, args ...string) (*os.Process, error) {
	log, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := subprocess.Daemon(c.o.Command[0], append(slices.Clone(c.o.Command[1:]), args...)...) // it outlives the agent
	cmd.Args[0], cmd.Dir = "longshore-board", "/"
	cmd.Env = append([]string{"GOMAXPROCS=1", "GOMEMLIMIT=64MiB", "GOGC=50"}, c.o.Environ...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{socket}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", c.o.Command[0], err)
	}
	pid := cmd.Process.Pid
	go func() { _ = cmd.Wait() }() // reaps it
	if c.o.Started != nil {
		c.o.Started(ctx, pid)
	}
	return cmd.Process, nil
}

// callTime bounds one request: the process does nothing that takes long.
const callTime = 10 * time.Second

// callLocked asks the process that is connected. After a failure of the connection there is none.
func (c *Client) callLocked(r request, f *os.File) (resp response, got *os.File, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return resp, nil, err
	}
	if len(body) > maxMessage {
		return resp, nil, fmt.Errorf("board: %w: too long", ErrInvalid)
	}
	if resp, got, err = exchange(c.conn, body, f); err != nil {
		if !shortage.Is(err) { // a message that could not be sent or read is all that a shortage costs
			c.hangUpLocked()
		}
		return resp, nil, fmt.Errorf("board: %w", err)
	}
	switch {
	case resp.Error == "":
		return resp, got, nil
	case resp.Invalid:
		return resp, nil, &refusal{resp.Error}
	}
	return resp, nil, errors.New("board: " + resp.Error)
}

// refusal is an answer that something cannot be.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }
func (r *refusal) Unwrap() error { return ErrInvalid }

// exchange sends a message, with a file that it closes then, and returns the answer.
func exchange(conn *net.UnixConn, body []byte, f *os.File) (resp response, got *os.File, err error) {
	if err := conn.SetDeadline(time.Now().Add(callTime)); err != nil {
		return resp, nil, err
	}
	var oob []byte
	if f != nil {
		oob = unix.UnixRights(int(f.Fd()))
	}
	_, _, err = conn.WriteMsgUnix(body, oob, nil)
	if f != nil {
		_ = f.Close()
	}
	if err != nil {
		return resp, nil, err
	}
	b, oob := make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return resp, nil, err
	}
	if n == 0 {
		return resp, nil, io.EOF
	}
	for _, fd := range descriptors(oob[:oobn]) {
		got = os.NewFile(uintptr(fd), "handle")
	}
	if err := json.Unmarshal(b[:n], &resp); err != nil {
		if got != nil {
			_ = got.Close()
		}
		return resp, nil, err
	}
	return resp, got, nil
}
