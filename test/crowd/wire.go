package crowd

import (
	"errors"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of the gossip: each is an envelope of a type and a body.
const (
	typeNetwork  = 1
	typeTable    = 2
	typePushPull = 3
	typeBulkSync = 4
	typeCompound = 5
)

// The kinds of events.
const (
	eventJoin   = 1 // of a network; of a table: the entry is new
	eventLeave  = 2 // of a network; of a table: the entry is another
	eventDelete = 3
)

// event is a member's attachment to a network, or its entry in a table there.
type event struct {
	kind         uint64
	time         uint64
	node         string
	network      string
	table, key   string
	value        []byte
	residualTime uint64
}

// fields calls fn with each field of a message: a number, or bytes.
func fields(b []byte, fn func(num protowire.Number, n uint64, data []byte)) error {
	for len(b) > 0 {
		num, typ, used := protowire.ConsumeTag(b)
		if used < 0 {
			return protowire.ParseError(used)
		}
		b = b[used:]
		switch typ {
		case protowire.VarintType:
			n, used := protowire.ConsumeVarint(b)
			if used < 0 {
				return protowire.ParseError(used)
			}
			fn(num, n, nil)
			b = b[used:]
		case protowire.BytesType:
			data, used := protowire.ConsumeBytes(b)
			if used < 0 {
				return protowire.ParseError(used)
			}
			fn(num, 0, data)
			b = b[used:]
		default:
			return errors.New("a field of another type")
		}
	}
	return nil
}

func number(b []byte, num protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), n)
}

func text[T string | []byte](b []byte, num protowire.Number, s T) []byte {
	if len(s) == 0 {
		return b
	}
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), []byte(s))
}

func envelope(typ uint64, body []byte) []byte { return text(number(nil, 1, typ), 2, body) }

func open(b []byte) (typ uint64, body []byte, err error) {
	err = fields(b, func(num protowire.Number, n uint64, data []byte) {
		switch num {
		case 1:
			typ = n
		case 2:
			body = data
		}
	})
	return typ, body, err
}

// encode is the event as a message: of a table when it names one.
func (e event) encode() []byte {
	b := text(text(number(number(nil, 1, e.kind), 2, e.time), 3, e.node), 4, e.network)
	if e.table == "" {
		return envelope(typeNetwork, b)
	}
	return envelope(typeTable, number(text(text(text(b, 5, e.table), 6, e.key), 7, e.value), 8, e.residualTime))
}

func decodeEvent(b []byte) (e event, err error) {
	err = fields(b, func(num protowire.Number, n uint64, data []byte) {
		switch num {
		case 1:
			e.kind = n
		case 2:
			e.time = n
		case 3:
			e.node = string(data)
		case 4:
			e.network = string(data)
		case 5:
			e.table = string(data)
		case 6:
			e.key = string(data)
		case 7:
			e.value = data
		case 8:
			e.residualTime = n
		}
	})
	return e, err
}

func compound(list [][]byte) []byte {
	var b []byte
	for _, m := range list {
		b = text(b, 1, text(nil, 1, m))
	}
	return envelope(typeCompound, b)
}

func parts(b []byte) (list [][]byte, err error) {
	err = fields(b, func(_ protowire.Number, _ uint64, data []byte) {
		_ = fields(data, func(_ protowire.Number, _ uint64, m []byte) { list = append(list, m) })
	})
	return list, err
}

// bulkSync is everything that a member knows of some networks.
type bulkSync struct {
	time        uint64
	unsolicited bool // it is to be answered by the same
	node        string
	networks    []string
	payload     []byte
}

func (s bulkSync) encode() []byte {
	b := number(nil, 1, s.time)
	if s.unsolicited {
		b = number(b, 2, 1)
	}
	b = text(b, 3, s.node)
	for _, n := range s.networks {
		b = text(b, 4, n)
	}
	return envelope(typeBulkSync, text(b, 5, s.payload))
}

func decodeBulkSync(b []byte) (s bulkSync, err error) {
	err = fields(b, func(num protowire.Number, n uint64, data []byte) {
		switch num {
		case 1:
			s.time = n
		case 2:
			s.unsolicited = n != 0
		case 3:
			s.node = string(data)
		case 4:
			s.networks = append(s.networks, string(data))
		case 5:
			s.payload = data
		}
	})
	return s, err
}

// encodePushPull tells of all attachments.
func encodePushPull(time uint64, node string, on []event) []byte {
	b := number(nil, 1, time)
	for _, e := range on {
		var leaving uint64
		if e.kind == eventLeave {
			leaving = 1
		}
		b = text(b, 2, number(text(number(text(nil, 1, e.network), 2, e.time), 3, e.node), 4, leaving))
	}
	return envelope(typePushPull, text(b, 3, node))
}

func decodePushPull(b []byte) (on []event, err error) {
	err = fields(b, func(num protowire.Number, _ uint64, data []byte) {
		if num != 2 {
			return
		}
		e := event{kind: eventJoin}
		_ = fields(data, func(num protowire.Number, n uint64, data []byte) {
			switch num {
			case 1:
				e.network = string(data)
			case 2:
				e.time = n
			case 3:
				e.node = string(data)
			case 4:
				if n != 0 {
					e.kind = eventLeave
				}
			}
		})
		on = append(on, e)
	})
	return on, err
}
