package pages

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/sleep/ledger"
	"github.com/longshore/longshore/internal/sleep/uffd"
)

// server supplies the pages of spaces. One goroutine uses it.
type server struct {
	index  *ledger.Index
	ledger *ledger.Ledger
	reader *ledger.Reader
	ahead  *ahead // nil before the first prefetch
	hot    *hot
	spaces []*space
	// reported gets StepShort, StepDamaged and StepForked. It may be nil.
	report func(step string, err error, fd uffd.Space)
	// dropping is set while sleeper.drop removes pages. Such a page is not one that its program discards.
	dropping bool
	block    *ledger.Block // the one in content
	content  []byte
	short    bool // reported
}

// space is an address space of a process.
type space struct {
	number   int
	fd       uffd.Space
	source   *ledger.Space
	segments []segment // in the order of addresses
	has      ledger.Bitmap
	missing  uint64 // bits that are not set
	next     int    // the segment that is prefetched next
	gone     bool
	forked   bool
}

// segment is a run of stored pages at its present address.
type segment struct {
	addr  uint64
	pages uint32
	block int    // in the source
	first uint32 // its first page in the block
	bit   uint64 // of its first page
}

func (s segment) end() uint64 { return s.addr + uint64(s.pages)*ledger.PageSize }

// errForkLost means that the server before has died with the descriptor of a forked process.
var errForkLost = errors.New("the memory of a forked process is lost with the page server that had it")

// newServer makes a server that continues at the place of the ledger. fds are the descriptors of the index's spaces
// and then of the forked ones, in the order of the forks.
func newServer(x *ledger.Index, l *ledger.Ledger, r *ledger.Reader, fds []uffd.Space) (*server, error) {
	s := &server{index: x, ledger: l, reader: r, hot: newHot(nil)}
	if len(fds) < len(x.Spaces) {
		return nil, fmt.Errorf("%d descriptors for %d address spaces", len(fds), len(x.Spaces))
	}
	for i := range x.Spaces {
		if _, err := s.add(&x.Spaces[i], fds[i]); err != nil {
			return nil, err
		}
	}
	forked := fds[len(x.Spaces):]
	for _, m := range l.Moves() {
		switch {
		case m.Space >= len(s.spaces):
			return nil, errors.New("the ledger names an unknown address space")
		case m.Length != 0:
			s.spaces[m.Space].move(m)
			continue
		case len(forked) == 0:
			return nil, errForkLost
		}
		if _, err := s.fork(s.spaces[m.Space], forked[0]); err != nil {
			return nil, err
		}
		forked = forked[1:]
	}
	for _, p := range s.spaces {
		p.count()
	}
	if n, m, ok := l.Unhandled(); ok && n < len(s.spaces) {
		if m.Event == uffd.Fork {
			return nil, errForkLost
		}
		if err := s.handle(s.spaces[n], m); err != nil {
			return nil, err
		}
	}
	l.Handled()
	return s, nil
}

// add makes a space without pages.
func (s *server) add(source *ledger.Space, fd uffd.Space) (*space, error) {
	p := &space{number: len(s.spaces), fd: fd, source: source}
	bit := uint64(0)
	for i, b := range source.Blocks {
		p.segments = append(p.segments, segment{addr: b.Addr, pages: b.Pages, block: i, bit: bit})
		bit += uint64(b.Pages)
	}
	var err error
	if p.has, err = s.ledger.Bitmap(bit); err != nil {
		return nil, err
	}
	p.missing = bit
	s.spaces = append(s.spaces, p)
	return p, nil
}

// fork makes the space of a forked process, which has the same pages as its parent's.
func (s *server) fork(parent *space, fd uffd.Space) (*space, error) {
	p, err := s.add(parent.source, fd)
	if err != nil {
		return nil, err
	}
	p.segments, p.missing, p.forked = slices.Clone(parent.segments), parent.missing, true
	return p, nil
}

