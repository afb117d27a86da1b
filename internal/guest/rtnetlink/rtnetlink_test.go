package rtnetlink

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// reply makes a message of the kernel's.
func reply(kind, flags uint16, sequence uint32, body ...byte) []byte {
	b := message(kind, flags, sequence, body)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func TestAnswersOfTheKernel(t *testing.T) {
	end := reply(unix.NLMSG_DONE, unix.NLM_F_MULTI, 7, 0, 0, 0, 0)
	busy := -int32(unix.EBUSY)
	refused := reply(unix.NLMSG_ERROR, 0, 7, number(uint32(busy))...)
	one := reply(unix.RTM_NEWLINK, unix.NLM_F_MULTI, 7, 1, 2, 3)
	for name, c := range map[string]struct {
		datagram          []byte
		done, interrupted bool
		bodies            int
		err               error
	}{
		"a part of a list":    {one, false, false, 1, nil},
		"a list and its end":  {append(append([]byte(nil), one...), end...), true, false, 1, nil},
		"of another request":  {append(reply(unix.RTM_NEWLINK, 0, 6, 1), end...), true, false, 0, nil},
		"an interrupted list": {append(reply(unix.RTM_NEWLINK, unix.NLM_F_DUMP_INTR, 7, 1), end...), true, true, 1, nil},
		"a refusal":           {refused, true, false, 0, unix.EBUSY},
		"done as asked":       {reply(unix.NLMSG_ERROR, 0, 7, 0, 0, 0, 0), true, false, 0, nil},
		"an end without code": {reply(unix.NLMSG_DONE, 0, 7), true, false, 0, errShort},
		"half a header":       {one[:9], true, false, 0, errShort},
		"half a body":         {one[:18], true, false, 0, errShort},
		"nothing to do":       {reply(unix.NLMSG_NOOP, 0, 7), false, false, 0, nil},
	} {
		bodies := 0
		a := answer{sequence: 7, each: func([]byte) error { bodies++; return nil }}
		done, err := a.read(c.datagram)
		if done != c.done || a.interrupted != c.interrupted || bodies != c.bodies || !errors.Is(err, c.err) {
			t.Errorf("%s: done %t, interrupted %t, %d bodies, %v", name, done, a.interrupted, bodies, err)
		}
	}
}

func TestARouteOfTwoVersionsIsRefused(t *testing.T) {
	r := Route{To: netip.MustParsePrefix("192.0.2.0/24"), Gateway: netip.MustParseAddr("2001:db8::1"), Link: 1}
	if _, err := encodeRoute(r); !errors.Is(err, unix.EAFNOSUPPORT) {
		t.Errorf("%v", err)
	}
	r.Gateway = netip.MustParseAddr("192.0.2.1")
	b, err := encodeRoute(r)
	if err != nil {
		t.Fatal(err)
	}
	if again, ok, err := decodeRoute(b); again != r || !ok || err != nil {
		t.Errorf("%+v, %t, %v", again, ok, err)
	}
}

// FuzzMessages: with any bytes, nothing panics, and a message is inside of the datagram.
func FuzzMessages(f *testing.F) {
	f.Add(reply(unix.RTM_NEWLINK, 0, 7, appendAttribute(ifInfo(1, 0, 0), unix.IFLA_IFNAME, []byte("eth0\x00"))...))
	f.Add(reply(unix.NLMSG_ERROR, 0, 7, 0, 0, 0, 0))
	f.Add(binary.NativeEndian.AppendUint32(nil, 0))
	if b, err := encodeRoute(Route{To: netip.MustParsePrefix("192.0.2.0/24"), MTU: 9}); err == nil {
		f.Add(reply(unix.RTM_NEWROUTE, 0, 7, b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a := answer{sequence: 7, each: func(body []byte) error {
			_, _, err := decodeLink(body)
			_, _, err2 := decodeAddress(body)
			_, _, err3 := decodeRoute(body)
			return errors.Join(err, err2, err3)
		}}
		if done, err := a.read(b); err != nil && done && len(b) == 0 {
			t.Error("an empty datagram ends an answer")
		}
	})
}
