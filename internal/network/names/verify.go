package names

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/egress"
	"github.com/longshore/longshore/internal/network/splice"
)

// verifies reports whether connections to names are verified.
func (r *Restriction) verifies() bool { return r != nil && slices.Contains(r.List, egress.VerifySNI) }

// SpliceAddresses returns the addresses at which the process verifies connections, of IPv4 and IPv6.
func SpliceAddresses() [2]netip.Addr { return [2]netip.Addr{Address(), netip.IPv6Loopback()} }

// verifyLocked sends the process listeners in the namespace of a sandbox, and redirects the connections that are verified
// to them. They are new ones each time: connections at those of an earlier process end with it. Preconditions: c.mu is held.
func verifyLocked(c *Client, b Box) error {
	var pairs [2]splice.Pair
	var ports [2]uint16
	err := within(b.Namespace, func() (err error) {
		for i, at := range SpliceAddresses() {
			pairs[i], err = splice.Open(at)
			if i > 0 && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)) { // it has no IPv6
				return nil
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	for i, p := range pairs {
		if p.Listener == nil {
			continue
		}
		if ports[i] = p.Port; err == nil {
			_, err = c.callLocked(request{Op: opVerify, Sandbox: b.Sandbox}, []*os.File{p.Listener, p.Spare})
		}
		err = errors.Join(err, p.Close())
	}
	if err != nil {
		return fmt.Errorf("verify connections: %w", err)
	}
	ns, err := os.Open(b.Namespace)
	if err != nil {
		return fmt.Errorf("%w: %w", errNamespace, err)
	}
	defer func() { _ = ns.Close() }()
	return c.o.Verify(ns, b.Egress.List, ports)
}

// verify gives a box the files of a splice.Pair.
func (b *box) verify(files []*os.File) error {
	if len(files) != 2 {
		return errors.New("two files are needed")
	}
	if b.splices.Load() == nil {
		b.splices.CompareAndSwap(nil, splice.New(b))
	}
	err := b.splices.Load().Add(files[0], files[1])
	if err != nil {
		return fmt.Errorf("verify connections: %w", err)
	}
	return nil
}

// review ends verified connections that the list does not permit any more.
func (b *box) review() {
	if s := b.splices.Load(); s != nil {
		s.Review()
	}
}

func (b *box) current() *restricted {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit
}

// Permit implements splice.Judge. It resolves a name without remembered addresses, as after a start of the process.
func (b *box) Permit(_ context.Context, name string, to netip.AddrPort) string {
	r := b.current()
	switch {
	case r == nil: // the sandbox has no list any more
		return ""
	case !r.list.Has(name, egress.TCP, to.Port()):
		return "the name is not in the list with this port"
	case r.answered(name, to.Addr()):
		return ""
	}
	b.resolve(name, to.Addr())
	if r = b.current(); r != nil && !r.answered(name, to.Addr()) {
		return "the address is not one of the name's"
	}
	return ""
}

// Keep implements splice.Judge.
func (b *box) Keep(name string, port uint16) bool {
	r := b.current()
	return r == nil || r.wanted.Learn || r.list.Has(name, egress.TCP, port)
}

// Opened implements splice.Judge.
func (b *box) Opened(name string, to netip.AddrPort) {
	if r := b.current(); r != nil {
		r.log.add(egress.Record{Kind: egress.RecordOpened, Name: name, Addr: to.Addr(), Proto: "tcp", Port: to.Port()}, "verified "+name+" "+to.String())
	}
}

// Refused implements splice.Judge.
func (b *box) Refused(name string, to netip.AddrPort, reason string) {
	if r := b.current(); r != nil {
		r.log.add(egress.Record{Kind: egress.RecordRefused, Name: name, Addr: to.Addr(), Proto: "tcp", Port: to.Port(), Reason: reason}, "verified "+name+" "+to.String()+" "+reason)
	}
}

// resolve asks for a name, as a program of the sandbox does.
func (b *box) resolve(name string, a netip.Addr) {
	q := dnsmessage.Question{Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}
	if a.Is6() {
		q.Type = dnsmessage.TypeAAAA
	}
	var err error
	if q.Name, err = dnsmessage.NewName(name + "."); err != nil {
		return
	}
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 0, RecursionDesired: true}, Questions: []dnsmessage.Question{q}}
	question, err := m.Pack()
	if err != nil {
		return
	}
	_, then, err := b.begin(question, "udp")
	if err != nil || then == nil {
		return
	}
	if done, ok := b.mayForward(); ok {
		defer done()
		then(question)
	}
}

// maxRemembered bounds the addresses of names that are remembered.
const maxRemembered = 1 << 15

// remember stores that addresses are a name's.
func (r *restricted) remember(name string, list []opening) {
	if !r.list.Verify {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range list {
		r.answerLocked(answer{name, o.addr}, r.now().Add(o.hold))
	}
}

// answerLocked stores one of them. Preconditions: mu is held.
func (r *restricted) answerLocked(a answer, end time.Time) {
	if len(r.answers) >= maxRemembered {
		now := r.now()
		for k, t := range r.answers {
			if t.Before(now) {
				delete(r.answers, k)
			}
		}
		if len(r.answers) >= maxRemembered { // Permit resolves them again
			clear(r.answers)
		}
	}
	if r.answers[a].Before(end) {
		r.answers[a] = end
	}
}

// answered reports whether an address is one of a name's.
func (r *restricted) answered(name string, a netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now().Before(r.answers[answer{name, a}])
}

// takeAnswers takes those of an earlier filter over.
func (r *restricted) takeAnswers(old *restricted) {
	if !r.list.Verify || old == r {
		return
	}
	old.mu.Lock()
	defer old.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	for a, end := range old.answers {
		r.answerLocked(a, end)
	}
}
