package joint

import (
	"fmt"
	"io"
	"sync"

	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/logs"
)

const (
	// batchBytes is how much of a log may wait to be sent.
	batchBytes = 1 << 20
	// chunkBytes is about how much is sent at once.
	chunkBytes = 32 << 10
)

// batch puts the lines of a log into few writes: while one is being sent, the
// next gathers. The order of the streams is kept.
type batch struct {
	sess stream.Session

	mu      sync.Mutex
	changed sync.Cond
	parts   []part
	size    int
	closed  bool  // nothing more is added
	failed  error // sending ended
}

type part struct {
	to   io.Writer
	data []byte
}

func newBatch(sess stream.Session) *batch {
	b := &batch{sess: sess}
	b.changed.L = &b.mu
	return b
}

// add takes an entry, and waits while too much is unsent.
func (b *batch) add(e logs.Entry) error {
	to := b.sess.Stdout
	if e.Stream == "stderr" {
		to = b.sess.Stderr
	}
	if to == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.size >= batchBytes && b.failed == nil {
		b.changed.Wait()
	}
	if b.failed != nil {
		return b.failed
	}
	if n := len(b.parts); n == 0 || b.parts[n-1].to != to || len(b.parts[n-1].data) >= chunkBytes {
		b.parts = append(b.parts, part{to: to})
	}
	p := &b.parts[len(b.parts)-1]
	p.data = append(p.data, e.Text...)
	if !e.Partial {
		p.data = append(p.data, '\n')
	}
	b.size += len(e.Text) + 1
	b.changed.Broadcast()
	return nil
}

func (b *batch) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.changed.Broadcast()
}

// send writes what is added until close, or until it fails, which add then tells.
func (b *batch) send() {
	for {
		b.mu.Lock()
		for len(b.parts) == 0 && !b.closed {
			b.changed.Wait()
		}
		parts := b.parts
		b.parts, b.size = nil, 0
		b.changed.Broadcast()
		b.mu.Unlock()
		if len(parts) == 0 {
			return
		}
		for _, p := range parts {
			if _, err := p.to.Write(p.data); err != nil {
				b.mu.Lock()
				b.failed = fmt.Errorf("send output: %w", err)
				b.changed.Broadcast()
				b.mu.Unlock()
				return
			}
		}
	}
}
