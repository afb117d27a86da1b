package hostvsock

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// The address and the layout of the test guest's memory.
const (
	guestAt  = 0x4000_0000
	qemuAt   = 0x7f00_0000_0000
	ringSize = 16
	ringRoom = 0x1000  // for all parts of a ring
	bufRoom  = 0x10000 // for each buffer
	buffers  = 0x10000
	rxLen    = 3776 // as Linux 6.1 has it
	memLen   = buffers + 2*ringSize*bufRoom
	testCID  = 7
)

// guest plays QEMU and the guest's driver for a device.
type guest struct {
	t          *testing.T
	dev        *Device
	qemu       *net.UnixConn
	fd         int // of mem
	mem        []byte
	kick, call [2]*os.File
	made, seen [2]uint16 // of each ring: buffers made available, and taken back

	buf []byte // of sent packets' payloads, not yet taken by a test
}

// newGuest starts a device with a guest that takes packets.
func newGuest(t *testing.T) *guest {
	t.Helper()
	dir := t.TempDir()
	dev, err := Start(Options{Control: dir + "/control", Host: dir + "/host", CID: testCID})
	if err != nil {
		t.Fatal(err)
	}
	g := &guest{t: t, dev: dev}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("the device: %v", err)
		}
		_ = g.qemu.Close()
	})
	if g.qemu, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: dir + "/control", Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	g.handshake()
	return g
}

// say sends a message of QEMU, and returns the answer's body when there is one.
func (g *guest) say(what, flags uint32, body []byte, files ...int) []byte {
	g.t.Helper()
	le := binary.LittleEndian
	b := le.AppendUint32(nil, what)
	b = le.AppendUint32(b, version|flags)
	b = le.AppendUint32(b, uint32(len(body)))
	var oob []byte
	if len(files) > 0 {
		oob = unix.UnixRights(files...)
	}
	if _, _, err := g.qemu.WriteMsgUnix(append(b, body...), oob, nil); err != nil {
		g.t.Fatal(err)
	}
	switch what {
	case getFeatures, getProtocolFeatures, getVringBase, getConfig:
	default:
		if flags&wantsReply == 0 {
			return nil
		}
	}
	head := make([]byte, messageHead)
	if _, err := io.ReadFull(g.qemu, head); err != nil {
		g.t.Fatalf("the answer to %d: %v", what, err)
	}
	if le.Uint32(head) != what || le.Uint32(head[4:]) != version|isReply {
		g.t.Fatalf("the answer to %d begins with %x", what, head)
	}
	answer := make([]byte, le.Uint32(head[8:]))
	if _, err := io.ReadFull(g.qemu, answer); err != nil {
		g.t.Fatal(err)
	}
	return answer
}

func words(w ...any) (b []byte) {
	for _, v := range w {
		switch v := v.(type) {
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, v)
		case uint64:
			b = binary.LittleEndian.AppendUint64(b, v)
		default:
			panic(fmt.Sprintf("%T", v))
		}
	}
	return b
}

// handshake sends QEMU's messages until rings run.
func (g *guest) handshake() {
	g.t.Helper()
	le := binary.LittleEndian
	if got := le.Uint64(g.say(getFeatures, 0, nil)); got != features {
		g.t.Errorf("features %#x", got)
	}
	if got := le.Uint64(g.say(getProtocolFeatures, 0, nil)); got != protocolFeatures {
		g.t.Errorf("features of the protocol %#x", got)
	}
	g.say(setProtocolFeatures, 0, words(uint64(protocolFeatures)))
	g.say(setOwner, 0, nil)
	if got := g.say(getConfig, 0, words(uint32(0), uint32(8), uint32(0), uint64(0))); le.Uint64(got[configHead:]) != testCID {
		g.t.Errorf("the registers are %x", got)
	}
	g.say(setFeatures, 0, words(uint64(features)))
	g.remember()
	for i := range 2 {
		at := qemuAt + uint64(i)*ringRoom
		g.say(setVringNum, 0, words(uint32(i), uint32(ringSize)))
		g.say(setVringBase, 0, words(uint32(i), uint32(0)))
		g.say(setVringAddr, wantsReply, words(uint32(i), uint32(0), at, at+0x800, at+0x400, uint64(0)))
		for _, fd := range []*[2]*os.File{&g.kick, &g.call} {
			n, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
			if err != nil {
				g.t.Fatal(err)
			}
			f := os.NewFile(uintptr(n), "eventfd")
			g.t.Cleanup(func() { _ = f.Close() })
			fd[i] = f
		}
		g.say(setVringCall, 0, words(uint64(i)), int(g.call[i].Fd()))
		g.say(setVringKick, 0, words(uint64(i)), int(g.kick[i].Fd()))
		_ = unix.SetNonblock(int(g.call[i].Fd()), true)
	}
	for range ringSize {
		g.post()
	}
	for i := range 2 {
		g.say(setVringEnable, wantsReply, words(uint32(i), uint32(1)))
	}
}

