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
	"strconv"
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
	// Egress is its egress list, nil for none. The rules of the namespace have the same list.
	Egress *Restriction
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
	// Verify redirects the connections of a namespace that egress.VerifySNI is about to these ports of SpliceAddresses.
	Verify func(namespace *os.File, list []string, ports [2]uint16) error
	// Holder keeps the sockets, so that questions wait for the next agent when process and agent are
	// dead; nil for none.
	Holder core.Holder
	// Journals is the directory of the egress logs of sandboxes with a list.
	Journals string
	// Unanswered, unless nil, is called after each health check with the number of questions and
	// connections of each sandbox that were dropped because of a bound.
	Unanswered func(map[core.ID]uint64)
	// Refused, unless nil, is called after each health check with the number of names and connections of each sandbox that its
	// egress list has refused.
	Refused func(map[core.ID]uint64)
	Logger  *slog.Logger
}

// Client is the agent's side of the name server. It starts the process when there is something to
// answer, starts it again when it has died, and ends it when there is nothing more.
type Client struct {
	o   Options
	dir directory

	mu    sync.Mutex // guards boxes, zones, kept, reports, held, state, deaths; one request at a time
	boxes map[core.ID]Box
	// kept has the sockets of each sandbox, UDP and TCP: a process that replaces another gets the
	// same, and answers the questions that arrived meanwhile.
	kept map[core.ID][]*os.File
	// reports has the socket of the reports of each sandbox with an egress list.
	reports map[core.ID]*os.File
	held    holderRecord
	zones   map[string]Zone
	state   *state
	deaths  int // of processes since one has answered while it served
}

// New returns a client that has not connected yet.
func New(o Options) *Client {
	return &Client{o: o, dir: directory(o.Dir), boxes: map[core.ID]Box{}, zones: map[string]Zone{}, kept: map[core.ID][]*os.File{}, reports: map[core.ID]*os.File{}, state: &state{}}
}

// Add starts to answer a sandbox.
func (c *Client) Add(ctx context.Context, b Box) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.connectLocked(ctx, false); err != nil {
		return fmt.Errorf("name server: %w", err)
	}
	c.boxes[b.Sandbox] = b
	err := c.addLocked(b, false)
	if err != nil && !isIntact(err) { // the process has died, or hangs: its successor gets all
		c.killLocked()
		err = c.connectLocked(ctx, false)
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
	if f := c.reports[id]; f != nil {
		_ = f.Close()
		delete(c.reports, id)
	}
}

