package keeper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// copies are an agent's copies of keeper's and nest's items: for each process its record, its
// pidfd, the agent's ends of its pipes and the master of its terminal. Keeper and nest can then die
// together: the agent starts the next pair with them. The keeper sends each change some 10 ms after
// it has stored it with the nest; younger changes are lost when both die.
type copies struct {
	items map[string]*copied
	// failed are the keys of items that arrived without their descriptors, "" for one that arrived
	// without its key. The value is true until the keeper has sent the item again over a new connection
	// or after another request.
	failed map[string]bool
	// whole is set when the keeper has sent all items of the time of the request.
	whole bool
	// asking is set while another request waits for its time.
	asking bool
}

// copied is one item.
type copied struct {
	wire.Item
	fds []int
	old bool // of the connection before, and not sent again yet
}

// take takes the copy of an item in place of the one before. If descriptors are missing, because
// there was no room for them, the one before stays: a process is better continued by an old record
// than lost.
func (k *copies) take(it *wire.Item, fds descriptors) {
	was := k.items[it.Key]
	if was == nil {
		was = &copied{}
	}
	lacks := func(r wire.Role) bool { return !slices.Contains(was.Roles, r) }
	if len(it.Roles) != len(fds) || slices.ContainsFunc(it.Keep, lacks) {
		fds.close()
		was.old = false
		k.failed[it.Key] = false
		return
	}
	one := &copied{Item: wire.Item{Key: it.Key, Roles: it.Roles, Pids: it.Pids, Blob: slices.Clone(it.Blob)}, fds: fds}
	for i, r := range was.Roles {
		if slices.Contains(it.Keep, r) {
			one.Roles, one.fds = append(one.Roles, r), append(one.fds, was.fds[i])
		} else {
			_ = unix.Close(was.fds[i])
		}
	}
	k.items[it.Key] = one
	delete(k.failed, it.Key)
}

// drop closes the copy of an item that is no more.
func (k *copies) drop(key string) {
	if was := k.items[key]; was != nil {
		kernel.CloseAll(was.fds)
	}
	delete(k.items, key)
	delete(k.failed, key)
}

// complete drops the items that the keeper has not sent again, because it no longer has them.
func (k *copies) complete() {
	for key, it := range k.items {
		if it.old {
			k.drop(key)
		}
	}
	for key, old := range k.failed {
		if old {
			delete(k.failed, key)
		}
	}
	k.whole = true
}

// again prepares for a request after which everything is sent again.
func (k *copies) again() {
	for _, it := range k.items {
		it.old = true
	}
	for key := range k.failed {
		k.failed[key] = true
	}
	k.whole = false
}

// AskCopies asks all keepers for copies of their items, and those of later connections at once. It is
// for clients with Options.LateCopies.
func (c *Client) AskCopies() {
	c.mu.Lock()
	c.opts.LateCopies = false
	pairs := slices.Clone(c.pairs)
	c.mu.Unlock()
	for _, p := range pairs {
		p.ask()
	}
}

// ask asks the keeper for copies. Without a connection, the next one asks.
func (p *pair) ask() {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn != nil {
		p.askCopies(conn)
	}
}

// askCopies asks the keeper of a new connection for copies.
func (p *pair) askCopies(conn *link) {
	if conn.version < wire.VersionCopies {
		return
	}
	p.mu.Lock()
	p.copies.again()
	p.next++
	id := p.next
	p.mu.Unlock()
	if err := write(conn, wire.Header{Kind: wire.KindCopies, ID: id}, nil, sent{}); err != nil {
		p.c.log.Debug("could not ask the keeper for copies; the reader finds that it is gone", "dir", p.dir, "error", err)
	}
}

// copied handles a frame with a copy.
func (p *pair) copied(f *frame) {
	p.mu.Lock()
	before := len(p.copies.failed)
	p.takeCopy(f)
	changed := len(p.copies.failed) != before
	missing := len(p.copies.failed) > 0 && p.copies.whole && !p.copies.asking
	p.copies.asking = p.copies.asking || missing
	p.mu.Unlock()
	if changed {
		p.c.opts.Changed()
	}
	if missing {
		time.AfterFunc(restoring, p.askMissing)
	}
}

// askMissing asks for all copies again, because some could not be received.
func (p *pair) askMissing() {
	p.mu.Lock()
	p.copies.asking = false
	conn, missing := p.conn, len(p.copies.failed)
	p.mu.Unlock()
	if conn != nil && missing > 0 {
		p.askCopies(conn)
	}
}

