package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/shortage"
)

// patience is how long a request waits for the next keeper, when one has died, before
// the request fails.
const patience = 5 * time.Second

// pair is one keeper with its nest, and the connection to it.
type pair struct {
	c   *Client
	dir string

	// sending counts the writes of requests. It grows only with mu held, while held is nil.
	sending sync.WaitGroup

	mu       sync.Mutex    // guards conn, up, gone, nestLost, ending, next, calls, subs, inputs, copies, held, slow, quiet
	conn     *link         // nil while no keeper is connected
	up       chan struct{} // closed once conn is set or never will be
	gone     bool          // keeper and nest are dead, or the Client is closed
	nestLost bool          // the nest is lost
	ending   bool          // its end was requested
	next     uint64        // id of the last request
	calls    map[uint64]*pending
	subs     map[*queue]struct{}   // subscribers to exits
	inputs   map[*stdinEnd]inputOf // open inputs, for CloseStdin
	copies   copies
	held     chan struct{} // closed at the end of an upgrade, which requests that take time wait for; nil without one
	slow     int           // requests under way that take time
	quiet    chan struct{} // closed when slow becomes 0; nil unless an upgrade waits for that
}

// inputOf names the process that an input belongs to.
type inputOf struct{ ref wire.Ref }

// pending is a request without an answer yet.
type pending struct {
	done     chan reply
	launches *wire.Ref // the process that it launches; nil if it launches none
}

// launches returns the process that a request launches, nil if it launches none.
func launches(m wire.Message) *wire.Ref {
	if r, ok := m.(*planned); ok {
		m = r.Message
	}
	if l, ok := m.(*wire.Launch); ok {
		return &l.Ref
	}
	return nil
}

// reply is an answer, or the error in its place.
type reply struct {
	kind wire.Kind
	body []byte
	fds  descriptors
	err  error
}

// descriptors came with an answer; the receiver closes them.
type descriptors []int

func (d descriptors) close() { kernel.CloseAll(d) }

// errDead means that no process listens on a pair's socket any more.
var errDead = errors.New("keeper and nest have both ended")

