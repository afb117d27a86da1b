package names

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/splice"
	"github.com/longshore/longshore/internal/shortage"
)

// The limits of one sandbox: its programs are not trusted. budget.go has those of its questions.
const (
	maxForwarded = 64 // questions that wait for an answer of others
	maxStreams   = 16 // connections over TCP
)

const (
	upstreamTime = 2 * time.Second // how long one server has to answer
	streamTime   = 10 * time.Second
	maxServers   = 3 // of upstream servers, as resolvers do
)

// maxPacket bounds an upstream answer over UDP, because many wait at once. For a longer one the
// client must use TCP.
const maxPacket = maxUDP

// box answers one sandbox.
type box struct {
	udp      net.PacketConn
	tcp      net.Listener
	ctx      context.Context //nolint:containedctx // it ends with the sandbox, not with a call
	cancel   context.CancelCauseFunc
	ended    sync.WaitGroup
	forwards chan struct{}
	streams  chan struct{}
	refused  atomic.Uint64 // questions that were answered with a failure, and connections that were closed, at a bound
	answer   answerer
	budget   *budget
	patience time.Duration                                // for one server
	wait     func(ctx context.Context, networks []string) // before the first question; nil for no wait

	splices atomic.Pointer[splice.Server] // nil without egress.VerifySNI

	mu   sync.Mutex // guards asks, limit, files, limits
	asks asks
	// limit filters questions and answers; nil for a sandbox without an egress list.
	limit *restricted
	files []*os.File // of limit
	// limits is closed and replaced with limit.
	limits chan struct{}
}

// asks are the networks with names that a sandbox sees, and the servers for all other questions.
type asks struct {
	networks []string
	upstream []netip.AddrPort
}

var errDropped = errors.New("the sandbox has no name server any more")

// answerer answers questions from the zones of networks, as Answer does.
type answerer func(networks []string, question []byte, stream bool) ([]byte, error)

// newBox returns one that does not answer yet. The sockets are the box's.
func newBox(udp net.PacketConn, tcp net.Listener, a asks, answer answerer, p *pool) *box {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &box{
		udp: udp, tcp: tcp, ctx: ctx, cancel: cancel, asks: a, answer: answer, patience: upstreamTime, budget: newBudget(p),
		limits: make(chan struct{}), forwards: make(chan struct{}, maxForwarded), streams: make(chan struct{}, maxStreams),
	}
}

// serve starts to answer.
func (b *box) serve() {
	for _, answer := range []func(){b.packets, b.connections} {
		b.ended.Go(func() {
			if b.wait != nil {
				b.wait(b.ctx, b.whom().networks)
			}
			answer()
		})
	}
}

// close ends the box. Its sockets keep the sandbox's network namespace no longer when it returns.
func (b *box) close() {
	b.cancel(errDropped)
	_ = b.udp.Close()
	_ = b.tcp.Close()
	if s := b.splices.Load(); s != nil {
		s.Close()
	}
	b.ended.Wait()
	b.limited(nil, nil)
}

// retire stops to read questions and connections. Those that it has read are answered.
func (b *box) retire() {
	past := time.Unix(1, 0)
	_ = b.udp.SetReadDeadline(past)
	if l, ok := b.tcp.(*net.TCPListener); ok {
		_ = l.SetDeadline(past)
	}
}

func (b *box) set(a asks) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asks = a
}

func (b *box) whom() asks {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asks
}

func (b *box) packets() {
	buf := make([]byte, maxUDP+1)
	for b.budget.wait(b.ctx) {
		n, from, err := b.udp.ReadFrom(buf)
		if err != nil {
			if b.ctx.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			continue // an earlier answer could not be delivered
		}
		if n > maxUDP { // its end is lost
			_, _ = b.udp.WriteTo(refusal(buf[:n], dnsmessage.RCodeFormatError), from)
			continue
		}
		answer, then, err := b.begin(buf[:n], "udp")
		if err != nil {
			continue
		}
		if answer != nil {
			_, _ = b.udp.WriteTo(answer, from)
			continue
		}
		done, ok := b.mayForward()
		if !ok {
			b.refused.Add(1)
			_, _ = b.udp.WriteTo(failed(buf[:n]), from)
			continue
		}
		question := append([]byte(nil), buf[:n]...)
		b.ended.Go(func() {
			defer done()
			_, _ = b.udp.WriteTo(then(question), from)
		})
	}
}

// begin returns the answer to a question that the zones have, or that the sandbox's list refuses. Otherwise then forwards the
// question and returns the answer.
func (b *box) begin(question []byte, network string) (answer []byte, then func([]byte) []byte, err error) {
	a, limit := b.ready()
	answer, err = b.answer(a.networks, question, network == "tcp")
	if err != nil {
		return nil, nil, err
	}
	if limit == nil {
		return answer, func(question []byte) []byte { return b.forward(network, a.upstream, question) }, nil
	}
	if answer != nil && limit.cluster() {
		return answer, nil, nil
	}
	q, refused := limit.admit(question)
	if refused != nil {
		return refused, nil, nil
	}
	if answer == nil {
		return nil, func(question []byte) []byte {
			return limit.pass(q, question, b.forward(network, a.upstream, question), false)
		}, nil
	}
	return limit.pass(q, question, answer, true), nil, nil
}

