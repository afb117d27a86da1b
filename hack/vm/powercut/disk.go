package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
)

const sectorSize = 512

// physicalSize is the size of an atomic write. It is that of today's disks, and ext4 relies on it:
// it takes a torn commit block of its journal for damage, not for the end.
const physicalSize = 4096

// A disk is a file with a volatile write cache in front of it, served to QEMU as a network block
// device. A write stays in the cache until the guest flushes; settle decides which of the others
// survive a power cut.
type disk struct {
	file *os.File
	size int64

	mu      sync.Mutex       // guards dirty, pending, left, off
	dirty   map[int64][]byte // sector number → content, the newest
	pending []write          // since the last flush, in order
	left    int              // writes until the power goes, 0: it stays
	off     chan struct{}    // closed when the power has gone
}

type write struct {
	sector int64
	data   []byte
}

func openDisk(path string) (*disk, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &disk{file: f, size: st.Size(), dirty: map[int64][]byte{}, off: make(chan struct{})}, nil
}

func (d *disk) close() error { return d.file.Close() }

func (d *disk) readAt(p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.inside(p, off); err != nil {
		return err
	}
	if _, err := d.file.ReadAt(p, off); err != nil {
		return err
	}
	for i := 0; i < len(p); i += sectorSize {
		if s, ok := d.dirty[(off+int64(i))/sectorSize]; ok {
			copy(p[i:], s)
		}
	}
	return nil
}

// writeAt keeps p.
func (d *disk) writeAt(p []byte, off int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.inside(p, off); err != nil {
		return err
	}
	d.pending = append(d.pending, write{off / sectorSize, p})
	for i := 0; i < len(p); i += sectorSize {
		d.dirty[(off+int64(i))/sectorSize] = p[i : i+sectorSize]
	}
	if d.left--; d.left == 0 {
		close(d.off)
	}
	return nil
}

// cutAfter takes the power away right after so many more writes, none for at
// once; the disk then answers no request until settle. The channel is closed at
// that moment.
func (d *disk) cutAfter(writes int) <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.left = writes
	if writes == 0 && !closed(d.off) {
		close(d.off)
	}
	return d.off
}

func (d *disk) isOff() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return closed(d.off)
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func (d *disk) inside(p []byte, off int64) error {
	if off%sectorSize != 0 || len(p)%sectorSize != 0 || off < 0 || off+int64(len(p)) > d.size {
		return fmt.Errorf("disk of %d bytes: request of %d bytes at %d", d.size, len(p), off)
	}
	return nil
}

func (d *disk) flush() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.pending {
		if _, err := d.file.WriteAt(w.data, w.sector*sectorSize); err != nil {
			return err
		}
	}
	d.pending, d.dirty = nil, map[int64][]byte{}
	return nil
}

// A loss is a power cut's effect on unflushed writes.
type loss int

const (
	keepAll   loss = iota // the disk's cache outlived the cut
	loseAll               // nothing of it reached the platter
	keepFirst             // written in order up to a point, the last one torn
	keepSome              // any of them, in any order, some torn
	losses
)

func (l loss) String() string {
	return [...]string{"all are kept", "none is kept", "the first are kept", "some are kept"}[l]
}

// settle is the power cut: it writes the survivors to the file and empties the cache. It returns
// how many writes were pending.
func (d *disk) settle(l loss, rnd *rand.Rand) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.pending)
	point := rnd.IntN(n + 1)
	for i, w := range d.pending {
		keep := w.data
		switch l {
		case loseAll:
			keep = nil
		case keepFirst:
			if i == point {
				keep = w.tear(rnd)
			} else if i > point {
				keep = nil
			}
		case keepSome:
			if rnd.IntN(2) == 0 {
				keep = nil
			} else if rnd.IntN(8) == 0 {
				keep = w.tear(rnd)
			}
		}
		if _, err := d.file.WriteAt(keep, w.sector*sectorSize); err != nil {
			return n, err
		}
	}
	d.pending, d.dirty = nil, map[int64][]byte{}
	d.left, d.off = 0, make(chan struct{})
	return n, nil
}

// tear returns the beginning of a write, which ends with a physical sector.
func (w write) tear(rnd *rand.Rand) []byte {
	start := w.sector * sectorSize
	end := (start + rnd.Int64N(int64(len(w.data))+1)) / physicalSize * physicalSize
	return w.data[:max(0, end-start)]
}

