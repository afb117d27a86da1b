package names

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/shortage"
	"github.com/longshore/longshore/internal/subprocess"
	"github.com/longshore/longshore/internal/weaken"
)

// Box is a sandbox with a name server.
type Box struct {
	Sandbox   core.ID
	Namespace string   // path of its network namespace
	Networks  []string // the sandbox sees their names
	// Upstream are the servers for all other questions; none for a sandbox on internal networks
	// only.
	Upstream []netip.AddrPort
}

// Options are the parameters of New.
type Options struct {
	Dir     string   // of the process's socket and log; made when it is missing
	Command []string // runs Main
	// Started is called with the pid of a new process, which must outlive the agent.
	Started func(ctx context.Context, pid int)
	// Health is the interval of health checks of the process, and Patience the timeout of each
	// request to it; 0 is ten seconds each.
	Health, Patience time.Duration
	// Redirect redirects packets of a network namespace to Address's port 53 to these ports.
	Redirect func(namespace *os.File, udp, tcp uint16) error
	// Holder keeps the sockets, so that questions wait for the next agent when process and agent are
	// dead; nil for none.
	Holder core.Holder
	// Unanswered, unless nil, is called after each health check with the number of questions and
	// connections of each sandbox that were dropped because of a bound.
	Unanswered func(map[core.ID]uint64)
	Logger     *slog.Logger
}

// Client is the agent's side of the name server. It starts the process when there is something to
// answer, starts it again when it has died, and ends it when there is nothing more.
type Client struct {
	o Options

	mu    sync.Mutex // guards boxes, zones, kept, held, server, conn, gone, behind, retrying, starting, waits, deaths; one request at a time
	boxes map[core.ID]Box
	// kept has the sockets of each sandbox, UDP and TCP: a process that replaces another gets the
	// same, and answers the questions that arrived meanwhile.
	kept map[core.ID][]*os.File
	held held
	// server is the process, once it has said which one it is.
	server *os.Process
	zones  map[string]Zone
	conn   *net.UnixConn
	gone   bool // Close was called
	// behind says that the process lacks something, because descriptors or memory were used up when it
	// was to be sent.
	behind bool
	// retrying says that a process that could not be started, or that is behind, is tried again.
	retrying bool
	starting bool // a full update follows
	waits    bool // after a start of the agent, sandboxes are sent before zones
	deaths   int  // of processes since one has answered while it served
}

// New returns a client that has not connected yet.
func New(o Options) *Client {
	return &Client{o: o, boxes: map[core.ID]Box{}, zones: map[string]Zone{}, kept: map[core.ID][]*os.File{}}
}

func (c *Client) socket() string { return filepath.Join(c.o.Dir, "socket") }

// Add starts to answer a sandbox.
func (c *Client) Add(ctx context.Context, b Box) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	had := c.conn != nil
	if err := c.connectLocked(ctx); err != nil {
		return fmt.Errorf("name server: %w", err)
	}
	c.boxes[b.Sandbox] = b
	err := c.addLocked(b)
	if err != nil && had && !isIntact(err) { // the process has died, or hangs: its successor gets all
		c.killLocked()
		err = c.connectLocked(ctx)
	}
	if err != nil {
		delete(c.boxes, b.Sandbox)
		c.releaseLocked(b.Sandbox)
		return fmt.Errorf("name server: %w", errors.Join(err, c.unholdLocked(ctx, b.Sandbox)))
	}
	return nil
}

// releaseLocked closes our sockets of a sandbox.
func (c *Client) releaseLocked(id core.ID) {
	closeAll(c.kept[id])
	delete(c.kept, id)
}