// count counts the missing pages by the bitmap.
func (p *space) count() {
	p.missing = 0
	for _, g := range p.segments {
		for i := range uint64(g.pages) {
			if !p.has.Has(g.bit + i) {
				p.missing++
			}
		}
	}
}

// set marks a page that the program has or has discarded.
func (p *space) set(bit uint64) {
	if !p.has.Has(bit) {
		p.has.Set(bit)
		p.missing--
	}
}

// find returns the first segment that ends behind addr.
func (p *space) find(addr uint64) int {
	return sort.Search(len(p.segments), func(i int) bool { return p.segments[i].end() > addr })
}

// removed marks the pages of a range that the program has discarded.
func (p *space) removed(from, to uint64) {
	for i := p.find(from); i < len(p.segments) && p.segments[i].addr < to; i++ {
		g := p.segments[i]
		for k := range uint64(g.pages) {
			if at := g.addr + k*ledger.PageSize; at >= from && at < to {
				p.set(g.bit + k)
			}
		}
	}
}

// move changes the addresses of pages that the program has moved.
func (p *space) move(m ledger.Move) {
	var all []segment
	for _, g := range p.segments {
		for g.pages > 0 {
			part := g
			switch {
			case g.end() <= m.From || g.addr >= m.From+m.Length:
			case g.addr < m.From:
				part.pages = uint32((m.From - g.addr) / ledger.PageSize)
			default:
				part.pages = uint32((min(g.end(), m.From+m.Length) - g.addr) / ledger.PageSize)
				part.addr = m.To + (g.addr - m.From)
			}
			all = append(all, part)
			g.addr += uint64(part.pages) * ledger.PageSize
			g.first += part.pages
			g.bit += uint64(part.pages)
			g.pages -= part.pages
		}
	}
	slices.SortFunc(all, func(a, b segment) int {
		if a.addr < b.addr {
			return -1
		}
		return 1
	})
	p.segments, p.next = all, 0
}

// errChanging means that the server must read an event first.
var errChanging = errors.New("the address space is changing")

// supply supplies the missing pages of a part of a segment: pages from to to, counted in it. It returns
// errChanging, ENOMEM, or an error of the file.
func (s *server) supply(p *space, g segment, from, to uint32) error {
	for at := from; at < to; {
		if p.has.Has(g.bit + uint64(at)) {
			at++
			continue
		}
		n := at + 1
		for n < to && !p.has.Has(g.bit+uint64(n)) {
			n++
		}
		b, err := s.read(p, g)
		if err != nil {
			return err
		}
		run := b[uint64(g.first+at)*ledger.PageSize : uint64(g.first+n)*ledger.PageSize]
		done, err := p.fd.Copy(g.addr+uint64(at)*ledger.PageSize, run)
		for range done / ledger.PageSize {
			p.set(g.bit + uint64(at))
			at++
		}
		s.ledger.Count(0, uint64(done/ledger.PageSize))
		page := uffd.Range{Addr: g.addr + uint64(at)*ledger.PageSize, Len: ledger.PageSize}
		switch {
		case err == nil || at == n:
		case errors.Is(err, unix.EEXIST): // an earlier server has supplied it, and did not come to say so
			p.set(g.bit + uint64(at))
			_ = p.fd.Wake(page)
			at++
		case errors.Is(err, unix.EAGAIN):
			if done == 0 {
				return errChanging
			}
		case errors.Is(err, unix.ESRCH):
			p.leave()
			return nil
		case errors.Is(err, unix.ENOENT):
			// The mapping was divided or is gone. One page tells which.
			if n-at == 1 {
				p.set(g.bit + uint64(at))
				_ = p.fd.Wake(page)
				at++
				continue
			}
			for k := at; k < n; k++ {
				if err := s.supply(p, g, k, k+1); err != nil || p.gone {
					return err
				}
			}
			at = n
		default:
			return err
		}
	}
	return nil
}

// read returns the content of a segment's block.
func (s *server) read(p *space, g segment) ([]byte, error) {
	b := &p.source.Blocks[g.block]
	if s.block == b {
		return s.content, nil
	}
	s.block = nil
	content, err := s.reader.Read(*b, s.content)
	if err == nil {
		s.block, s.content = b, content
	}
	return content, err
}