// ready returns the networks, servers and filter of the next question. A new process gets a filter's socket for the rules just
// after the filter. Questions wait for it, for a limited time.
func (b *box) ready() (asks, *restricted) {
	late := time.NewTimer(zonesTime)
	defer late.Stop()
	for {
		b.mu.Lock()
		a, limit, limits := b.asks, b.limit, b.limits
		b.mu.Unlock()
		if limit == nil || limit.gate != nil {
			return a, limit
		}
		select {
		case <-limits:
		case <-late.C:
			return a, limit
		case <-b.ctx.Done():
			return a, limit
		}
	}
}

// limited sets the filter of the sandbox's egress list, with its files, and closes those of the last one.
func (b *box) limited(r *restricted, files []*os.File) {
	b.mu.Lock()
	old := b.files
	b.limit, b.files = r, files
	close(b.limits)
	b.limits = make(chan struct{})
	b.mu.Unlock()
	closeAll(old)
}

// mayForward reports whether one more question may be forwarded over UDP. done ends it.
func (b *box) mayForward() (done func(), ok bool) {
	shared, ok := b.budget.pool.forward(len(b.forwards))
	if !ok {
		return nil, false
	}
	select {
	case b.forwards <- struct{}{}:
		return func() { <-b.forwards; shared() }, true
	default:
		shared()
		return nil, false
	}
}

// unanswered returns how many questions and connections were not answered because of a bound. The kernel
// counts the packets that it drops while the budget is used up.
func (b *box) unanswered() uint64 {
	n := b.refused.Load()
	udp, ok := b.udp.(syscall.Conn)
	if !ok {
		return n
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return n
	}
	_ = raw.Control(func(fd uintptr) {
		drops, err := droppedBy(int(fd))
		if err == nil {
			n += uint64(drops)
		}
	})
	return n
}

// droppedBy returns how many packets the kernel has dropped for want of room in a socket.
func droppedBy(fd int) (uint32, error) {
	var info [9]uint32 // SK_MEMINFO_VARS
	size := uint32(unsafe.Sizeof(info))
	if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0); e != 0 {
		return 0, e
	}
	return info[8], nil // SK_MEMINFO_DROPS
}

func (b *box) connections() {
	for b.budget.wait(b.ctx) {
		conn, err := shortage.Accept(b.tcp.Accept)
		if err != nil {
			return
		}
		select {
		case b.streams <- struct{}{}:
		default:
			b.refused.Add(1)
			_ = conn.Close()
			continue
		}
		b.ended.Go(func() {
			defer func() { <-b.streams }()
			stop := context.AfterFunc(b.ctx, func() { _ = conn.Close() })
			defer stop()
			defer func() { _ = conn.Close() }()
			b.stream(conn)
		})
	}
}

// stream answers the questions of one connection, one after the other.
func (b *box) stream(conn net.Conn) {
	for b.budget.wait(b.ctx) {
		if conn.SetDeadline(time.Now().Add(streamTime)) != nil {
			return
		}
		question, err := readStream(conn, maxUDP)
		if err != nil {
			return
		}
		answer, then, err := b.begin(question, "tcp")
		if err != nil {
			return
		}
		if answer == nil {
			answer = then(question)
		}
		if writeStream(conn, answer) != nil {
			return
		}
	}
}

// readStream reads a message with its length before it.
func readStream(r io.Reader, limit int) ([]byte, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:]))
	if n > limit {
		return nil, errIgnored
	}
	msg := make([]byte, n)
	_, err := io.ReadFull(r, msg)
	return msg, err
}

func writeStream(w io.Writer, msg []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg))), msg...))
	return err
}

// forward returns the answer of the first server that gives one. After SERVFAIL or REFUSED it tries
// the next, as resolvers do. The question gets an id of our own, and a port that the kernel chooses,
// so that forged answers are refused.
func (b *box) forward(network string, servers []netip.AddrPort, question []byte) []byte {
	own := append([]byte(nil), question...)
	_, _ = rand.Read(own[:2]) // never fails
	var declined []byte
	for _, s := range servers[:min(len(servers), maxServers)] {
		answer, err := b.ask(network, s, own)
		if err == nil {
			copy(answer, question[:2])
			if !declines(answer) {
				return answer
			}
			declined = answer
		}
		if b.ctx.Err() != nil {
			break
		}
	}
	if declined != nil {
		return declined
	}
	return failed(question)
}

// declines reports whether an answer says that another server may know better.
func declines(answer []byte) bool {
	var p dnsmessage.Parser
	head, err := p.Start(answer)
	return err == nil && (head.RCode == dnsmessage.RCodeServerFailure || head.RCode == dnsmessage.RCodeRefused)
}

func (b *box) ask(network string, server netip.AddrPort, question []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(b.ctx, b.patience)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if network == "tcp" {
		if err := writeStream(conn, question); err != nil {
			return nil, err
		}
		answer, err := readStream(conn, 1<<16-1)
		if err == nil && !answers(question, answer) {
			err = errIgnored
		}
		return answer, err
	}
	if _, err := conn.Write(question); err != nil {
		return nil, err
	}
	buf := make([]byte, maxPacket+1)
	for {
		n, err := conn.Read(buf)
		switch {
		case err != nil:
			return nil, err
		case !answers(question, buf[:n]):
		case n > maxPacket:
			return cut(question), nil
		default:
			return buf[:n], nil
		}
	}
}
