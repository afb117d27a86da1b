package pages

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/ledger"
)

// ahead decodes blocks beside the server, in a goroutine of its own. The server supplies them.
type ahead struct {
	asked chan *decoded
	done  chan *decoded
	event int // an eventfd that is readable while done has something
	under []*decoded
	back  *decoded   // taken before, and put back
	spare []*decoded // with memory for their content
}

// decoded is a block on its way.
type decoded struct {
	space   *space
	block   *ledger.Block
	addr    uint64 // of its segment when it was chosen
	content []byte
	err     error
}

// depth is how many blocks are decoded ahead.
const depth = 8

func newAhead(r *ledger.Reader) (*ahead, error) {
	own, err := r.Clone()
	if err != nil {
		return nil, err
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	a := &ahead{asked: make(chan *decoded, depth), done: make(chan *decoded, depth), event: event}
	go func() {
		one := binary.NativeEndian.AppendUint64(nil, 1)
		for d := range a.asked {
			d.content, d.err = own.Read(*d.block, d.content)
			a.done <- d
			_, _ = unix.Write(a.event, one) // it cannot fail: the sum is small
		}
	}()
	return a, nil
}

func (a *ahead) room() bool { return a.back == nil && len(a.under) < depth }

// has reports whether a block is on its way.
func (a *ahead) has(p *space, b *ledger.Block) bool {
	for _, d := range a.under {
		if d.space == p && d.block == b {
			return true
		}
	}
	return false
}

// ask has a segment's block decoded.
func (a *ahead) ask(p *space, g segment) {
	d := &decoded{}
	if n := len(a.spare); n > 0 {
		d, a.spare = a.spare[n-1], a.spare[:n-1]
	}
	d.space, d.block, d.addr = p, &p.source.Blocks[g.block], g.addr
	a.under = append(a.under, d)
	a.asked <- d
}

// take returns a decoded block, nil if there is none yet.
func (a *ahead) take() *decoded {
	if d := a.back; d != nil {
		a.back = nil
		return d
	}
	select {
	case d := <-a.done:
		return d
	default:
	}
	var count [8]byte
	_, _ = unix.Read(a.event, count[:]) // it is reset before the last look
	select {
	case d := <-a.done:
		return d
	default:
		return nil
	}
}

// putBack makes a block the next one that take returns.
func (a *ahead) putBack(d *decoded) { a.back = d }

// free ends the use of a block.
func (a *ahead) free(d *decoded) {
	for i, o := range a.under {
		if o == d {
			a.under = append(a.under[:i], a.under[i+1:]...)
			break
		}
	}
	a.spare = append(a.spare, d)
}