// leave ends a space: its process has ended, or executes another program.
func (p *space) leave() { p.gone, p.missing, p.segments = true, 0, nil }

// fault supplies the page at addr, and its neighbours in the segment.
func (s *server) fault(p *space, addr uint64) error {
	addr &^= ledger.PageSize - 1
	s.ledger.Count(1, 0)
	if i := p.find(addr); i < len(p.segments) && p.segments[i].addr <= addr {
		g := p.segments[i]
		k := uint32((addr - g.addr) / ledger.PageSize)
		if !p.has.Has(g.bit + uint64(k)) {
			s.hot.fault(p, g, addr)
			p.next = i + 1 // programs use neighbours next
			if err := s.supply(p, g, k, k+1); err != nil || p.gone {
				return err
			}
			if err := s.supply(p, g, 0, g.pages); err != nil && !errors.Is(err, errChanging) && !errors.Is(err, unix.ENOMEM) {
				return err
			}
			return nil
		}
	}
	page := uffd.Range{Addr: addr, Len: ledger.PageSize}
	_, err := p.fd.Zero(page)
	switch {
	case errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOENT):
		return p.fd.Wake(page)
	case errors.Is(err, unix.EAGAIN):
		return errChanging
	case errors.Is(err, unix.ESRCH):
		p.leave()
		return nil
	}
	return err
}

// handle handles a message.
func (s *server) handle(p *space, m *uffd.Message) error {
	switch m.Event {
	case uffd.Fault:
		err := s.fault(p, m.Args[1])
		if errors.Is(err, errChanging) { // The thread's next try is a new message.
			page := uffd.Range{Addr: m.Args[1] &^ (ledger.PageSize - 1), Len: ledger.PageSize}
			return p.fd.Wake(page)
		}
		return err
	case uffd.Remove, uffd.Unmap:
		if !s.dropping {
			p.removed(m.Args[0], m.Args[1])
		}
	case uffd.Remap:
		mv := ledger.Move{Space: p.number, From: m.Args[0], To: m.Args[1], Length: m.Args[2]}
		if err := s.ledger.Moved(mv); err != nil {
			return err
		}
		p.move(mv)
	case uffd.Fork:
		return s.forked(p, uffd.Space(m.Forked()))
	}
	return nil
}

// forked takes over the descriptor of a forked process.
func (s *server) forked(parent *space, fd uffd.Space) error {
	child, err := s.fork(parent, fd)
	if err != nil {
		return err
	}
	copy(child.has, parent.has)
	if err := s.ledger.Moved(ledger.Move{Space: parent.number, Fork: int(fd)}); err != nil {
		return err
	}
	if s.report != nil {
		s.report(StepForked, nil, fd)
	}
	return nil
}

// missing returns the number of missing pages of all spaces.
func (s *server) missing() (n uint64) {
	for _, p := range s.spaces {
		n += p.missing
	}
	return n
}

// forever is the timeout of a poll that waits for messages only, and again that of one before the next prefetch.
const (
	forever = -1
	again   = 200 // milliseconds
)

// poll handles the pending messages. It first waits for one, or until a descriptor of also is readable, for at most
// timeout milliseconds. ready reports these descriptors.
func (s *server) poll(timeout int, also []int) (ready []bool, err error) {
	fds := make([]unix.PollFd, 0, len(s.spaces)+len(also))
	if s.ahead != nil {
		also = append(slices.Clone(also), s.ahead.event)
	}
	for _, fd := range also {
		fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
	}
	var live []*space
	for _, p := range s.spaces {
		if !p.gone {
			live = append(live, p)
			fds = append(fds, unix.PollFd{Fd: int32(p.fd), Events: unix.POLLIN})
		}
	}
	if _, err := unix.Poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
		return nil, err
	}
	for i := range also {
		ready = append(ready, fds[i].Revents != 0)
	}
	for i, p := range live {
		if fds[len(also)+i].Revents&unix.POLLIN == 0 {
			if fds[len(also)+i].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
				p.leave()
			}
			continue
		}
		if err := s.receive(p); err != nil {
			return ready, err
		}
	}
	return ready, nil
}

