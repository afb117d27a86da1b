package guestagent

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/shortage"
)

// The buffer of a log port for a host that does not read, and the time for a host to read a line.
const (
	keptLines   = 1024
	readTimeout = 10 * time.Second
	lastTimeout = time.Second // for the remaining lines at Close
)

// LogPort is a log that the host reads by connecting to a listener. It serves one connection at a time, which also gets
// the buffered earlier lines. If the host does not read, writing does not block: lines beyond the buffer are counted
// and dropped. When a connection fails or stops reading, LogPort accepts the next one.
type LogPort struct {
	listener net.Listener
	lines    chan []byte
	closing  chan struct{}
	done     sync.WaitGroup

	mu      sync.Mutex // guards dropped
	dropped int
}

var _ io.Writer = (*LogPort)(nil)

// NewLogPort starts a log port. Close ends it and the listener.
func NewLogPort(l net.Listener) *LogPort {
	p := &LogPort{listener: l, lines: make(chan []byte, keptLines), closing: make(chan struct{})}
	p.done.Go(p.run)
	return p
}

// Write implements io.Writer. It never waits and never fails.
func (p *LogPort) Write(line []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped > 0 {
		select {
		case p.lines <- fmt.Appendf(nil, `{"level":"WARN","msg":"log lines were dropped","count":%d}`+"\n", p.dropped):
			p.dropped = 0
		default:
		}
	}
	select {
	case p.lines <- bytes.Clone(line):
	default:
		p.dropped++
	}
	return len(line), nil
}

// Close sends the remaining lines to the host, for at most lastTimeout.
func (p *LogPort) Close() {
	close(p.closing)
	_ = p.listener.Close() // ends run, if it waits in Accept
	p.done.Wait()
}

func (p *LogPort) run() {
	var left []byte // of the line that the last connection did not take
	for {
		c, err := shortage.Accept(p.listener.Accept)
		if err != nil {
			return
		}
		left = p.send(c, left)
		_ = c.Close()
		select {
		case <-p.closing:
			return
		default:
		}
	}
}

// send writes lines to a connection until that fails or the port is closed. It returns the
// line that failed, which the next connection gets as a whole.
func (p *LogPort) send(c net.Conn, line []byte) (failed []byte) {
	for {
		if line != nil {
			_ = c.SetWriteDeadline(time.Now().Add(readTimeout))
			if _, err := c.Write(line); err != nil {
				return line
			}
		}
		select {
		case line = <-p.lines:
			continue
		case <-p.closing:
		}
		break
	}
	_ = c.SetWriteDeadline(time.Now().Add(lastTimeout))
	for {
		select {
		case line = <-p.lines:
			if _, err := c.Write(line); err != nil {
				return nil
			}
		default:
			return nil
		}
	}
}