// remember gives the device the guest's memory.
func (g *guest) remember() {
	g.t.Helper()
	g.fd = g.memfd()
	mem, err := unix.Mmap(g.fd, 0, memLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mem = mem
	g.t.Cleanup(func() { _ = unix.Munmap(mem) })
	g.say(setMemTable, wantsReply, words(uint32(1), uint32(0), uint64(guestAt), uint64(memLen), uint64(qemuAt), uint64(0)), g.fd)
}

func (g *guest) memfd() int {
	g.t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, memLen); err != nil {
		g.t.Fatal(err)
	}
	return fd
}

// offer makes a buffer of a ring available to the device.
func (g *guest) offer(ring int, n uint32, flags uint16) {
	le := binary.LittleEndian
	slot := g.made[ring] % ringSize
	r := g.mem[ring*ringRoom:]
	d := r[descLen*int(slot):]
	le.PutUint64(d, guestAt+buffers+uint64(ring*ringSize+int(slot))*bufRoom)
	le.PutUint32(d[8:], n)
	le.PutUint16(d[12:], flags)
	le.PutUint16(r[0x400+ringHead+2*int(slot):], slot)
	g.made[ring]++
	atomic.StoreUint32(word(r[0x400:]), uint32(g.made[ring])<<16)
}

// post gives the device room for a packet.
func (g *guest) post() { g.offer(toGuest, rxLen, descWrite) }

func (g *guest) notify(ring int) {
	if _, err := g.kick[ring].Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		g.t.Error(err)
	}
}

// back waits for the device's next used buffer, and returns it.
func (g *guest) back(ring int) []byte {
	g.t.Helper()
	le := binary.LittleEndian
	used := g.mem[ring*ringRoom+0x800:]
	for uint16(atomic.LoadUint32(word(used))>>16) == g.seen[ring] {
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(g.call[ring].Fd()), Events: unix.POLLIN}}, -1); err != nil && err != unix.EINTR {
			g.t.Fatal(err)
		}
		_, _ = unix.Read(int(g.call[ring].Fd()), make([]byte, 8))
	}
	e := used[ringHead+usedElement*int(g.seen[ring]%ringSize):]
	g.seen[ring]++
	slot, n := int(le.Uint32(e)), int(le.Uint32(e[4:]))
	at := buffers + (ring*ringSize+slot)*bufRoom
	return g.mem[at : at+n]
}

// send sends a packet to the device.
func (g *guest) send(h header, payload string) {
	g.t.Helper()
	h.length = uint32(len(payload))
	h.srcCID, h.dstCID, h.kind = testCID, hostCID, stream
	if h.bufAlloc == 0 {
		h.bufAlloc = 1 << 20
	}
	at := buffers + (fromGuest*ringSize+int(g.made[fromGuest]%ringSize))*bufRoom
	copy(g.mem[at:], append(h.append(nil), payload...))
	g.offer(fromGuest, uint32(headerLen+len(payload)), 0)
	g.notify(fromGuest)
	g.back(fromGuest)
}

// next waits for the device's next packet.
func (g *guest) next() (header, string) {
	g.t.Helper()
	b := g.back(toGuest)
	h, payload, err := parse(b)
	if err != nil || len(b) > rxLen {
		g.t.Fatalf("a packet of %d bytes: %v", len(b), err)
	}
	if h.srcCID != hostCID || h.dstCID != testCID || h.bufAlloc != buffer && h.op != opReset {
		g.t.Errorf("a packet %+v", h)
	}
	data := string(payload)
	g.post()
	g.notify(toGuest)
	return h, data
}

// want waits for a packet of a kind, and returns it.
func (g *guest) want(op uint16) (header, string) {
	g.t.Helper()
	h, data := g.next()
	if h.op != op {
		g.t.Fatalf("a packet %+v, want %d", h, op)
	}
	return h, data
}

// data reads n bytes of a connection.
func (g *guest) data(n int) string {
	g.t.Helper()
	for len(g.buf) < n {
		h, part := g.next()
		switch h.op {
		case opData:
			g.buf = append(g.buf, part...)
		case opCreditUpdate:
		default:
			g.t.Fatalf("a packet %+v, want data", h)
		}
	}
	got := string(g.buf[:n])
	g.buf = g.buf[n:]
	return got
}

func (g *guest) listen(port string) net.Listener {
	g.t.Helper()
	l, err := net.Listen("unix", filepath.Join(filepath.Dir(g.dev.opts.Host), "host"+port))
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = l.Close() })
	return l
}
