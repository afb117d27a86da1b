package hostvsock

import (
	"encoding/binary"
	"fmt"
)

// hostCID is the host's address; the guest's is the device's.
const hostCID = 2

// The operations of packets.
const (
	opRequest       = 1
	opResponse      = 2
	opReset         = 3
	opShutdown      = 4
	opData          = 5
	opCreditUpdate  = 6
	opCreditRequest = 7
)

// The flags of opShutdown: the closed directions of its sender.
const (
	noReceive = 1
	noSend    = 2
)

// stream is the only type of socket that is served.
const stream = 1

const (
	headerLen  = 44
	maxPayload = 64 << 10 // of one packet; Linux sends no larger ones
)

// header is the head of each packet.
type header struct {
	srcCID, dstCID   uint64
	srcPort, dstPort uint32
	length           uint32 // of the payload
	kind, op         uint16
	flags            uint32
	bufAlloc, fwdCnt uint32 // the sender's buffer, and how much of all data has left it
}

func (h *header) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint64(b, h.srcCID)
	b = le.AppendUint64(b, h.dstCID)
	b = le.AppendUint32(b, h.srcPort)
	b = le.AppendUint32(b, h.dstPort)
	b = le.AppendUint32(b, h.length)
	b = le.AppendUint16(b, h.kind)
	b = le.AppendUint16(b, h.op)
	b = le.AppendUint32(b, h.flags)
	b = le.AppendUint32(b, h.bufAlloc)
	return le.AppendUint32(b, h.fwdCnt)
}

// parse returns a packet's head and its payload, which is part of b.
func parse(b []byte) (header, []byte, error) {
	if len(b) < headerLen {
		return header{}, nil, fmt.Errorf("a packet of %d bytes", len(b))
	}
	le := binary.LittleEndian
	h := header{
		srcCID: le.Uint64(b), dstCID: le.Uint64(b[8:]), srcPort: le.Uint32(b[16:]), dstPort: le.Uint32(b[20:]), length: le.Uint32(b[24:]),
		kind: le.Uint16(b[28:]), op: le.Uint16(b[30:]), flags: le.Uint32(b[32:]), bufAlloc: le.Uint32(b[36:]), fwdCnt: le.Uint32(b[40:]),
	}
	if h.length > maxPayload || int(h.length) > len(b)-headerLen {
		return header{}, nil, fmt.Errorf("a packet of %d bytes says that it carries %d", len(b), h.length)
	}
	return h, b[headerLen : headerLen+h.length], nil
}
