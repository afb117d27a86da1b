package hostvsock

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/guest/vsock"
)

// open connects a host's program to a port of the guest.
func (g *guest) open(port uint32) (host *net.UnixConn, h header) {
	g.t.Helper()
	type result struct {
		c   net.Conn
		err error
	}
	opened := make(chan result, 1)
	go func() {
		c, err := vsock.DialHybrid(g.t.Context(), g.dev.opts.Host, port)
		opened <- result{c, err}
	}()
	h, _ = g.want(opRequest)
	if h.dstPort != port || h.srcPort < firstPort || h.kind != stream {
		g.t.Errorf("the request is %+v", h)
	}
	h = header{srcPort: h.dstPort, dstPort: h.srcPort}
	g.send(header{srcPort: h.srcPort, dstPort: h.dstPort, op: opResponse}, "")
	r := <-opened
	if r.err != nil {
		g.t.Fatal(r.err)
	}
	g.t.Cleanup(func() { _ = r.c.Close() })
	return r.c.(*net.UnixConn), h
}

func with(h header, op uint16, flags uint32) header {
	h.op, h.flags = op, flags
	return h
}

func text(n int) string { return strings.Repeat("0123456789abcde\n", n/16) }

// TestAConnectionOfTheHost: data in both directions, and an end of each.
func TestAConnectionOfTheHost(t *testing.T) {
	g := newGuest(t)
	host, h := g.open(1024)
	const much = 300 << 10 // more than any buffer
	go func() { _, _ = io.WriteString(host, text(much)) }()
	if g.data(much) != text(much) {
		t.Error("the guest gets other data")
	}
	read := make(chan []byte, 1)
	go func() {
		all, err := io.ReadAll(host)
		if err != nil {
			t.Error(err)
		}
		read <- all
	}()
	// The guest's data, as the device gives credit.
	data, sent, took := text(much), uint32(0), uint32(0)
	h.fwdCnt = much
	for len(data) > 0 {
		for sent-took+16<<10 > buffer {
			u, _ := g.want(opCreditUpdate)
			took = u.fwdCnt
		}
		n := min(16<<10, len(data))
		g.send(with(h, opData, 0), data[:n])
		sent += uint32(n)
		data = data[n:]
	}
	g.send(with(h, opShutdown, noSend), "")
	if all := <-read; string(all) != text(much) {
		t.Errorf("the host gets %d bytes", len(all))
	}
	if _, err := io.WriteString(host, "still"); err != nil {
		t.Error(err)
	}
	if got := g.data(5); got != "still" {
		t.Errorf("after its end the guest gets %q", got)
	}
	if err := host.Close(); err != nil {
		t.Error(err)
	}
	if u, _ := g.want(opShutdown); u.flags != noSend {
		t.Errorf("the host's end is %+v", u)
	}
	g.send(with(h, opShutdown, noSend|noReceive), "")
	g.want(opReset)
	g.send(with(h, opData, 0), "late")
	g.want(opReset)
}

// TestConnectionsOfTheGuest: to a port of the host that listens, and to one that does not.
func TestConnectionsOfTheGuest(t *testing.T) {
	g := newGuest(t)
	l := g.listen("_1030")
	g.send(header{srcPort: 5, dstPort: 1029, op: opRequest}, "")
	if h, _ := g.want(opReset); h.srcPort != 1029 || h.dstPort != 5 {
		t.Errorf("refused by %+v", h)
	}
	to := header{srcPort: 5, dstPort: 1030}
	g.send(with(to, opRequest, 0), "")
	host, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	g.want(opResponse)
	g.send(with(to, opData, 0), "a line\n")
	b := make([]byte, 7)
	if _, err := io.ReadFull(host, b); err != nil || string(b) != "a line\n" {
		t.Errorf("%q, %v", b, err)
	}
	g.send(with(to, opCreditRequest, 0), "")
	if h, _ := g.want(opCreditUpdate); h.fwdCnt != 7 {
		t.Errorf("the credit is %+v", h)
	}
	g.send(with(to, opReset, 0), "")
	if _, err := host.Read(b); !errors.Is(err, io.EOF) {
		t.Errorf("after a reset the host reads: %v", err)
	}
}