// takeCopy takes or drops a copy.
//
// Preconditions: mu is held.
func (p *pair) takeCopy(f *frame) {
	if f.kind == wire.KindCopy && f.err != nil {
		p.copies.failed[""] = false // its key was among the lost ones
		return
	}
	if f.kind == wire.KindCopy {
		var it wire.Item
		if !wire.Unmarshal(f.body, &it) {
			f.fds.close()
			return
		}
		p.copies.take(&it, f.fds)
		return
	}
	var d wire.Drop
	f.fds.close()
	switch {
	case !wire.Unmarshal(f.body, &d):
	case d.Key == "":
		p.copies.complete()
	default:
		p.copies.drop(d.Key)
	}
}

// dropCopies closes all copies.
func (p *pair) dropCopies() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key := range p.copies.items {
		p.copies.drop(key)
	}
}

// uncopied is how many of n processes there are no copies of.
func (p *pair) uncopied(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil && p.conn.version < wire.VersionCopies {
		return n
	}
	return len(p.copies.failed)
}

// restoring is how long the agent waits at most between two attempts to start the next pair.
const restoring = time.Second

// restore starts the next pair of a directory after keeper and nest have died together, with the
// copies of their items. It reports false if there is nothing to start it with. It tries until it
// succeeds, because the processes run as long as it holds the copies.
func (p *pair) restore(ctx context.Context) bool {
	if !p.worthRestoring() {
		return false
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, restoring) {
		<-pause.C
		if p.dead() {
			return false
		}
		begun := time.Now()
		n, err := p.startWithCopies(ctx)
		if err == nil {
			p.c.log.WarnContext(ctx, "keeper and nest had died together; both run again", "dir", p.dir, "processes", n, "took", time.Since(begun).String())
			return true
		}
		p.c.log.ErrorContext(ctx, "keeper and nest have died together, and no others could be started; trying again", "dir", p.dir, "error", err)
		pause.Reset(wait)
	}
}

// worthRestoring reports whether there are copies, of a pair that was not asked to end.
func (p *pair) worthRestoring() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && !p.ending && len(p.copies.items) > 0
}

// startWithCopies starts a pair in the directory of this one. Another agent that did the same
// meanwhile is found by its socket.
func (p *pair) startWithCopies(ctx context.Context) (n int, err error) {
	lock, err := lockFile(ctx, filepath.Join(p.c.opts.StateDir, "pairs.lock"))
	if err != nil {
		return 0, err
	}
	defer func() { _ = lock.Close() }()
	if conn, err := dial(ctx, p.dir); !errors.Is(err, errDead) {
		if err == nil {
			_ = conn.Close()
		}
		return 0, err
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("start the keeper: %w", os.NewSyscallError("socketpair", err))
	}
	theirs := os.NewFile(uintptr(ends[1]), "items")
	sent := make(chan error, 1)
	go func() {
		var err error
		n, err = p.sendCopies(ends[0])
		_ = unix.Close(ends[0])
		sent <- err
	}()
	err = p.c.runStart(ctx, p.dir, theirs)
	_ = theirs.Close() // so that sending ends if nobody receives
	if sending := <-sent; err == nil && sending != nil {
		p.c.log.WarnContext(ctx, "not all copies could be handed to the next keeper", "dir", p.dir, "error", sending)
	}
	return n, err
}

// sendCopies sends all copies as a nest sends its items.
func (p *pair) sendCopies(to int) (n int, err error) {
	p.mu.Lock()
	var all []*copied
	for _, it := range p.copies.items {
		all = append(all, it)
	}
	p.mu.Unlock() // only the caller changes them, by its reader
	var out kernel.Sender
	for _, it := range all {
		if err := out.SendAgain(to, wire.Header{Kind: wire.KindNestItem}, &it.Item, it.fds); err != nil {
			return n, fmt.Errorf("send a copy: %w", err)
		}
		if len(it.Pids) > 0 {
			n++
		}
	}
	return n, out.SendAgain(to, wire.Header{Kind: wire.KindNestReady}, nil, nil)
}

// settled tells of the processes of a pair that this client has started.
func (p *pair) settled(ctx context.Context) {
	if p.c.opts.Started == nil {
		return
	}
	var s wire.Status
	if _, err := p.call(ctx, wire.KindStatus, nil, &s); err == nil {
		p.c.opts.Started(ctx, s.KeeperPid, s.NestPid)
	}
}

// renew connects again to a keeper after an upgrade of its program, because the old connection has
// the protocol version of the program before.
func (p *pair) renew() {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn != nil && conn.version < wire.Newest() {
		_ = conn.Close()
	}
}