// Change changes the networks and upstream servers of a sandbox; its sockets stay. It is Add if the
// sandbox has no name server yet.
func (c *Client) Change(ctx context.Context, b Box) error {
	c.mu.Lock()
	old, ok := c.boxes[b.Sandbox]
	if !ok || c.conn == nil {
		c.mu.Unlock()
		return c.Add(ctx, b)
	}
	defer c.mu.Unlock()
	c.boxes[b.Sandbox] = b
	_, err := c.callLocked(request{Op: opSet, Sandbox: b.Sandbox, Networks: b.Networks, Upstream: b.Upstream}, nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errShort):
		c.behindLocked(err)
		return nil
	case errors.Is(err, errRefused):
		c.boxes[b.Sandbox] = old
		return fmt.Errorf("name server: %w", err)
	}
	c.killLocked() // its successor gets all
	return c.restoreLocked(ctx)
}

// Drop stops to answer a sandbox. Nobody has its sockets any more when Drop returns: they would keep
// the sandbox's network namespace. It succeeds when there is nothing to stop.
func (c *Client) Drop(ctx context.Context, id core.ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.dropLocked(ctx, id), c.unholdLocked(ctx, id))
}

func (c *Client) dropLocked(ctx context.Context, id core.ID) error {
	if _, ok := c.boxes[id]; !ok && c.conn == nil {
		c.releaseLocked(id)
		return nil
	}
	delete(c.boxes, id)
	c.releaseLocked(id)
	if c.conn == nil { // it died: its sockets are closed
		return nil
	}
	_, err := c.callLocked(request{Op: opDrop, Sandbox: id}, nil)
	if err == nil && len(c.boxes) == 0 {
		return c.endLocked()
	}
	switch {
	case errors.Is(err, errShort): // the caller repeats it, or the next round does
		c.behindLocked(err)
	case err != nil && !errors.Is(err, errRefused):
		c.killLocked()
		return c.restoreLocked(ctx)
	}
	return err
}

// Recover answers these sandboxes and no others, after a start of the agent. A process from an
// earlier agent continues, with its names.
func (c *Client) Recover(ctx context.Context, live []Box) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.boxes)
	for _, b := range live {
		c.boxes[b.Sandbox] = b
	}
	for id := range c.kept {
		if c.boxes[id].Sandbox == "" {
			c.releaseLocked(id)
		}
	}
	c.sweepLocked(ctx)
	if len(live) == 0 {
		if err := c.dialLocked(); err != nil {
			return c.tidy() // there is none
		}
		return c.endLocked()
	}
	c.waits = true
	defer func() { c.waits = false }()
	return c.restoreLocked(ctx)
}

// endLocked ends a process that has nothing more to answer.
func (c *Client) endLocked() error {
	if _, err := c.callLocked(request{Op: opEnd}, nil); err != nil {
		c.killLocked()
	}
	c.hangUpLocked()
	return c.tidy()
}

// Close ends the connection. The process continues.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	c.hangUpLocked()
	for id := range c.kept {
		c.releaseLocked(id)
	}
}

// tidy removes the files of a process that has ended.
func (c *Client) tidy() error { return os.RemoveAll(c.o.Dir) }

func (c *Client) hangUpLocked() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
	if c.server != nil {
		_ = c.server.Release()
		c.server = nil
	}
}

// killLocked ends a process that has not answered: it would take questions that its successor is
// to answer.
func (c *Client) killLocked() {
	if c.server == nil { // it has not said which one it is
		c.server = c.written()
	}
	if c.server != nil {
		_ = c.server.Kill()
	}
	c.hangUpLocked()
}

const programName = "longshore-names"

func (c *Client) pidFile() string { return filepath.Join(c.o.Dir, "pid") }