// TestNoMoreThanTheGuestHasRoomFor: the device waits for credit.
func TestNoMoreThanTheGuestHasRoomFor(t *testing.T) {
	g := newGuest(t)
	l := g.listen("_1030")
	to := header{srcPort: 5, dstPort: 1030, bufAlloc: 10}
	g.send(with(to, opRequest, 0), "")
	host, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = host.Close() }()
	g.want(opResponse)
	if _, err := io.WriteString(host, "0123456789abcdef"); err != nil {
		t.Fatal(err)
	}
	if _, data := g.want(opData); data != "0123456789" {
		t.Errorf("the first part is %q", data)
	}
	to.fwdCnt = 4
	g.send(with(to, opCreditUpdate, 0), "")
	if _, data := g.want(opData); data != "abcd" {
		t.Errorf("the second part is %q", data)
	}
	to.fwdCnt = 14
	g.send(with(to, opCreditUpdate, 0), "")
	if _, data := g.want(opData); data != "ef" {
		t.Errorf("the last part is %q", data)
	}
}

// TestARefusedConnection: the host's program gets an error, also without a running ring.
func TestARefusedConnection(t *testing.T) {
	g := newGuest(t)
	refused := make(chan error, 1)
	dial := func() {
		_, err := vsock.DialHybrid(t.Context(), g.dev.opts.Host, 99)
		refused <- err
	}
	go dial()
	h, _ := g.want(opRequest)
	g.send(header{srcPort: h.dstPort, dstPort: h.srcPort, op: opReset}, "")
	if err := <-refused; !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("refused with %v", err)
	}
	host, _ := g.open(1024)
	if base := g.say(getVringBase, 0, words(uint32(fromGuest), uint32(0))); len(base) != 8 || base[4] != byte(g.made[fromGuest]) {
		t.Errorf("the ring stopped at %x, want %d", base, g.made[fromGuest])
	}
	if _, err := host.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("without its ring the host reads: %v", err)
	}
	go dial()
	if err := <-refused; !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("without a guest it is refused with %v", err)
	}
}

// TestMemoryIsPluggedIn: the rings run in new mappings, and use new memory.
func TestMemoryIsPluggedIn(t *testing.T) {
	g := newGuest(t)
	host, h := g.open(1024)
	g.send(with(h, opData, 0), "one")
	g.say(setMemTable, wantsReply, words(uint32(2), uint32(0), uint64(guestAt), uint64(buffers), uint64(qemuAt), uint64(0),
		uint64(guestAt+buffers), uint64(memLen-buffers), uint64(qemuAt+buffers), uint64(buffers)), g.fd, g.fd)
	g.send(with(h, opData, 0), "two")
	b := make([]byte, 6)
	if _, err := io.ReadFull(host, b); err != nil || string(b) != "onetwo" {
		t.Errorf("%q, %v", b, err)
	}
}

// TestPackets: packets that break rules get the expected answers.
func TestPackets(t *testing.T) {
	for name, c := range map[string]struct {
		packets []header
		answers []uint16
	}{
		"to another machine": {packets: []header{{srcCID: testCID, dstCID: 9, kind: stream, op: opRequest}}},
		"of another machine": {packets: []header{{srcCID: 1, dstCID: hostCID, kind: stream, op: opRequest}}},
		"of another type":    {packets: []header{{kind: 2, op: opRequest}}, answers: []uint16{opReset}},
		"to no connection":   {packets: []header{{kind: stream, op: opData}}, answers: []uint16{opReset}},
		"a reset":            {packets: []header{{kind: stream, op: opReset}}},
		"an unknown kind":    {packets: []header{{kind: stream, op: 99}}, answers: []uint16{opReset}},
		"before the answer":  {packets: []header{{kind: stream, op: opRequest}, {kind: stream, op: opData}}, answers: []uint16{opReset}},
		"twice requested":    {packets: []header{{kind: stream, op: opRequest}, {kind: stream, op: opRequest}}, answers: []uint16{opReset}},
	} {
		t.Run(name, func(t *testing.T) {
			hold := make(chan struct{})
			m := newMux(testCID, func(uint32) (net.Conn, error) { <-hold; return nil, errors.New("nobody") }, func() {})
			m.serve(true)
			for _, h := range c.packets {
				if h.srcCID == 0 {
					h.srcCID, h.dstCID = testCID, hostCID
				}
				h.srcPort, h.dstPort = 5, 1030
				if err := m.receive(&h, nil); err != nil {
					t.Fatal(err)
				}
			}
			var got []uint16
			for m.next(100, func(h *header, _ []byte) { got = append(got, h.op) }) {
				continue
			}
			if len(got) != len(c.answers) || len(got) > 0 && got[0] != c.answers[0] {
				t.Errorf("answers %v, want %v", got, c.answers)
			}
			close(hold)
			m.close()
		})
	}
}