// receive reads the messages of a space one by one, each into the ledger.
func (s *server) receive(p *space) error {
	for range 64 {
		m := s.ledger.Inbox(p.number)
		n, err := p.fd.Read(m.Bytes())
		if err != nil {
			p.leave()
			s.ledger.Handled()
			return nil //nolint:nilerr // the address space is gone
		}
		if n == 0 {
			s.ledger.Handled()
			return nil
		}
		err = s.handle(p, m)
		if errors.Is(err, unix.ENOMEM) {
			// The thread stays where it is. It gets another message when it is woken.
			s.fail(StepShort, err)
			err = p.fd.Wake(uffd.Range{Addr: m.Args[1] &^ (ledger.PageSize - 1), Len: ledger.PageSize})
		}
		if err != nil {
			return err
		}
		s.ledger.Handled()
	}
	return nil
}

func (s *server) fail(step string, err error) {
	if s.report != nil && !s.short {
		s.short = step == StepShort
		s.report(step, err, -1)
	}
}

// prefetch restores missing pages ahead, those of parents before those of forked processes. It returns the timeout of the
// poll after it.
func (s *server) prefetch() (timeout int, err error) {
	if s.ahead == nil {
		if s.ahead, err = newAhead(s.reader); err != nil {
			return 0, err
		}
	}
	timeout = forever // the next decoded block ends the poll
	for s.ahead.room() {
		p, g := s.hot.next(s)
		if p == nil {
			if wait := s.hot.wait(); wait > 0 {
				timeout = int(wait/time.Millisecond) + 1
				break
			}
			p, g = s.choose()
		}
		if p == nil {
			break
		}
		s.ahead.ask(p, g)
	}
	d := s.ahead.take()
	if d == nil {
		return timeout, nil
	}
	if d.err != nil {
		return 0, d.err
	}
	own := s.content
	s.block, s.content = d.block, d.content
	err = s.place(d)
	s.block, s.content = nil, own // the content is d's: it may be put back, or decoded into
	switch {
	case errors.Is(err, errChanging):
		s.ahead.putBack(d)
		return 0, nil
	case errors.Is(err, unix.ENOMEM): // only a thread that waits for a page would be a reason to give up
		s.ahead.putBack(d)
		return again, nil
	}
	s.ahead.free(d)
	return 0, err
}

// place supplies the pages of a decoded block, where they are now.
func (s *server) place(d *decoded) error {
	supply := func(g segment) error { return s.supply(d.space, g, 0, g.pages) }
	if i := d.space.find(d.addr); i < len(d.space.segments) && d.space.segments[i].addr == d.addr && &d.space.source.Blocks[d.space.segments[i].block] == d.block {
		return supply(d.space.segments[i])
	}
	for _, g := range slices.Clone(d.space.segments) { // it was moved meanwhile
		if &d.space.source.Blocks[g.block] != d.block {
			continue
		}
		if err := supply(g); err != nil {
			return err
		}
	}
	return nil
}

// choose returns the next segment with missing pages that is not decoded yet; nil if there is none.
func (s *server) choose() (*space, segment) {
	for _, forked := range []bool{false, true} {
		for _, p := range s.spaces {
			if p.gone || p.missing == 0 || p.forked != forked {
				continue
			}
			for range p.segments {
				if p.next >= len(p.segments) {
					p.next = 0
				}
				g := p.segments[p.next]
				p.next++
				if p.lacks(g) && !s.ahead.has(p, &p.source.Blocks[g.block]) {
					return p, g
				}
			}
		}
	}
	return nil, segment{}
}

// lacks reports whether a page of a segment is missing.
func (p *space) lacks(g segment) bool {
	for i := range uint64(g.pages) {
		if !p.has.Has(g.bit + i) {
			return true
		}
	}
	return false
}