// Change changes the networks and upstream servers of a sandbox; its sockets stay. It is Add if the
// sandbox has no name server yet.
func (c *Client) Change(ctx context.Context, b Box) error {
	c.mu.Lock()
	old, ok := c.boxes[b.Sandbox]
	if !ok || !c.state.phase.serves() {
		c.mu.Unlock()
		return c.Add(ctx, b)
	}
	defer c.mu.Unlock()
	c.boxes[b.Sandbox] = b
	err := setLocked(c, b)
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

// setLocked changes a sandbox of the process. Preconditions: c.mu is held.
func setLocked(c *Client, b Box) error {
	resp, err := c.callLocked(request{Op: opSet, Sandbox: b.Sandbox, Networks: b.Networks, Upstream: b.Upstream, Egress: b.Egress}, nil)
	if f := c.reports[b.Sandbox]; err == nil && b.Egress == nil && f != nil {
		_ = f.Close()
		delete(c.reports, b.Sandbox)
	}
	if err != nil || !resp.Needs {
		return err
	}
	return limitLocked(c, b)
}

// Drop stops to answer a sandbox. Nobody has its sockets any more when Drop returns: they would keep
// the sandbox's network namespace. It succeeds when there is nothing to stop.
func (c *Client) Drop(ctx context.Context, id core.ID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(c.dropLocked(ctx, id), c.unholdLocked(ctx, id))
}

func (c *Client) dropLocked(ctx context.Context, id core.ID) error {
	if _, ok := c.boxes[id]; !ok && !c.state.phase.serves() {
		c.releaseLocked(id)
		return nil
	}
	delete(c.boxes, id)
	c.releaseLocked(id)
	if !c.state.phase.serves() { // it died: its sockets are closed
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
	if err := c.dir.dropNext(); err != nil {
		c.o.Logger.WarnContext(ctx, "could not remove the files of a name server that was about to start", "error", err.Error())
	}
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
	if c.state.phase == phaseClosed {
		return nil
	}
	if len(live) == 0 {
		if err := c.dialLocked(phaseGreeting); err != nil {
			return c.dir.remove() // there is none
		}
		return c.endLocked()
	}
	return c.connectLocked(ctx, true)
}

// endLocked ends a process that has nothing more to answer.
func (c *Client) endLocked() error {
	if _, err := c.callLocked(request{Op: opEnd}, nil); err != nil {
		c.killLocked()
	}
	c.disconnectLocked()
	return c.dir.remove()
}

// Close ends the connection. The process continues.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.enterLocked(phaseClosed)
	for id := range c.kept {
		c.releaseLocked(id)
	}
}

// killLocked ends a process that has not answered: it would take questions that its successor is
// to answer.
func (c *Client) killLocked() {
	if c.state.process == nil { // it has not said which one it is
		c.state.process = c.dir.process()
	}
	if c.state.process != nil {
		_ = c.state.process.Kill()
	}
	c.disconnectLocked()
}

// restoreLocked connects to a process again, if one is needed. When there can be none now, the client
// is lost and tries again.
func (c *Client) restoreLocked(ctx context.Context) error {
	if len(c.boxes) == 0 || c.state.phase == phaseClosed {
		return nil
	}
	return c.connectLocked(ctx, false)
}

// connectLocked connects to the process, starts one if there is none, and sends it the state that
// it lacks. With recovers set, the agent has just started: questions wait for the zones, which the
// client gets later.
func (c *Client) connectLocked(ctx context.Context, recovers bool) error {
	switch {
	case c.state.phase.serves():
		return nil
	case c.state.phase == phaseClosed:
		return fmt.Errorf("the agent ends: %w", errdefs.ErrUnavailable)
	}
	err := c.greetLocked(recovers)
	if errors.Is(err, errNoProcess) {
		err = c.replaceLocked(ctx, recovers)
	}
	if err != nil {
		c.disconnectLocked()
		return err
	}
	c.watch(c.state.conn)
	return nil
}

// errNoProcess means that there is no process, or that it has been killed.
var errNoProcess = errors.New("no process answers")

// greetLocked connects to a running process, mostly an earlier agent's.
func (c *Client) greetLocked(recovers bool) error {
	err := c.dialLocked(phaseGreeting)
	switch {
	case shortage.Is(err):
		return err // the process may exist
	case err != nil:
		return errNoProcess
	}
	err = c.updateLocked(recovers)
	if err == nil || errors.Is(err, errRefused) {
		return err
	}
	c.killLocked() // it was about to end, or hangs
	return errNoProcess
}

// replaceLocked starts a process.
func (c *Client) replaceLocked(ctx context.Context, recovers bool) (err error) {
	for range startTries { // it may die again before it knows everything
		if err = c.startLocked(ctx); err == nil {
			err = c.updateLocked(recovers)
		}
		if err == nil {
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

// dialLocked connects to the process and enters a phase of the connection.
func (c *Client) dialLocked(p phase) error {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.dir.socket(), Net: "unix"})
	if err != nil {
		return err
	}
	c.enterLocked(p).conn = conn
	return nil
}

// startLocked starts the process. It listens already when startLocked returns: the socket is made
// here.
func (c *Client) startLocked(ctx context.Context) error {
	if err := errors.Join(c.dir.remove(), os.MkdirAll(string(c.dir), 0o700)); err != nil {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: c.dir.socket(), Net: "unix"})
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
	log, err := os.OpenFile(c.dir.log(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
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
	if err := atomicfile.Replace(c.dir.pidFile(), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		c.o.Logger.WarnContext(ctx, "could not write down which process is the name server of sandboxes: an agent that starts while it hangs cannot end it", "error", err.Error())
	}
	go func() {
		if err := cmd.Wait(); err != nil {
			c.o.Logger.InfoContext(ctx, "a name server of sandboxes has ended", "pid", pid, "how", err.Error())
		}
	}()
	if c.o.Started != nil {
		c.o.Started(ctx, pid)
	}
	return c.dialLocked(phaseStarting)
}

// updateLocked sends the process everything that it lacks; then it serves. A process that could not
// receive all of it for want of descriptors or memory is behind.
func (c *Client) updateLocked(recovers bool) error {
	err := c.sendAllLocked(recovers)
	switch {
	case err == nil:
		c.enterLocked(phaseServing)
	case errors.Is(err, errShort):
		c.behindLocked(err)
		return nil
	}
	return err
}

// sendAllLocked sends sandboxes and zones to a process. Zones from an earlier agent stay until they
// are set again, because the engine reads its records a moment later. After a shortage it sends the
// rest, and returns errShort.
func (c *Client) sendAllLocked(recovers bool) error {
	fresh, patience := c.state.phase == phaseStarting, c.patienceLocked()
	if recovers && !fresh {
		patience = min(patience, helloTime)
	}
	hello, extra, err := c.exchangeLocked(request{Op: opHello}, nil, patience)
	closeAll(extra)
	if err != nil {
		return err
	}
	if hello.Pid > 0 { // it has just answered: nobody else has this pid
		c.state.identify(hello.Pid)
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
	var short error
	for id, b := range c.boxes {
		if has[id] && !fresh {
			if err := c.keepLocked(id); errors.Is(err, errShort) {
				short = err
			} else if err != nil {
				return err
			}
			if err := keepReportsLocked(c, id); err != nil {
				return err
			}
			if err := setLocked(c, b); err != nil {
				return err
			}
			continue
		}
		switch err := c.addLocked(b, recovers); {
		case err == nil:
		case errors.Is(err, errShort):
			short = err
		case shortage.Is(err):
			short = fmt.Errorf("%w: %w", errShort, err)
		default:
			// A sandbox without its namespace must not delay the others.
			if c.o.Logger.Warn("a sandbox has no name server", "sandbox", string(id), "error", err.Error()); !errors.Is(err, errNamespace) && !errors.Is(err, errRefused) {
				return err
			}
		}
	}
	return short
}

// callTime bounds one request: the process does nothing that takes long.
const callTime = 10 * time.Second

// helloTime is how long a process of an earlier agent may take to answer. The agent recovers meanwhile,
// and after five seconds other nodes of its networks take it for dead.
const helloTime = 2 * time.Second

func (c *Client) callLocked(req request, files []*os.File) (response, error) {
	resp, extra, err := c.exchangeLocked(req, files, c.patienceLocked())
	closeAll(extra)
	return resp, err
}

// patienceLocked is the timeout of a request. A new process may take longer to answer.
func (c *Client) patienceLocked() time.Duration {
	patience := cmp.Or(c.o.Patience, callTime)
	if c.state.phase == phaseStarting {
		patience = max(patience, callTime)
	}
	return patience
}

// exchangeLocked sends a request and returns the answer, with its descriptors.
func (c *Client) exchangeLocked(req request, files []*os.File, patience time.Duration) (resp response, got []*os.File, err error) {
	if err := c.state.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return resp, nil, err
	}
	if err := send(c.state.conn, req, files); err != nil {
		return resp, nil, err
	}
	got, err = receive(c.state.conn, &resp)
	switch {
	case err == nil && resp.Short:
		err = shortError(resp.Error)
	case err == nil && resp.Error != "":
		err = fmt.Errorf("%w: %s", errRefused, resp.Error)
	}
	return resp, got, err
}

// watch waits on a connection of its own for the end of the process behind conn, and replaces it
// then.
func (c *Client) watch(conn *net.UnixConn) {
	gone := make(chan struct{})
	go c.probe(conn, gone)
	go func() {
		// When it cannot be connected to, it has gone already.
		if w, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.dir.socket(), Net: "unix"}); err == nil {
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
	if c.state.conn != conn {
		return // it was ended, or somebody has noticed already
	}
	c.disconnectLocked()
	c.o.Logger.Warn("the name server of sandboxes has died; starting another one")
	if c.deaths++; c.deaths > manyDeaths {
		return // the next retry starts one
	}
	if err := c.restoreLocked(context.Background()); err != nil {
		c.o.Logger.Error("could not start the name server of sandboxes again; it is tried again and again", "error", err.Error())
	}
}
