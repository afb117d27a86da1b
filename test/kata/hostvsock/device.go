// Package hostvsock is the host's part of a virtual machine's vsock, for tests on hosts with a
// kernel without it: QEMU gives the guest a device (vhost-user-vsock-pci); its other end is here.
// It serves streams, from both sides.
//
// On the host a port of the guest is behind one unix socket: a client writes "CONNECT 1024\n",
// reads a line that begins with OK, and is connected; Firecracker, Cloud Hypervisor and Kata know
// that form. A port of the host that the guest connects to is the socket with _PORT at the end of
// its name.
//
// Start at Start. device.go is the device, vhost.go QEMU's messages about it, ring.go the queues in
// the guest's memory, mux.go and conn.go the connections.
package hostvsock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	helloTimeout = 10 * time.Second // for the host's line, and for the guest's answer
	maxHello     = 32
)

// Options are the parameters of Start.
type Options struct {
	// Control is the path of the unix socket for QEMU, which connects once.
	Control string
	// Host is the path of the unix socket for the host's programs.
	Host string
	// CID is the guest's address.
	CID uint64
}

// Device is a guest's vsock.
type Device struct {
	opts    Options
	control *net.UnixListener
	host    *net.UnixListener
	mux     *mux
	tasks   sync.WaitGroup

	mu     sync.Mutex // guards memory, rings, acked, qemu, buf, err, closed
	memory memory
	rings  [2]ring // to the guest, from the guest
	acked  uint64
	qemu   *net.UnixConn
	buf    []byte // of one packet
	err    error  // the first one
	closed bool
}

// The rings, as virtio numbers them. QEMU itself serves the third, of events.
const (
	toGuest   = 0
	fromGuest = 1
)

// Start listens for QEMU and for the host's programs.
func Start(o Options) (*Device, error) {
	control, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Control, Net: "unix"})
	if err != nil {
		return nil, err
	}
	host, err := net.ListenUnix("unix", &net.UnixAddr{Name: o.Host, Net: "unix"})
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	d := &Device{opts: o, control: control, host: host, buf: make([]byte, 0, headerLen+maxPayload)}
	d.mux = newMux(o.CID, d.dial, d.pump)
	d.tasks.Go(d.serveQEMU)
	d.tasks.Go(d.serveHost)
	return d, nil
}

// Close ends the device, and returns the first error that it met.
func (d *Device) Close() error {
	d.end(nil)
	d.tasks.Wait()
	d.mux.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.rings {
		d.rings[i].stop()
		if call := d.rings[i].call; call != nil {
			_ = call.Close()
			d.rings[i].call = nil
		}
	}
	err := errors.Join(d.err, d.memory.unmap())
	d.memory, d.err = nil, nil
	return err
}

// end has everything end. It does not wait.
func (d *Device) end(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endLocked(err)
}

// endLocked has everything end. Preconditions: mu is held.
func (d *Device) endLocked(err error) {
	if d.closed {
		return
	}
	d.closed, d.err = true, err
	_ = d.control.Close()
	_ = d.host.Close()
	if d.qemu != nil {
		_ = d.qemu.Close()
	}
	for i := range d.rings {
		d.rings[i].stop()
	}
	d.mux.serve(false)
}

// dial connects to the listener at a port of the host.
func (d *Device) dial(port uint32) (net.Conn, error) {
	return net.Dial("unix", d.opts.Host+"_"+strconv.FormatUint(uint64(port), 10))
}

func (d *Device) serveHost() {
	for {
		c, err := d.host.Accept()
		if err != nil {
			return
		}
		d.tasks.Go(func() { d.hello(c) })
	}
}

// hello connects one of the host's programs to the port of the guest that it names.
func (d *Device) hello(host net.Conn) {
	_ = host.SetDeadline(time.Now().Add(helloTimeout))
	port, err := readHello(host)
	if err != nil {
		_ = host.Close()
		return
	}
	c, err := d.mux.open(host, port)
	if err != nil {
		return
	}
	late := time.NewTimer(helloTimeout)
	defer late.Stop()
	select {
	case <-c.ended:
		return
	case <-late.C:
		d.mux.mu.Lock()
		c.resetLocked()
		d.mux.mu.Unlock()
		d.pump()
		return
	case <-c.opened:
	}
	_ = host.SetDeadline(time.Time{})
	_, _ = fmt.Fprintf(host, "OK %d\n", c.ports.host) // if it has gone, reading ends, too
	d.mux.tasks.Go(func() { c.write(host) })
	c.read(host)
}

// readHello reads "CONNECT PORT\n", and no byte more.
func readHello(r io.Reader) (uint32, error) {
	var line []byte
	for b := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, b); err != nil {
			return 0, err
		}
		if b[0] == '\n' {
			break
		}
		if line = append(line, b[0]); len(line) > maxHello {
			return 0, errors.New("a line that is too long")
		}
	}
	port, ok := strings.CutPrefix(string(line), "CONNECT ")
	if !ok {
		return 0, fmt.Errorf("%q is no CONNECT", line)
	}
	n, err := strconv.ParseUint(port, 10, 32)
	return uint32(n), err
}

// kicks waits for the guest to say that a ring has new buffers.
func (d *Device) kicks(kick *os.File) {
	b := make([]byte, 8)
	for {
		if _, err := kick.Read(b); err != nil {
			return // the ring was stopped
		}
		d.pump()
	}
}

// pump moves packets in both directions, as long as there are some.
func (d *Device) pump() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if err := errors.Join(d.takeLocked(), d.giveLocked()); err != nil {
		d.endLocked(err)
	}
}

// takeLocked takes the guest's packets. Preconditions: mu is held.
func (d *Device) takeLocked() error {
	r := &d.rings[fromGuest]
	taken := false
	for r.running() {
		head, out, in, err := r.take(d.memory)
		if err != nil {
			return err
		}
		if len(out)+len(in) == 0 {
			break
		}
		d.buf = d.buf[:0]
		for _, part := range out {
			d.buf = append(d.buf, part[:min(len(part), headerLen+maxPayload-len(d.buf))]...)
		}
		h, payload, err := parse(d.buf)
		if err != nil {
			return err
		}
		if err := d.mux.receive(&h, payload); err != nil {
			return err
		}
		r.give(head, 0)
		taken = true
	}
	if taken {
		return r.interrupt()
	}
	return nil
}

// giveLocked gives the guest packets as long as it has room for them. Preconditions: mu
// is held.
func (d *Device) giveLocked() error {
	r := &d.rings[toGuest]
	given := false
	for r.running() {
		before := r.taken
		head, out, in, err := r.take(d.memory)
		if err != nil {
			return err
		}
		if len(out)+len(in) == 0 {
			break
		}
		room := 0
		for _, part := range in {
			room += len(part)
		}
		if room < headerLen {
			return fmt.Errorf("a buffer of %d bytes for a packet", room)
		}
		n := 0
		if !d.mux.next(room-headerLen, func(h *header, payload []byte) {
			d.buf = append(h.append(d.buf[:0]), payload...)
			for _, part := range in {
				n += copy(part, d.buf[n:])
			}
		}) {
			r.taken = before // for a later packet
			break
		}
		r.give(head, uint32(n))
		given = true
	}
	if given {
		return r.interrupt()
	}
	return nil
}
