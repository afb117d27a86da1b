package names

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func testZone() Zone {
	a, b, six := netip.MustParseAddr("10.1.0.2"), netip.MustParseAddr("10.1.0.3"), netip.MustParseAddr("fd00::3")
	z := Zone{Names: map[string][]netip.Addr{"db": {b, six}, "db.app": {b, six}, "all": {a, b}}, Owners: map[netip.Addr]string{b: "db.app", six: "db.app"}}
	for i := range 600 {
		z.Names["many"] = append(z.Names["many"], netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}))
	}
	return z
}

func question(t testing.TB, name string, kind dnsmessage.Type, edns bool) []byte {
	t.Helper()
	n, err := dnsmessage.NewName(name)
	if err != nil {
		t.Fatal(err)
	}
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: n, Type: kind, Class: dnsmessage.ClassINET}},
	}
	if edns {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(1232, dnsmessage.RCodeSuccess, false); err != nil {
			t.Fatal(err)
		}
		m.Additionals = []dnsmessage.Resource{{Header: h, Body: &dnsmessage.OPTResource{}}}
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// said is an answer in a line: its code, its content, sorted, and whether it was cut.
func said(t *testing.T, answer []byte) string {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(answer); err != nil {
		t.Fatal(err)
	}
	if m.ID != 7 || !m.Response {
		t.Errorf("id %d, an answer: %v", m.ID, m.Response)
	}
	var list []string
	for _, a := range m.Answers {
		switch b := a.Body.(type) {
		case *dnsmessage.AResource:
			list = append(list, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			list = append(list, netip.AddrFrom16(b.AAAA).String())
		case *dnsmessage.PTRResource:
			list = append(list, b.PTR.String())
		}
	}
	slices.Sort(list)
	if len(list) > 3 {
		list = []string{fmt.Sprint(len(list), " addresses")}
	}
	text := strings.TrimPrefix(m.RCode.String(), "RCode") + " " + strings.Join(list, " ")
	if m.Truncated {
		text += "cut"
	}
	return text
}

func TestAnswer(t *testing.T) {
	for name, tc := range map[string]struct {
		question []byte
		stream   bool
		want     string // "" means a request to other servers
	}{
		"a name":                    {question(t, "db.", dnsmessage.TypeA, false), false, "Success 10.1.0.3"},
		"in capitals":               {question(t, "DB.App.", dnsmessage.TypeA, true), false, "Success 10.1.0.3"},
		"of IPv6":                   {question(t, "db.", dnsmessage.TypeAAAA, false), false, "Success fd00::3"},
		"another kind":              {question(t, "db.", dnsmessage.TypeMX, false), false, "Success "},
		"an alias of two":           {question(t, "all.", dnsmessage.TypeA, false), false, "Success 10.1.0.2 10.1.0.3"},
		"without IPv6":              {question(t, "all.", dnsmessage.TypeAAAA, false), false, "Success "},
		"too many":                  {question(t, "many.", dnsmessage.TypeA, true), false, "Success 74 addressescut"},
		"too many for a small one":  {question(t, "many.", dnsmessage.TypeA, false), false, "Success 30 addressescut"},
		"as many as a stream takes": {question(t, "many.", dnsmessage.TypeA, false), true, "Success 512 addresses"},
		"an address":                {question(t, "3.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, false), false, "Success db.app."},
		"an address of IPv6":        {question(t, "3.0.0.0."+strings.Repeat("0.", 24)+"0.0.d.f.ip6.arpa.", dnsmessage.TypePTR, false), false, "Success db.app."},
		"an unknown address":        {question(t, "9.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, false), false, ""},
		"half an address":           {question(t, "1.10.in-addr.arpa.", dnsmessage.TypePTR, false), false, ""},
		"an unknown name":           {question(t, "db2.", dnsmessage.TypeA, false), false, ""},
		"the root":                  {question(t, ".", dnsmessage.TypeA, false), false, ""},
	} {
		answer, err := Answer([]Zone{{}, testZone()}, tc.question, tc.stream)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := ""
		if answer != nil {
			got = said(t, answer)
		}
		if got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	// Of many, each is in some answer.
	seen := map[netip.Addr]bool{}
	for range 100 {
		answer, err := Answer([]Zone{testZone()}, question(t, "many.", dnsmessage.TypeA, false), true)
		var m dnsmessage.Message
		if err == nil {
			err = m.Unpack(answer)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range m.Answers {
			seen[netip.AddrFrom4(a.Body.(*dnsmessage.AResource).A)] = true //nolint:forcetypeassert // all are
		}
	}
	if len(seen) != 600 {
		t.Errorf("%d of 600 are in no answer", 600-len(seen))
	}
	good := question(t, "db.", dnsmessage.TypeA, false)
	for name, change := range map[string]func(b []byte) []byte{
		"nothing":       func([]byte) []byte { return nil },
		"half a header": func(b []byte) []byte { return b[:7] },
		"an answer":     func(b []byte) []byte { b[2] |= 0x80; return b },
	} {
		if answer, err := Answer([]Zone{testZone()}, change(slices.Clone(good)), false); err == nil {
			t.Errorf("%s has the answer %q", name, answer)
		}
	}
	for want, change := range map[string]func(b []byte) []byte{
		"NotImplemented ": func(b []byte) []byte { b[2] |= 0x28; return b }, // an update
		"FormatError ":    func(b []byte) []byte { return b[:13] },
	} {
		answer, err := Answer([]Zone{testZone()}, change(slices.Clone(good)), false)
		if err != nil || said(t, answer) != want {
			t.Errorf("want %q, got %q, %v", want, answer, err)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"db.", "many.", "3.0.1.10.in-addr.arpa.", "1.ip6.arpa."} {
		f.Add(question(f, name, dnsmessage.TypeA, true), true)
		f.Add(question(f, name, dnsmessage.TypePTR, false), false)
	}
	f.Add(append(question(f, "db.", dnsmessage.TypeA, false), make([]byte, maxUDP)...), false)
	f.Add(question(f, strings.Repeat(strings.Repeat("x", 62)+".", 4), dnsmessage.TypeA, true), false)
	f.Add(question(f, "\x00.db.", dnsmessage.TypeAAAA, true), false)
	f.Add(question(f, "9.0.1.10.in-addr.arpa.", dnsmessage.TypePTR, true), true)                // an owner with a bad name
	f.Add(append(question(f, "db.", dnsmessage.TypeA, false)[:12], 0xc0, 12, 0, 1, 0, 1), true) // a name that leads to itself
	zones := []Zone{testZone()}
	zones[0].Owners[netip.MustParseAddr("10.1.0.9")] = "a..b"
	asked := question(f, "db.", dnsmessage.TypeA, false)
	f.Fuzz(func(t *testing.T, q []byte, stream bool) {
		if said := cut(q); answers(asked, q) && len(said) > 2 && said[2]&2 == 0 {
			t.Errorf("%x is not cut", said)
		}
		answer, err := Answer(zones, q, stream)
		if err != nil {
			return
		}
		if answer == nil { // other servers decide, and may not answer
			answer = failed(q)
		}
		if limit := 1<<16 - 1; len(answer) > limit || !stream && len(answer) > maxUDP {
			t.Errorf("an answer of %d bytes", len(answer))
		}
		var m dnsmessage.Message
		if err := m.Unpack(answer); err != nil || !m.Response {
			t.Errorf("%x is answered %x: %v", q, answer, err)
		}
	})
}
