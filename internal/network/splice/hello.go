package splice

import (
	"encoding/binary"
	"errors"
)

// The bounds of a ClientHello.
const (
	maxHello   = 16 << 10 // bytes, with the heads of its records
	maxRecords = 32
)

// The reasons to refuse a connection at port 443.
var (
	errNotTLS    = errors.New("it does not begin with TLS")
	errNoName    = errors.New("the ClientHello has no server name")
	errLongHello = errors.New("the ClientHello is too long or has too many records")
	errMalformed = errors.New("the ClientHello is malformed")
)

const (
	recordHandshake  = 22
	recordHead       = 5
	maxRecord        = 1 << 14
	messageHello     = 1
	messageHead      = 4
	extensionName    = 0
	nameOfHost       = 0
	versionAndRandom = 2 + 32
)

// helloName returns the server name in the ClientHello at the beginning of b. If the ClientHello is longer than b, need is
// the size of b that the next call needs at least; otherwise it is 0.
func helloName(b []byte) (name string, need int, err error) {
	var msg []byte
	rest := b
	for records := 0; len(msg) < messageHead || len(msg) < messageHead+helloSize(msg); records++ {
		if len(rest) > 0 && rest[0] != recordHandshake || len(rest) > 1 && rest[1] != 3 {
			if records == 0 {
				return "", 0, errNotTLS
			}
			return "", 0, errMalformed
		}
		size := 0
		if len(rest) >= recordHead {
			size = int(binary.BigEndian.Uint16(rest[3:]))
			if size == 0 || size > maxRecord {
				return "", 0, errMalformed
			}
		}
		switch missing := recordHead + size - len(rest); {
		case records == maxRecords || len(b)+missing > maxHello:
			return "", 0, errLongHello
		case missing > 0:
			return "", len(b) + missing, nil
		}
		msg = append(msg, rest[recordHead:recordHead+size]...)
		rest = rest[recordHead+size:]
		if msg[0] != messageHello {
			return "", 0, errNotTLS
		}
		if len(msg) >= messageHead && helloSize(msg) > maxHello {
			return "", 0, errLongHello
		}
	}
	if len(msg) != messageHead+helloSize(msg) {
		return "", 0, errMalformed
	}
	name, err = nameIn(msg[messageHead:])
	return name, 0, err
}

// helloSize returns the size of a handshake message, from its head.
func helloSize(msg []byte) int { return int(msg[1])<<16 | int(msg[2])<<8 | int(msg[3]) }

// nameIn returns the server name in the body of a ClientHello.
func nameIn(body []byte) (string, error) {
	r := reader{rest: body}
	r.take(versionAndRandom)
	r.vector(1) // the session
	r.vector(2) // cipher suites
	r.vector(1) // compressions
	if r.bad {
		return "", errMalformed
	}
	if len(r.rest) == 0 {
		return "", errNoName
	}
	list := reader{rest: r.vector(2)}
	if r.bad || len(r.rest) > 0 {
		return "", errMalformed
	}
	name, found := "", false
	for len(list.rest) > 0 {
		kind, value := list.number(2), list.vector(2)
		if list.bad {
			return "", errMalformed
		}
		if kind != extensionName {
			continue
		}
		ext := reader{rest: value}
		names := reader{rest: ext.vector(2)}
		kind = names.number(1)
		host := names.vector(2)
		// A second name could be the one that the server takes.
		if ext.bad || names.bad || len(ext.rest) > 0 || len(names.rest) > 0 || kind != nameOfHost || len(host) == 0 || found {
			return "", errMalformed
		}
		name, found = string(host), true
	}
	if !found {
		return "", errNoName
	}
	return name, nil
}

// reader reads TLS's presentation language. After a value that is not whole, bad is set and all further ones are empty.
type reader struct {
	rest []byte
	bad  bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.rest) {
		r.bad = true
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// number reads a number of n bytes.
func (r *reader) number(n int) (v int) {
	for _, b := range r.take(n) {
		v = v<<8 | int(b)
	}
	return v
}

// vector reads bytes with their number before them, which has n bytes.
func (r *reader) vector(n int) []byte { return r.take(r.number(n)) }
