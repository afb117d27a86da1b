package hostvsock

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// The messages of QEMU that are served.
const (
	getFeatures         = 1
	setFeatures         = 2
	setOwner            = 3
	resetOwner          = 4
	setMemTable         = 5
	setVringNum         = 8
	setVringAddr        = 9
	setVringBase        = 10
	getVringBase        = 11
	setVringKick        = 12
	setVringCall        = 13
	setVringErr         = 14
	getProtocolFeatures = 15
	setProtocolFeatures = 16
	setVringEnable      = 18
	getConfig           = 24
)

const (
	featureVersion1 = 1 << 32
	featureProtocol = 1 << 30 // SET_VRING_ENABLE, and the features below
	protocolAck     = 1 << 3
	protocolConfig  = 1 << 9

	features         = featureVersion1 | featureProtocol
	protocolFeatures = protocolAck | protocolConfig
)

// A message's head: kind, flags, length of the rest.
const (
	messageHead = 12
	maxMessage  = 4096
	version     = 1
	isReply     = 4
	wantsReply  = 8

	maxRegions = 8
	regionLen  = 32
	configHead = 12
	noFile     = 1 << 8 // in the index of a ring; its low byte is the index
)

// message is a message of QEMU.
type message struct {
	what, flags uint32
	body        []byte
	files       []*os.File // closed when it was served, unless they are nil by then
}

// serveQEMU serves QEMU's one connection.
func (d *Device) serveQEMU() {
	c, err := d.control.AcceptUnix()
	if err != nil {
		return
	}
	d.mu.Lock()
	d.qemu = c
	closed := d.closed
	d.mu.Unlock()
	for !closed {
		m, err := readMessage(c)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
				err = nil // QEMU has ended
			}
			d.end(err)
			break
		}
		if err := d.serve(c, m); err != nil {
			d.end(fmt.Errorf("message %d of QEMU: %w", m.what, err))
			break
		}
	}
	_ = c.Close()
}

func readMessage(c *net.UnixConn) (*message, error) {
	head, oob := make([]byte, messageHead), make([]byte, unix.CmsgSpace(4*maxRegions))
	n, oobn, _, _, err := c.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, err
	}
	m := &message{}
	if m.files, err = files(oob[:oobn]); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, io.EOF
	}
	if _, err := io.ReadFull(c, head[n:]); err != nil {
		return nil, errors.Join(err, m.close())
	}
	le := binary.LittleEndian
	m.what, m.flags = le.Uint32(head), le.Uint32(head[4:])
	size := le.Uint32(head[8:])
	if size > maxMessage {
		return nil, errors.Join(fmt.Errorf("a message of %d bytes", size), m.close())
	}
	m.body = make([]byte, size)
	if _, err := io.ReadFull(c, m.body); err != nil {
		return nil, errors.Join(err, m.close())
	}
	return m, nil
}

// files are the descriptors that came with a message.
func files(oob []byte) (list []*os.File, err error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return list, err
		}
		for _, fd := range fds {
			_ = unix.SetNonblock(fd, true) // for Go's poller; memory does not mind
			list = append(list, os.NewFile(uintptr(fd), "from QEMU"))
		}
	}
	return list, nil
}

func (m *message) close() (err error) {
	for _, f := range m.files {
		if f != nil {
			err = errors.Join(err, f.Close())
		}
	}
	return err
}

// keep returns the only descriptor of a message, which stays open.
func (m *message) keep() (f *os.File, err error) {
	if len(m.files) != 1 {
		return nil, fmt.Errorf("%d descriptors", len(m.files))
	}
	f, m.files[0] = m.files[0], nil
	return f, nil
}

// serve serves one message.
func (d *Device) serve(c io.Writer, m *message) error {
	defer func() { _ = m.close() }()
	le := binary.LittleEndian
	var reply []byte
	var err error
	switch m.what {
	case getFeatures:
		reply = le.AppendUint64(nil, features)
	case getProtocolFeatures:
		reply = le.AppendUint64(nil, protocolFeatures)
	case getConfig:
		reply, err = d.config(m.body)
	default:
		d.mu.Lock()
		reply, err = d.changeLocked(m)
		d.mu.Unlock()
		d.pump() // in case a ring was started or enabled
		if err == nil && reply == nil && m.flags&wantsReply != 0 {
			reply = le.AppendUint64(nil, 0)
		}
	}
	if err != nil || reply == nil {
		return err
	}
	b := le.AppendUint32(nil, m.what)
	b = le.AppendUint32(b, version|isReply)
	b = le.AppendUint32(b, uint32(len(reply)))
	_, err = c.Write(append(b, reply...))
	return err
}