// dial connects to a pair's keeper and exchanges the hello messages.
func dial(ctx context.Context, dir string) (*link, error) {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errDead, err)
	}
	defer func() { _ = unix.Close(d) }()
	var nd net.Dialer
	raw, err := nd.DialUnix(ctx, "unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: "/proc/self/fd/" + strconv.Itoa(d) + "/keeper.sock"})
	if err != nil {
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
			return nil, errDead
		}
		return nil, err
	}
	conn := &link{UnixConn: raw}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = greet(conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// reach dials a pair that is not connected yet. A keeper that is being killed still
// accepts connections and then drops them, so a dropped connection is tried again: the
// nest may have started another keeper.
func reach(ctx context.Context, dir string) (*link, error) {
	enough := time.NewTimer(patience)
	defer enough.Stop()
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for {
		conn, err := dial(ctx, dir)
		if !dropped(err) {
			return conn, err
		}
		select {
		case <-pause.C:
		case <-enough.C:
			return nil, err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// dropped reports whether err means that the other end of a connection has gone.
func dropped(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF)
}

func greet(conn *link) error {
	mine := wire.Hello{Magic: wire.Magic, Version: wire.Newest(), Oldest: wire.OldestSpoken(), Program: "agent"}
	if _, err := conn.Write(wire.Frame(wire.KindHello, 0, &mine)); err != nil {
		return err
	}
	r, err := receive(conn.UnixConn)
	if err != nil {
		return err
	}
	r.fds.close()
	if r.kind == wire.KindFail {
		return decodeFail(r.body)
	}
	var theirs wire.Hello
	if r.kind != wire.KindOK || !wire.Unmarshal(r.body, &theirs) {
		return fmt.Errorf("keeper: cannot decode its hello message: %w", errdefs.ErrDataLoss)
	}
	if conn.version = wire.Agree(mine, theirs); conn.version == 0 {
		return fmt.Errorf("keeper: %s: %w", wire.Mismatch(mine, theirs), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// link is a connection and the protocol version that both ends agreed on.
type link struct {
	*net.UnixConn
	version uint64
}

// newPair starts to serve a connection.
func newPair(c *Client, dir string, conn *link) *pair {
	p := &pair{
		c: c, dir: dir, conn: conn, up: make(chan struct{}),
		calls: map[uint64]*pending{}, subs: map[*queue]struct{}{}, inputs: map[*stdinEnd]inputOf{},
		copies: copies{items: map[string]*copied{}, failed: map[string]bool{}},
	}
	close(p.up)
	go p.serve(conn)
	return p
}

// serve reads answers until the pair is gone for good.
func (p *pair) serve(conn *link) {
	for conn != nil {
		for {
			f, err := receive(conn.UnixConn)
			if err != nil {
				break
			}
			p.dispatch(f)
		}
		_ = conn.Close()
		p.lostConn()
		p.c.opts.Changed()
		if conn = p.redial(); conn != nil {
			p.askCopies(conn)
		}
		p.c.opts.Changed()
	}
	p.dropCopies()
	p.c.remove(p)
}

func (p *pair) dispatch(f frame) {
	switch f.kind {
	case wire.KindExitEvent:
		var e wire.Exit
		if wire.Unmarshal(f.body, &e) {
			p.mu.Lock()
			for q := range p.subs {
				q.push(coreExit(&e), nil)
			}
			p.mu.Unlock()
		}
	case wire.KindNestLost:
		p.mu.Lock()
		p.nestLost = true
		p.mu.Unlock()
		p.c.opts.Changed()
		p.c.log.Warn("keeper has lost its nest and could not start another one; new processes are started by a new keeper", "dir", p.dir)
	case wire.KindCopy, wire.KindCopyDropped:
		p.copied(&f)
		return
	default:
		p.mu.Lock()
		call := p.calls[f.id]
		delete(p.calls, f.id)
		p.mu.Unlock()
		if call != nil {
			call.done <- f.reply
			return
		}
	}
	f.fds.close()
}

// lostConn fails all pending requests, because nobody knows whether they were carried
// out.
func (p *pair) lostConn() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.conn = nil
		p.up = make(chan struct{})
	}
	for id, call := range p.calls {
		call.done <- reply{err: errCut}
		delete(p.calls, id)
	}
	for q := range p.subs {
		q.push(core.ProcessExit{}, errCut)
	}
	clear(p.subs)
}

// redial connects to the nest's next keeper. It returns nil if there will be none.
func (p *pair) redial() *link {
	ctx := context.Background()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		<-pause.C
		p.mu.Lock()
		gone, ending := p.gone, p.ending
		p.mu.Unlock()
		if gone {
			return p.settle(nil)
		}
		conn, err := dial(ctx, p.dir)
		if err == nil {
			return p.settle(conn)
		}
		if errors.Is(err, errDead) && p.restore(ctx) {
			go p.settled(ctx)
			pause.Reset(0)
			continue
		}
		if errors.Is(err, errDead) || errdefs.IsFailedPrecondition(err) {
			if !ending {
				p.c.log.Warn("keeper and nest have ended; their processes are recorded as lost unless an exit record is left", "dir", p.dir, "error", err)
			}
			return p.settle(nil)
		}
		pause.Reset(5 * time.Millisecond)
	}
}

// settle sets the new connection, or marks the pair as gone if conn is nil.
func (p *pair) settle(conn *link) *link {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone && conn != nil {
		_ = conn.Close()
		conn = nil
	}
	p.conn = conn
	p.gone = conn == nil
	p.nestLost = false // a keeper without a nest reports it again
	close(p.up)
	return conn
}

func (p *pair) close() {
	p.mu.Lock()
	p.gone = true
	conn := p.conn
	p.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// retire excludes the pair from new launches, before the request to end.
func (p *pair) retire() {
	p.mu.Lock()
	p.nestLost, p.ending = true, true
	p.mu.Unlock()
}

func (p *pair) dead() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gone
}

func (p *pair) hasNest() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && !p.nestLost
}

// connection returns the connection, waiting for the next keeper for a limited time.
func (p *pair) connection(ctx context.Context) (*link, error) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		p.mu.Lock()
		conn, up, gone := p.conn, p.up, p.gone
		p.mu.Unlock()
		switch {
		case gone:
			return nil, fmt.Errorf("keeper: %w: %w", errDead, errdefs.ErrUnavailable)
		case conn != nil:
			return conn, nil
		}
		select {
		case <-up:
		case <-timer.C:
			return nil, fmt.Errorf("keeper: none has answered for %s: %w", patience, errdefs.ErrUnavailable)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// errCut means that a keeper went away after the request was sent and before it
// answered.
var errCut = fmt.Errorf("keeper: the connection was lost before the answer came: %w", errdefs.ErrUnavailable)

// errUnsent means that the keeper went away before the request was sent.
var errUnsent = fmt.Errorf("keeper: the connection was lost: %w", errdefs.ErrUnavailable)

// call sends a request and returns its answer. If the keeper goes away, it repeats the
// request to the next keeper where that is harmless. If the context ends first, a
// command that the request started is killed.
func (p *pair) call(ctx context.Context, kind wire.Kind, m, answer wire.Message) (descriptors, error) {
	for {
		fds, err := p.try(ctx, kind, m, answer)
		if errors.Is(err, errUnsent) || errors.Is(err, errCut) && repeatable(kind) {
			continue
		}
		return fds, err
	}
}

func (p *pair) try(ctx context.Context, kind wire.Kind, m, answer wire.Message) (descriptors, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	conn, err := p.connection(ctx)
	if err != nil {
		return nil, err
	}
	call := &pending{done: make(chan reply, 1), launches: launches(m)}
	p.mu.Lock()
	if held := p.held; held != nil && takesTime(kind) {
		p.mu.Unlock()
		select {
		case <-held:
			return nil, errUnsent
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if p.conn != conn {
		p.mu.Unlock()
		return nil, errUnsent
	}
	p.next++
	id := p.next
	p.calls[id] = call
	p.sending.Add(1)
	defer p.count(kind)()
	p.mu.Unlock()
	kind, m, files, err := conn.forVersion(kind, m)
	if err != nil {
		p.sending.Done()
		p.mu.Lock()
		delete(p.calls, id)
		p.mu.Unlock()
		return nil, err
	}
	err = write(conn, wire.Header{Kind: kind, ID: id}, m, files)
	p.sending.Done()
	if err != nil {
		return nil, p.unsent(conn, id, err)
	}
	var r reply
	select {
	case r = <-call.done:
	case <-ctx.Done():
		_ = write(conn, wire.Header{Kind: wire.KindCancel}, &wire.Cancel{ID: id}, sent{})
		return nil, p.cancelled(ctx, call, kind)
	}
	switch {
	case errors.Is(r.err, errShort): // the keeper's work is undone
		call.done <- r
		go p.discardLate(context.WithoutCancel(ctx), call, kind)
		return nil, r.err
	case r.err != nil:
		return nil, r.err
	case r.kind == wire.KindFail:
		r.fds.close()
		return nil, decodeFail(r.body)
	case r.kind != wire.KindOK || answer != nil && !wire.Unmarshal(r.body, answer):
		r.fds.close()
		return nil, fmt.Errorf("keeper: cannot decode an answer: %w", errdefs.ErrDataLoss)
	}
	return r.fds, nil
}

// unsent removes a request that could not be sent. It closes the connection, so that
// the reader notices now that it is broken. A shortage concerns only the one request.
func (p *pair) unsent(conn *link, id uint64, err error) error {
	short := shortage.Is(err)
	p.mu.Lock()
	delete(p.calls, id)
	if p.conn == conn && !short {
		p.conn = nil
		p.up = make(chan struct{})
	}
	p.mu.Unlock()
	if short {
		return fmt.Errorf("keeper: send a request: %w: %w", err, errdefs.ErrResourceExhausted)
	}
	_ = conn.Close()
	if dropped(err) {
		return errUnsent
	}
	return fmt.Errorf("keeper: send a request: %w: %w", err, errdefs.ErrUnavailable)
}

func decodeFail(body []byte) error {
	var f wire.Fail
	if !wire.Unmarshal(body, &f) {
		return fmt.Errorf("keeper: cannot decode an error: %w", errdefs.ErrDataLoss)
	}
	class := map[wire.Class]error{
		wire.NotFound: errdefs.ErrNotFound, wire.AlreadyExists: errdefs.ErrAlreadyExists,
		wire.InvalidArgument: errdefs.ErrInvalidArgument, wire.FailedPrecondition: errdefs.ErrFailedPrecondition,
		wire.Unavailable: errdefs.ErrUnavailable, wire.ResourceExhausted: errdefs.ErrResourceExhausted,
		wire.Aborted: errdefs.ErrAborted,
	}[f.Class]
	if class == nil {
		class = errdefs.ErrInternal
	}
	f.Text = withoutKey(f.Text)
	if f.Class == wire.CommandFailed {
		return fmt.Errorf("%s: %w: %w", f.Text, &core.CommandError{Status: f.Status, Stderr: f.Stderr}, class)
	}
	if f.Class == wire.Ended { // not NotFound, which would have the next pair asked
		return fmt.Errorf("%w: %w", core.ErrEnded, errdefs.ErrFailedPrecondition)
	}
	err := fmt.Errorf("%s: %w", f.Text, class)
	if f.Status != 0 {
		return &core.StartError{Errno: syscall.Errno(f.Status), Err: err}
	}
	return err
}

// findOrStart searches the state directory for pairs, and starts one if none has a
// nest. The caller holds c.busy.
func (c *Client) findOrStart(ctx context.Context) (*pair, error) {
	lock, err := lockFile(ctx, filepath.Join(c.opts.StateDir, "pairs.lock"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()
	last, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	if p := c.usable(); p != nil {
		return p, nil
	}
	dir := filepath.Join(c.opts.StateDir, pairPrefix+strconv.Itoa(last+1))
	if err := c.startPair(ctx, dir); err != nil {
		return nil, err
	}
	conn, err := dial(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("start the keeper in %s: %w: %w", dir, err, errdefs.ErrUnavailable)
	}
	c.log.InfoContext(ctx, "keeper started", "dir", dir)
	p, err := c.addPair(newPair(c, dir, conn))
	if err == nil {
		p.settled(ctx)
	}
	return p, err
}

const pairPrefix = "pair-"

// find connects to the pairs that are not known yet, and returns the highest pair
// number in use.
func (c *Client) find(ctx context.Context) (last int, err error) {
	entries, err := os.ReadDir(c.opts.StateDir)
	if err != nil {
		return 0, fmt.Errorf("keeper: %w", err)
	}
	known := map[string]bool{}
	for _, p := range c.all() {
		known[p.dir] = true
	}
	for _, e := range entries {
		n, ok := pairNumber(e.Name())
		if !ok {
			continue
		}
		last = max(last, n)
		dir := filepath.Join(c.opts.StateDir, e.Name())
		if known[dir] {
			continue
		}
		conn, err := reach(ctx, dir)
		switch {
		case errors.Is(err, errDead): // orphanExits reads its exit records, if any
			dropIfEmpty(dir)
		case err != nil:
			return last, fmt.Errorf("keeper: connect to %s: %w", dir, err)
		default:
			if _, err := c.addPair(newPair(c, dir, conn)); err != nil {
				return last, err
			}
		}
	}
	return last, nil
}

func pairNumber(name string) (int, bool) {
	if len(name) <= len(pairPrefix) || name[:len(pairPrefix)] != pairPrefix {
		return 0, false
	}
	n, err := strconv.Atoi(name[len(pairPrefix):])
	return n, err == nil && n > 0
}

func (c *Client) addPair(p *pair) (*pair, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		p.close()
		return nil, fmt.Errorf("keeper: the client is closed: %w", errdefs.ErrUnavailable)
	}
	c.pairs = append(c.pairs, p)
	late := c.opts.LateCopies
	c.changedLocked()
	c.mu.Unlock()
	if !late {
		p.ask()
	}
	return p, nil
}

func (c *Client) remove(p *pair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, x := range c.pairs {
		if x == p {
			c.pairs = append(c.pairs[:i:i], c.pairs[i+1:]...)
			c.changedLocked()
			return
		}
	}
}