// written returns the process that was started last, by this agent or an earlier one; nil when it
// has ended.
func (c *Client) written() *os.Process {
	b, err := os.ReadFile(c.pidFile())
	if err != nil {
		return nil
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil || pid <= 1 {
		return nil
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil
	}
	// The pidfd keeps the pid from naming another process after this check.
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || !strings.HasPrefix(string(line), programName+"\x00") {
		_ = p.Release()
		return nil
	}
	return p
}

// restoreLocked has a process again, if it is needed. When there can be none now, it is tried again
// until there is.
func (c *Client) restoreLocked(ctx context.Context) error {
	if len(c.boxes) == 0 || c.gone {
		return nil
	}
	err := c.connectLocked(ctx)
	if err != nil {
		c.retryLocked()
	}
	return err
}

func (c *Client) retryLocked() {
	if !c.retrying {
		c.retrying = true
		go c.retry()
	}
}

func (c *Client) retry() {
	t := time.NewTicker(min(cmp.Or(c.o.Health, healthTime), shortTime))
	defer t.Stop()
	for range t.C {
		if c.retried() {
			return
		}
	}
}

// retried reports whether there is a process that knows everything, or none is needed.
func (c *Client) retried() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.gone:
	case c.conn != nil && c.behind:
		if !c.catchUpLocked() {
			return false
		}
	case c.conn == nil && len(c.boxes) > 0:
		if c.connectLocked(context.Background()) != nil || c.behind {
			return false
		}
		c.o.Logger.Info("the name server of sandboxes runs again")
	}
	c.retrying = false
	return true
}

// connectLocked connects to the process, starts one if there is none, and sends it the state that
// it lacks.
func (c *Client) connectLocked(ctx context.Context) error {
	if c.conn != nil {
		return nil
	}
	if c.gone {
		return fmt.Errorf("the agent ends: %w", errdefs.ErrUnavailable)
	}
	err := c.dialLocked()
	if shortage.Is(err) {
		return err // the process may exist
	}
	if err == nil {
		err := c.tellLocked(false)
		if errors.Is(err, errShort) {
			c.behindLocked(err)
			err = nil
		}
		if err == nil {
			c.watch(c.conn)
			return nil
		}
		if errors.Is(err, errRefused) {
			c.hangUpLocked()
			return err
		}
		c.killLocked() // it was about to end, or hangs
	}
	for range startTries { // it may die again before it knows everything
		c.starting = true // it may take longer to answer
		if err = c.startLocked(ctx); err == nil {
			err = c.tellLocked(true)
		}
		c.starting = false
		if errors.Is(err, errShort) && c.conn != nil {
			c.behindLocked(err)
			err = nil
		}
		if err == nil {
			c.watch(c.conn)
			return nil
		}
		c.killLocked()
		if !isCut(err) {
			break
		}
	}
	return err
}

const startTries = 3

// isCut reports whether err means that the process has gone while it was spoken to.
func isCut(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET)
}

func (c *Client) dialLocked() error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.socket(), Net: "unix"})
	if err != nil {
		return err
	}
	c.conn = conn
	return nil
}

