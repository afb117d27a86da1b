package keeper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/wire"
)

func coreExit(e *wire.Exit) core.ProcessExit {
	exit := core.Exit{Code: e.Code, Signal: e.Signal, At: time.Unix(0, e.Nanos), Lost: e.Lost}
	if exit.Signal != 0 {
		exit.Core, exit.Code = exit.Code == 1, 0
	}
	return core.ProcessExit{
		Ref: coreRef(e.Ref), Pid: e.Pid, Exit: exit,
		OOMKills: e.OOMKills, OOMLocal: e.OOMLocal, Peak: e.Peak, LostOut: e.LostOut,
	}
}

// queue collects exits from the goroutines that read the pairs' connections, without
// ever making them wait.
type queue struct {
	mu    sync.Mutex // guards items, err
	items []core.ProcessExit
	err   error
	news  chan struct{}
}

func (q *queue) push(e core.ProcessExit, err error) {
	q.mu.Lock()
	if err != nil {
		q.err = err
	} else {
		q.items = append(q.items, e)
	}
	q.mu.Unlock()
	select {
	case q.news <- struct{}{}:
	default:
	}
}

// take returns the exits that have come. The error is returned only when no exits are
// left.
func (q *queue) take() ([]core.ProcessExit, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	if len(items) > 0 {
		return items, nil
	}
	return nil, q.err
}

// Exits implements core.Supervisor. The sequence also ends with Unavailable when a
// pair starts or ends, so that the caller's next call subscribes to all pairs there
// are.
func (c *Client) Exits(ctx context.Context) iter.Seq2[core.ProcessExit, error] {
	return func(yield func(core.ProcessExit, error) bool) {
		if _, err := c.current(ctx); err != nil {
			if ctx.Err() == nil {
				yield(core.ProcessExit{}, err)
			}
			return
		}
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		q := &queue{news: make(chan struct{}, 1)}
		for _, e := range c.orphanExits() {
			q.push(coreExit(&e), nil)
		}
		for _, p := range c.all() {
			defer p.unsubscribe(q)
			if err := p.subscribe(ctx, q); err != nil {
				q.push(core.ProcessExit{}, err)
			}
		}
		for {
			items, err := q.take()
			for _, e := range items {
				if !yield(e, nil) {
					return
				}
			}
			if err != nil {
				if ctx.Err() == nil {
					yield(core.ProcessExit{}, err)
				}
				return
			}
			if len(items) > 0 {
				continue
			}
			select {
			case <-q.news:
			case <-changed:
				yield(core.ProcessExit{}, fmt.Errorf("keeper: a keeper started or ended: %w", errdefs.ErrUnavailable))
				return
			case <-ctx.Done():
				return
			}
		}
	}
}

// subscribe has a pair's exits pushed to q, starting with those that are not
// acknowledged yet.
func (p *pair) subscribe(ctx context.Context, q *queue) error {
	conn, err := p.connection(ctx)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.conn != conn {
		p.mu.Unlock()
		return fmt.Errorf("keeper: the connection was lost: %w", errdefs.ErrUnavailable)
	}
	p.subs[q] = struct{}{}
	p.next++
	id := p.next
	p.mu.Unlock()
	if err := write(conn, wire.Header{Kind: wire.KindExits, ID: id}, nil, sent{}); err != nil {
		return fmt.Errorf("keeper: send a request: %w: %w", err, errdefs.ErrUnavailable)
	}
	return nil
}

func (p *pair) unsubscribe(q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.subs, q)
}

// deadDirs lists the directories of pairs with keeper and nest dead.
func (c *Client) deadDirs() []string {
	live := map[string]bool{}
	for _, p := range c.all() {
		live[p.dir] = true
	}
	entries, err := os.ReadDir(c.opts.StateDir)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		dir := filepath.Join(c.opts.StateDir, e.Name())
		if _, ok := pairNumber(e.Name()); ok && !live[dir] {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// orphanExits reads the exit records of dead pairs that nobody has acknowledged.
func (c *Client) orphanExits() []wire.Exit {
	var out []wire.Exit
	for _, dir := range c.deadDirs() {
		entries, err := os.ReadDir(filepath.Join(dir, "exits"))
		if err != nil {
			continue
		}
		for _, e := range entries {
			path := filepath.Join(dir, "exits", e.Name())
			if strings.HasSuffix(path, atomicfile.Damaged) {
				continue
			}
			b, err := atomicfile.Read(path, 1<<20)
			var x wire.Exit
			switch {
			case err == nil && wire.ParseChecked(b, &x):
				out = append(out, x)
			case errors.Is(err, fs.ErrNotExist): // it was acknowledged just now
			default:
				c.log.Error("the record of a process's exit is damaged: the process is recorded as lost", "file", path, "kept", path+atomicfile.Damaged, "error", err)
				if err := atomicfile.SetAside(path); err != nil {
					c.log.Error("could not set a damaged exit record aside", "error", err)
				}
			}
		}
	}
	return out
}

// ackOrphan removes an exit record of a dead pair, and the pair's directory after the
// last record.
func (c *Client) ackOrphan(ref core.Ref) {
	name := wire.RecordFile(wire.Key(wireRef(ref)))
	for _, dir := range c.deadDirs() {
		path := filepath.Join(dir, "exits", name)
		// A damaged one goes with the process.
		if one, two := os.Remove(path), os.Remove(path+atomicfile.Damaged); one == nil || two == nil {
			dropIfEmpty(dir)
		}
	}
}

// dropIfEmpty removes a dead pair's directory if it has no exit records left.
func dropIfEmpty(dir string) {
	entries, err := os.ReadDir(filepath.Join(dir, "exits"))
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return strings.HasSuffix(e.Name(), atomicfile.Damaged) })
	if err == nil && len(entries) == 0 {
		_ = os.RemoveAll(dir)
	}
}
