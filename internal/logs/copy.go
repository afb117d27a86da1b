package logs

import (
	"context"
	"fmt"
	"sync"

	"github.com/longshore/longshore/internal/core"
)

const (
	// gatherBytes is how much of a log Copy keeps for a slow reader, in bytes.
	gatherBytes = 1 << 20
	// pieceBytes is the approximate size of one piece for emit, in bytes.
	pieceBytes = 32 << 10
)

// Copy reads as Read does and passes the lines to emit in few pieces: while emit handles one, the
// next is collected. The order of the streams is kept, and emit may keep data. When ctx ends,
// Copy still waits for emit, which must then return an error.
func Copy(ctx context.Context, sink core.Sink, o Options, emit func(stderr bool, data []byte) error) error {
	g := &gathering{}
	g.changed.L = &g.mu
	var sender sync.WaitGroup
	sender.Go(func() { g.send(emit) })
	err := Read(ctx, sink, o, g.add)
	g.close()
	sender.Wait()
	if g.failed != nil {
		return g.failed
	}
	return err
}

// gathering has the bytes that were read and not yet passed to emit.
type gathering struct {
	mu      sync.Mutex // guards pieces, size, closed, failed
	changed sync.Cond
	pieces  []piece
	size    int
	closed  bool  // nothing more will be added
	failed  error // emit's error
}

type piece struct {
	stderr bool
	data   []byte
}

// add adds an entry. It waits while too much is collected.
func (g *gathering) add(e Entry) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.size >= gatherBytes && g.failed == nil {
		g.changed.Wait()
	}
	if g.failed != nil {
		return g.failed
	}
	stderr := e.Stream == "stderr"
	if n := len(g.pieces); n == 0 || g.pieces[n-1].stderr != stderr || len(g.pieces[n-1].data) >= pieceBytes {
		g.pieces = append(g.pieces, piece{stderr: stderr})
	}
	p := &g.pieces[len(g.pieces)-1]
	p.data = append(p.data, e.Text...)
	if !e.Partial {
		p.data = append(p.data, '\n')
	}
	g.size += len(e.Text) + 1
	g.changed.Broadcast()
	return nil
}

func (g *gathering) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.changed.Broadcast()
}

// send passes added bytes to emit, until close or until emit fails; add then returns that error.
func (g *gathering) send(emit func(bool, []byte) error) {
	for {
		g.mu.Lock()
		for len(g.pieces) == 0 && !g.closed {
			g.changed.Wait()
		}
		pieces := g.pieces
		g.pieces, g.size = nil, 0
		g.changed.Broadcast()
		g.mu.Unlock()
		if len(pieces) == 0 {
			return
		}
		for _, p := range pieces {
			if err := emit(p.stderr, p.data); err != nil {
				g.mu.Lock()
				g.failed = fmt.Errorf("send output: %w", err)
				g.changed.Broadcast()
				g.mu.Unlock()
				return
			}
		}
	}
}
