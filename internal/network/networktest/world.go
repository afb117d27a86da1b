package networktest

import (
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// World has servers outside of all sandboxes, on the host of the test, and the name server of the node.
type World struct {
	t testing.TB

	mu      sync.Mutex // guards records, asked
	records map[string][]dnsmessage.ResourceBody
	asked   []string
}

// WorldDNS is the address of the world's name server.
const WorldDNS = "198.51.100.53"

// NewWorld gives the host these addresses, and answers TCP and UDP at the ports 80, 443 and 853 of all of them, and at 53
// of all but the name server's.
func NewWorld(t testing.TB, addrs ...string) *World {
	t.Helper()
	w := &World{t: t, records: map[string][]dnsmessage.ResourceBody{}}
	Run(t, "ip link add world type bridge")
	for _, a := range append(addrs, WorldDNS) {
		flags := ""
		if strings.Contains(a, ":") {
			flags = " nodad"
		}
		Run(t, "ip addr add "+a+" dev world"+flags)
	}
	Run(t, "ip link set world up")
	for _, a := range addrs {
		for _, port := range []uint16{53, 80, 443, 853} {
			for _, proto := range []string{"tcp", "udp"} {
				if _, err := Serve(t, proto, netip.AddrPortFrom(netip.MustParseAddr(a), port)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	conn, err := net.ListenPacket("udp4", WorldDNS+":53")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", WorldDNS+":53")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		_, _ = conn.Close(), l.Close()
		<-done
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.stream(c)
			_ = c.Close()
		}
	}()
	go func() {
		defer close(done)
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if answer := w.answer(buf[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return w
}

// stream answers one question over TCP.
func (w *World) stream(c net.Conn) {
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	question := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, question); err != nil {
		return
	}
	answer := w.answer(question)
	_, _ = c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
}

// Set sets the records of a name: addresses, or the name that it is an alias of.
func (w *World) Set(name string, values ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records[name] = nil
	for _, v := range values {
		a, err := netip.ParseAddr(v)
		switch {
		case err != nil:
			w.records[name] = append(w.records[name], &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(v + ".")})
		case a.Is4():
			w.records[name] = append(w.records[name], &dnsmessage.AResource{A: a.As4()})
		default:
			w.records[name] = append(w.records[name], &dnsmessage.AAAAResource{AAAA: a.As16()})
		}
	}
}

func (w *World) answer(question []byte) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, q := range m.Questions[1:] {
		w.asked = append(w.asked, strings.ToLower(strings.TrimSuffix(q.Name.String(), ".")))
	}
	q := m.Questions[0]
	m.Questions = m.Questions[:1]
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	w.asked = append(w.asked, name)
	if _, ok := w.records[name]; !ok {
		m.RCode = dnsmessage.RCodeNameError
	}
	for at := name; at != ""; {
		next := ""
		for _, body := range w.records[at] {
			h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(at + "."), Class: dnsmessage.ClassINET, TTL: 60}
			switch b := body.(type) {
			case *dnsmessage.AResource:
				if h.Type = dnsmessage.TypeA; q.Type != h.Type {
					continue
				}
			case *dnsmessage.AAAAResource:
				if h.Type = dnsmessage.TypeAAAA; q.Type != h.Type {
					continue
				}
			case *dnsmessage.CNAMEResource:
				h.Type, next = dnsmessage.TypeCNAME, strings.TrimSuffix(b.CNAME.String(), ".")
			}
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: body})
		}
		at = next
	}
	answer, err := m.Pack()
	if err != nil {
		return nil
	}
	return answer
}

// Asked returns the questions that reached the world's name server since the last call.
func (w *World) Asked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.asked
	w.asked = nil
	return list
}