// startLocked starts the process. It listens already when startLocked returns: the socket is made
// here.
func (c *Client) startLocked(ctx context.Context) error {
	if err := errors.Join(c.tidy(), os.MkdirAll(c.o.Dir, 0o700)); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.socket(), Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	defer func() { _ = l.Close() }()
	f, err := l.File()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	log, err := os.OpenFile(filepath.Join(c.o.Dir, "log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := subprocess.Daemon(c.o.Command[0], c.o.Command[1:]...) // it outlives the agent
	cmd.Args[0] = programName
	cmd.Env, cmd.Dir = append([]string{"GOMAXPROCS=2", "GOMEMLIMIT=64MiB", "GOGC=50"}, weaken.Environ()...), "/"
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = log, log, []*os.File{f}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", c.o.Command[0], err)
	}
	pid := cmd.Process.Pid
	if err := atomicfile.Replace(c.pidFile(), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		c.o.Logger.Warn("could not write down which process is the name server of sandboxes: an agent that starts while it hangs cannot end it", "error", err.Error())
	}
	go func() {
		if err := cmd.Wait(); err != nil {
			c.o.Logger.Info("a name server of sandboxes has ended", "pid", pid, "how", err.Error())
		}
	}()
	if c.o.Started != nil {
		c.o.Started(ctx, pid)
	}
	return c.dialLocked()
}

// tellLocked sends sandboxes and zones to a process. Zones from an earlier agent stay until they
// are set again, because the engine reads its records a moment later.
func (c *Client) tellLocked(fresh bool) error {
	hello, err := c.callLocked(request{Op: opHello}, nil)
	if err != nil {
		return err
	}
	if hello.Pid > 0 { // it has just answered: nobody else has this pid
		c.server, _ = os.FindProcess(hello.Pid)
	}
	has := map[core.ID]bool{}
	for _, id := range hello.Sandboxes {
		if has[id] = true; c.boxes[id].Sandbox == "" {
			if _, err := c.callLocked(request{Op: opDrop, Sandbox: id}, nil); err != nil {
				return err
			}
		}
	}
	for network, z := range c.zones {
		if _, err := c.callLocked(request{Op: opZone, Network: network, Zone: &z}, nil); err != nil {
			return err
		}
	}
	for id, b := range c.boxes {
		if has[id] && !fresh {
			if err := c.keepLocked(id); err != nil {
				return err
			}
			if _, err := c.callLocked(request{Op: opSet, Sandbox: id, Networks: b.Networks, Upstream: b.Upstream}, nil); err != nil {
				return err
			}
			continue
		}
		if err := c.addLocked(b); errors.Is(err, errShort) || shortage.Is(err) {
			c.behindLocked(err)
		} else if err != nil {
			// A sandbox without its namespace must not delay the others.
			if c.o.Logger.Warn("a sandbox has no name server", "sandbox", string(id), "error", err.Error()); !errors.Is(err, errNamespace) && !errors.Is(err, errRefused) {
				return err
			}
		}
	}
	return nil
}

// callTime bounds one request: the process does nothing that takes long.
const callTime = 10 * time.Second

// helloTime is how long a process of an earlier agent may take to answer. The agent recovers meanwhile,
// and after five seconds other nodes of its networks take it for dead.
const helloTime = 2 * time.Second

func (c *Client) callLocked(req request, files []*os.File) (response, error) {
	resp, extra, err := c.exchangeLocked(req, files)
	closeAll(extra)
	return resp, err
}

// exchangeLocked sends a request and returns the answer, with its descriptors.
func (c *Client) exchangeLocked(req request, files []*os.File) (resp response, got []*os.File, err error) {
	patience := cmp.Or(c.o.Patience, callTime)
	switch {
	case c.starting:
		patience = max(patience, callTime)
	case c.waits && req.Op == opHello:
		patience = min(patience, helloTime)
	}
	if err := c.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return resp, nil, err
	}
	if err := send(c.conn, req, files); err != nil {
		return resp, nil, err
	}
	got, err = receive(c.conn, &resp)
	switch {
	case err == nil && resp.Short:
		err = shortError(resp.Error)
	case err == nil && resp.Error != "":
		err = fmt.Errorf("%w: %s", errRefused, resp.Error)
	}
	return resp, got, err
}

// watch waits on a connection of its own for the end of the process behind conn, and has another
// one then.
func (c *Client) watch(conn *net.UnixConn) {
	gone := make(chan struct{})
	go c.probe(conn, gone)
	go func() {
		// When it cannot be connected to, it has gone already.
		if w, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.socket(), Net: "unix"}); err == nil {
			var b [1]byte
			_, _ = w.Read(b[:])
			_ = w.Close()
		}
		close(gone)
		c.died(conn)
	}()
}

// manyDeaths is how many processes may die without having answered once while they served, before
// the next one is started later.
const manyDeaths = 5

// died starts another process in place of the one behind conn.
func (c *Client) died(conn *net.UnixConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != conn {
		return // it was ended, or somebody has noticed already
	}
	c.hangUpLocked()
	c.o.Logger.Warn("the name server of sandboxes has died; starting another one")
	if c.deaths++; c.deaths > manyDeaths {
		c.retryLocked()
		return
	}
	if err := c.restoreLocked(context.Background()); err != nil {
		c.o.Logger.Error("could not start the name server of sandboxes again; it is tried again and again", "error", err.Error())
	}
}
