package doorbell

import (
	"testing"

	"golang.org/x/net/bpf"
)

// packet4 and packet6 make packets of a protocol.
func packet4(proto byte, options int, rest ...byte) []byte {
	n := 20 + options
	b := make([]byte, n, n+len(rest))
	b[0], b[9] = byte(0x40|n/4), proto
	b[2], b[3] = byte((n+len(rest))>>8), byte(n+len(rest))
	return append(b, rest...)
}

func packet6(proto byte, rest ...byte) []byte {
	b := make([]byte, 40, 40+len(rest))
	b[0], b[6] = 0x60, proto
	b[4], b[5] = byte(len(rest)>>8), byte(len(rest))
	return append(b, rest...)
}

// segment makes a TCP segment.
func segment(flags byte, options, data int) []byte {
	b := make([]byte, 20+options+data)
	b[12], b[13] = byte((20+options)/4<<4), flags
	return b
}

func TestFilter(t *testing.T) {
	const syn, fin, rst, psh, ack = 2, 1, 4, 8, 16
	for name, c := range map[string]struct {
		proto  uint32
		packet []byte
		want   bool
	}{
		"syn":              {0x800, packet4(6, 0, segment(syn, 20, 0)...), true},
		"syn with options": {0x800, packet4(6, 8, segment(syn, 4, 0)...), true},
		"data":             {0x800, packet4(6, 0, segment(ack|psh, 12, 1)...), true},
		"ack":              {0x800, packet4(6, 0, segment(ack, 12, 0)...), false},
		"ack with options": {0x800, packet4(6, 12, segment(ack, 0, 0)...), false},
		"fin":              {0x800, packet4(6, 0, segment(ack|fin, 0, 0)...), true},
		"rst":              {0x800, packet4(6, 0, segment(rst, 0, 0)...), true},
		"udp":              {0x800, packet4(17, 0, 1, 2, 3), true},
		"sctp":             {0x800, packet4(132, 0, 1, 2, 3), true},
		"ping":             {0x800, packet4(1, 0, 8, 0), false},
		"igmp":             {0x800, packet4(2, 0, 8, 0), false},
		"arp":              {0x806, make([]byte, 28), false},
		"syn, ipv6":        {0x86dd, packet6(6, segment(syn, 20, 0)...), true},
		"data, ipv6":       {0x86dd, packet6(6, segment(ack, 12, 100)...), true},
		"ack, ipv6":        {0x86dd, packet6(6, segment(ack, 12, 0)...), false},
		"udp, ipv6":        {0x86dd, packet6(17, 1, 2), true},
		"fragment, ipv6":   {0x86dd, packet6(44, make([]byte, 100)...), true},
		"neighbour":        {0x86dd, packet6(58, 135, 0), false},
	} {
		if got := accepts(t, c.proto, 0, c.packet); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if accepts(t, c.proto, 4, c.packet) { // PACKET_OUTGOING
			t.Errorf("%s is accepted although it leaves", name)
		}
	}
}

// accepts runs the filter in the library's machine, with the kernel's values of protocol and kind.
func accepts(t *testing.T, proto, kind uint32, packet []byte) bool {
	t.Helper()
	raw, err := filter()
	if err != nil {
		t.Fatal(err)
	}
	code, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the filter cannot be disassembled")
	}
	for i, in := range code {
		if x, ok := in.(bpf.LoadExtension); ok {
			v := proto
			if x.Num == bpf.ExtType {
				v = kind
			}
			code[i] = bpf.LoadConstant{Dst: bpf.RegA, Val: v}
		}
	}
	vm, err := bpf.NewVM(code)
	if err != nil {
		t.Fatal(err)
	}
	n, err := vm.Run(packet)
	if err != nil {
		t.Fatal(err)
	}
	return n > 0
}