// The network block device protocol, as far as QEMU's client needs it.
const (
	nbdMagic       = 0x4e42444d41474943 // NBDMAGIC
	nbdOption      = 0x49484156454f5054 // IHAVEOPT
	nbdOptionReply = 0x3e889045565a9
	nbdRequest     = 0x25609513
	nbdReply       = 0x67446698

	nbdFixedNewstyle = 1
	nbdNoZeroes      = 2
	nbdExportName    = 1         // option: take this export, no answer on error
	nbdUnsupported   = 1<<31 | 1 // answer: no such option
	nbdHasFlags      = 1
	nbdSendFlush     = 4

	nbdRead, nbdWrite, nbdDisconnect, nbdFlush = 0, 1, 2, 3

	nbdEIO        = 5
	nbdMaxRequest = 32 << 20
)

// serve answers one client, one request after the other, until it goes away.
func (d *disk) serve(conn net.Conn) error {
	r, w := bufio.NewReaderSize(conn, 1<<16), bufio.NewWriterSize(conn, 1<<16)
	if err := d.handshake(r, w); err != nil {
		return err
	}
	for {
		var req struct {
			Magic       uint32
			Flags, Type uint16
			Cookie      uint64
			Offset      uint64
			Length      uint32
		}
		if err := binary.Read(r, binary.BigEndian, &req); err != nil {
			return ended(err)
		}
		if req.Magic != nbdRequest || req.Length > nbdMaxRequest {
			return fmt.Errorf("nbd: bad request %+v", req)
		}
		if d.isOff() {
			// No answer, also no error, until the client is dead as well.
			_, err := io.Copy(io.Discard, r)
			return ended(err)
		}
		var data []byte
		var err error
		switch req.Type {
		case nbdRead:
			data = make([]byte, req.Length)
			err = d.readAt(data, int64(req.Offset))
		case nbdWrite:
			p := make([]byte, req.Length)
			if _, err := io.ReadFull(r, p); err != nil {
				return ended(err)
			}
			err = d.writeAt(p, int64(req.Offset))
		case nbdFlush:
			err = d.flush()
		case nbdDisconnect:
			return nil
		default:
			err = fmt.Errorf("nbd: request type %d", req.Type)
		}
		reply := struct {
			Magic, Errno uint32
			Cookie       uint64
		}{nbdReply, 0, req.Cookie}
		if err != nil {
			fmt.Fprintln(os.Stderr, "powercut: disk:", err)
			reply.Errno, data = nbdEIO, nil
		}
		if err := binary.Write(w, binary.BigEndian, reply); err != nil {
			return ended(err)
		}
		if _, err := w.Write(data); err != nil {
			return ended(err)
		}
		if err := w.Flush(); err != nil {
			return ended(err)
		}
	}
}

// handshake refuses every option but the plain choice of an export, which makes
// the client use that one.
func (d *disk) handshake(r *bufio.Reader, w *bufio.Writer) error {
	hello := struct {
		Magic, Option uint64
		Flags         uint16
	}{nbdMagic, nbdOption, nbdFixedNewstyle | nbdNoZeroes}
	if err := send(w, hello); err != nil {
		return err
	}
	var flags uint32
	if err := binary.Read(r, binary.BigEndian, &flags); err != nil {
		return err
	}
	for {
		var opt struct {
			Magic          uint64
			Option, Length uint32
		}
		if err := binary.Read(r, binary.BigEndian, &opt); err != nil {
			return err
		}
		if opt.Magic != nbdOption || opt.Length > 1<<16 {
			return fmt.Errorf("nbd: bad option %+v", opt)
		}
		if _, err := r.Discard(int(opt.Length)); err != nil {
			return err
		}
		if opt.Option == nbdExportName {
			return send(w, struct {
				Size  uint64
				Flags uint16
			}{uint64(d.size), nbdHasFlags | nbdSendFlush})
		}
		refusal := struct {
			Magic                uint64
			Option, Type, Length uint32
		}{nbdOptionReply, opt.Option, nbdUnsupported, 0}
		if err := send(w, refusal); err != nil {
			return err
		}
	}
}

func send(w *bufio.Writer, v any) error {
	if err := binary.Write(w, binary.BigEndian, v); err != nil {
		return err
	}
	return w.Flush()
}

// ended turns the errors of a killed client's connection into success.
func ended(err error) error {
	var op *net.OpError
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op) {
		return nil
	}
	return err
}