// config answers with the device's registers: the guest's address.
func (d *Device) config(body []byte) ([]byte, error) {
	if len(body) < configHead {
		return nil, errors.New("too short")
	}
	registers := binary.LittleEndian.AppendUint64(nil, d.opts.CID)
	off := min(int(binary.LittleEndian.Uint32(body)), len(registers))
	copy(body[configHead:], registers[off:])
	return body, nil
}

// changeLocked changes the device. Preconditions: mu is held.
func (d *Device) changeLocked(m *message) (reply []byte, err error) {
	le := binary.LittleEndian
	if m.what == setMemTable {
		return nil, d.mapLocked(m)
	}
	if len(m.body) < 8 {
		if m.what == setOwner || m.what == resetOwner {
			return nil, nil
		}
		return nil, errors.New("too short")
	}
	first := le.Uint64(m.body)
	switch m.what {
	case setFeatures:
		d.acked = first
		return nil, nil
	case setProtocolFeatures:
		return nil, nil
	}
	index := first & (noFile - 1)
	if m.what != setVringKick && m.what != setVringCall && m.what != setVringErr {
		index = first & 0xffffffff
	}
	if index >= uint64(len(d.rings)) {
		return nil, fmt.Errorf("there is no ring %d", index)
	}
	r, value := &d.rings[index], uint32(first>>32)
	switch m.what {
	case setVringNum:
		if value == 0 || value > maxRing || value&(value-1) != 0 {
			return nil, fmt.Errorf("a ring of %d", value)
		}
		r.num = uint16(value)
	case setVringBase:
		r.taken = uint16(value)
	case getVringBase:
		r.stop()
		d.servingLocked()
		return le.AppendUint32(le.AppendUint32(nil, uint32(index)), uint32(r.taken)), nil
	case setVringAddr:
		if len(m.body) < 40 {
			return nil, errors.New("too short")
		}
		r.descAddr, r.usedAddr, r.availAddr = le.Uint64(m.body[8:]), le.Uint64(m.body[16:]), le.Uint64(m.body[24:])
	case setVringKick:
		return nil, d.startLocked(r, m)
	case setVringCall:
		var call *os.File
		if first&noFile == 0 {
			if call, err = m.keep(); err != nil {
				return nil, err
			}
		}
		if r.call != nil {
			_ = r.call.Close()
		}
		r.call = call
	case setVringErr: // there is nothing to say
	case setVringEnable:
		r.enabled = value != 0
		d.servingLocked()
	default:
		return nil, errors.New("not served")
	}
	return nil, nil
}

// startLocked starts a ring. Preconditions: mu is held.
func (d *Device) startLocked(r *ring, m *message) error {
	kick, err := m.keep()
	if err != nil {
		return err
	}
	r.stop()
	if err := r.start(d.memory); err != nil || d.closed {
		return errors.Join(err, kick.Close())
	}
	r.kick = kick
	r.enabled = r.enabled || d.acked&featureProtocol == 0
	d.servingLocked()
	d.tasks.Go(func() { d.kicks(kick) })
	return nil
}

// servingLocked opens or ends the connections as the rings are. Preconditions: mu is
// held.
func (d *Device) servingLocked() {
	d.mux.serve(!d.closed && d.rings[toGuest].running() && d.rings[fromGuest].running())
}

// mapLocked maps the guest's memory; its files come with the message. Preconditions: mu is held.
func (d *Device) mapLocked(m *message) (err error) {
	le := binary.LittleEndian
	if len(m.body) < 8 {
		return errors.New("too short")
	}
	n := int(le.Uint32(m.body))
	if n > maxRegions || n != len(m.files) || len(m.body) < 8+n*regionLen {
		return fmt.Errorf("%d regions with %d descriptors", n, len(m.files))
	}
	var next memory
	defer func() { err = errors.Join(err, next.unmap()) }() // the unused part
	for i := range n {
		b := m.body[8+i*regionLen:]
		guest, size, user, off := le.Uint64(b), le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
		if size == 0 || size > 1<<40 || off > 1<<40 || guest+size < guest || user+size < user {
			return fmt.Errorf("a region of %#x bytes at %#x", size, guest)
		}
		mapping, err := unix.Mmap(int(m.files[i].Fd()), 0, int(off+size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return err
		}
		next = append(next, region{guest: guest, user: user, mem: mapping[off:], mapping: mapping})
	}
	d.memory, next = next, d.memory
	for i := range d.rings {
		if r := &d.rings[i]; r.desc != nil {
			given := r.given
			if err := r.start(d.memory); err != nil {
				return err
			}
			r.given = given
		}
	}
	return nil
}