// TestTooMuch: a guest that sends more than it may loses the connection, and one that
// takes no answers the device.
func TestTooMuch(t *testing.T) {
	here, there := net.Pipe()
	m := newMux(testCID, func(uint32) (net.Conn, error) { return here, nil }, func() {})
	defer m.close()
	m.serve(true)
	h := header{srcCID: testCID, dstCID: hostCID, srcPort: 5, dstPort: 1030, kind: stream, op: opRequest}
	if err := m.receive(&h, nil); err != nil {
		t.Fatal(err)
	}
	m.mu.Lock()
	c := m.conns[ports{1030, 5}]
	m.mu.Unlock()
	<-c.opened
	h.op, h.length = opData, maxPayload
	for range buffer/maxPayload + 1 {
		if err := m.receive(&h, make([]byte, maxPayload)); err != nil {
			t.Fatal(err)
		}
	}
	<-c.ended
	if n, err := io.Copy(io.Discard, there); err != nil || n > buffer {
		t.Errorf("the host got %d bytes, %v", n, err)
	}
	h.length = 0
	for range maxControl {
		if err := m.receive(&h, nil); err != nil {
			if !errors.Is(err, errFlood) {
				t.Error(err)
			}
			return
		}
	}
	t.Error("the device takes packets for ever")
}

// FuzzPackets: a guest's packets parse to themselves, and leave no connection.
func FuzzPackets(f *testing.F) {
	request := header{srcCID: testCID, dstCID: hostCID, srcPort: 5, dstPort: 1030, kind: stream, op: opRequest}
	f.Add(request.append(nil))
	f.Add(append(request.append(nil), request.append(nil)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := newMux(testCID, func(uint32) (net.Conn, error) { return nil, errors.New("nobody") }, func() {})
		m.serve(true)
		for len(b) > 0 {
			h, payload, err := parse(b[:min(len(b), headerLen+16)])
			if err != nil {
				break
			}
			if again := h.append(nil); !bytes.Equal(again, b[:headerLen]) {
				t.Errorf("%x became %x", b[:headerLen], again)
			}
			if err := m.receive(&h, payload); err != nil {
				break
			}
			b = b[headerLen+len(payload):]
		}
		m.close()
		if len(m.conns) > 0 {
			t.Errorf("%d connections are left", len(m.conns))
		}
	})
}

// FuzzMessages: QEMU's messages, without descriptors.
func FuzzMessages(f *testing.F) {
	f.Add(uint32(getFeatures), []byte{})
	f.Add(uint32(setVringAddr), make([]byte, 40))
	f.Add(uint32(getConfig), make([]byte, 20))
	f.Add(uint32(setMemTable), []byte{1, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, what uint32, body []byte) {
		d := &Device{}
		d.mux = newMux(testCID, nil, func() {})
		for _, flags := range []uint32{version, version | wantsReply} {
			_ = d.serve(io.Discard, &message{what: what, flags: flags, body: bytes.Clone(body)})
		}
		if d.rings[0].running() || d.rings[1].running() {
			t.Error("a ring runs without memory")
		}
	})
}

// FuzzRing: any memory of a guest's driver.
func FuzzRing(f *testing.F) {
	f.Add(make([]byte, 2*ringRoom))
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := make([]byte, 2*ringRoom)
		copy(mem, b)
		m := memory{{guest: guestAt, user: qemuAt, mem: mem}}
		r := &ring{num: ringSize, descAddr: qemuAt, availAddr: qemuAt + 0x400, usedAddr: qemuAt + 0x800}
		if err := r.start(m); err != nil {
			t.Fatal(err)
		}
		for range 2 * ringSize {
			head, out, in, err := r.take(m)
			if err != nil || len(out)+len(in) == 0 {
				break
			}
			for _, part := range append(out, in...) {
				if len(part) > len(mem) {
					t.Fatalf("%d bytes of memory", len(part))
				}
			}
			r.give(head, 1)
		}
	})
}
