package splice

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// hello returns the first record of a TLS client.
func hello(t testing.TB, name string) []byte {
	t.Helper()
	here, there := net.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_ = tls.Client(here, &tls.Config{ServerName: name, InsecureSkipVerify: name == ""}).HandshakeContext(ctx)
	}()
	buf := make([]byte, maxHello)
	n, err := there.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_ = there.Close()
	return buf[:n]
}

// inRecords divides the record of a ClientHello.
func inRecords(b []byte, size int) (out []byte) {
	for rest := b[recordHead:]; len(rest) > 0; rest = rest[min(size, len(rest)):] {
		n := min(size, len(rest))
		out = append(append(out, recordHandshake, 3, 1, byte(n>>8), byte(n)), rest[:n]...)
	}
	return out
}

func TestTheNameOfAHello(t *testing.T) {
	whole := hello(t, "api.example.com")
	for _, b := range [][]byte{whole, inRecords(whole, 60), inRecords(whole, 200)} {
		for n := range b {
			if name, need, err := helloName(b[:n]); name != "" || err != nil || need <= n || need > len(b) {
				t.Fatalf("%d of %d bytes: %q %d %v", n, len(b), name, need, err)
			}
		}
		if name, need, err := helloName(b); name != "api.example.com" || need != 0 || err != nil {
			t.Errorf("%q %d %v", name, need, err)
		}
	}
	twice := bytes.Clone(whole)
	at := bytes.Index(twice, []byte("\x00\x00\x00\x14\x00\x12\x00\x00\x0fapi"))
	if at < 0 {
		t.Fatal("the hello has no server name")
	}
	damaged := func(offset int, value byte) []byte {
		b := bytes.Clone(whole)
		b[at+offset] = value
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"no name":                      {hello(t, ""), errNoName},
		"not TLS":                      {[]byte("GET / HTTP/1.1\r\n"), errNotTLS},
		"SSL 2":                        {[]byte{128, 46, 1, 3, 1}, errNotTLS},
		"an alert":                     {[]byte{21, 3, 1, 0, 2, 1, 0}, errNotTLS},
		"another message":              {[]byte{22, 3, 1, 0, 4, 2, 0, 0, 0}, errNotTLS},
		"an empty record":              {[]byte{22, 3, 1, 0, 0}, errMalformed},
		"a record of data in it":       {append(inRecords(whole, 60)[:65], 23, 3, 3, 0, 1), errMalformed},
		"too many records":             {inRecords(whole, 5), errLongHello},
		"a message that is too long":   {[]byte{22, 3, 1, 0, 4, 1, 0, 80, 0}, errLongHello},
		"a record that is too long":    {[]byte{22, 3, 1, 64, 1, 1}, errMalformed},
		"bytes behind the hello":       {append(inRecords(whole, len(whole))[:3:3], append([]byte{byte((len(whole) - 4) >> 8), byte(len(whole) - 4)}, append(bytes.Clone(whole[5:]), 0)...)...), errMalformed},
		"another kind of name":         {damaged(6, 1), errMalformed},
		"a list that is too long":      {damaged(5, 0x13), errMalformed},
		"a name shorter than its list": {damaged(8, 0x0e), errMalformed},
	} {
		if got, _, err := helloName(c.b); got != "" || !errors.Is(err, c.want) {
			t.Errorf("%s: %q %v, want %v", name, got, err, c.want)
		}
	}
}

func FuzzHello(f *testing.F) {
	whole := hello(f, "api.example.com")
	f.Add(whole)
	f.Add(inRecords(whole, 70))
	f.Add(hello(f, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		name, need, err := helloName(b)
		if need != 0 && (need <= len(b) || need > maxHello || err != nil) {
			t.Fatalf("%d more than %d bytes, %v", need, len(b), err)
		}
		if (name != "") != (err == nil && need == 0) {
			t.Fatalf("%q %d %v", name, need, err)
		}
		if name == "" {
			return
		}
		for n := 0; n < len(b); { // as a connection is read
			var early string
			early, need, err = helloName(b[:n])
			if err != nil {
				t.Fatalf("%d of %d bytes: %v", n, len(b), err)
			}
			if need == 0 {
				if early != name {
					t.Fatalf("%q after %d bytes, and %q after all", early, n, name)
				}
				return
			}
			n = need
		}
	})
}

func TestRequests(t *testing.T) {
	const end = "\r\n\r\n"
	for _, c := range []struct {
		text string
		want error
	}{
		{"GET / HTTP/1.1\r\nHost: api.example.com" + end, nil},
		{"GET / HTTP/1.1\r\nhOST:\tAPI.example.com.:80 " + end, nil},
		{"GET http://api.example.com:80?x HTTP/1.1\r\nHost: api.example.com" + end, nil},
		{"OPTIONS * HTTP/1.1\r\nHost: api.example.com" + end, nil},
		{"GET / HTTP/1.1" + end, errNoHost},
		{"GET / HTTP/1.1\r\nHost: api.example.com\r\nHost: x.example" + end, errNoHost},
		{"GET / HTTP/1.1\r\nHost : api.example.com" + end, errRequest},
		{"GET / HTTP/1.1\r\n Host: api.example.com" + end, errRequest},
		{"GET / HTTP/1.1\r\nHost: api.example.com\r\n x.example" + end, errRequest},
		{"GET / HTTP/1.1\nHost: api.example.com\n\n", errRequest},
		{"GET / HTTP/1.1\r\nHost: api.example.com\rHost: x.example" + end, errRequest},
		{"GET / HTTP/1.1\r\nHost: api.example.com:80:x" + end, errRequest},
		{"GET http://x.example/ HTTP/1.1\r\nHost: api.example.com" + end, errTwoHosts},
		{"GET http://x@api.example.com/ HTTP/1.1\r\nHost: api.example.com" + end, errRequest},
		{"GET https://api.example.com/ HTTP/1.1\r\nHost: api.example.com" + end, errRequest},
		{"GET x HTTP/1.1\r\nHost: api.example.com" + end, errRequest},
		{"CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com" + end, errUpgrade},
		{"GET / HTTP/1.1\r\nHost: api.example.com\r\nUpgrade: h2c" + end, errUpgrade},
		{"PRI * HTTP/2.0" + end, errNotHTTP},
		{"GET /\r\n", errNotHTTP},
		{"\r\nGET / HTTP/1.1\r\nHost: api.example.com" + end, errNotHTTP},
		{"POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\nTransfer-Encoding: chunked" + end, errRequest},
		{"POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: 1\r\nContent-Length: 1" + end, errRequest},
		{"POST / HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: +1" + end, errRequest},
		{"POST / HTTP/1.1\r\nHost: api.example.com\r\nTransfer-Encoding: gzip, chunked" + end, errRequest},
		{"POST / HTTP/1.0\r\nHost: api.example.com\r\nTransfer-Encoding: chunked" + end, errRequest},
		{"GET / HTTP/1.1\r\nX: " + strings.Repeat("x", maxLine) + "\r\nHost: api.example.com" + end, errLongHead},
		{"GET / HTTP/1.1\r\n" + strings.Repeat("X: "+strings.Repeat("x", 999)+"\r\n", 17) + "Host: a.example" + end, errLongHead},
		{"GET / HTTP/1.1\r\nHost: api.example.com\r\n", io.ErrUnexpectedEOF},
		{"", io.EOF},
	} {
		h, err := readHead(bufio.NewReaderSize(strings.NewReader(c.text), maxLine))
		if !errors.Is(err, c.want) || err == nil && (h.host != "api.example.com" || string(h.raw) != c.text) {
			t.Errorf("%.200q: %q %v, want %v", c.text, h.host, err, c.want)
		}
	}
	for body, ok := range map[string]bool{
		"3\r\nabc\r\n0\r\n\r\n":                   true,
		"3;x=y\r\nabc\r\n00\r\nX: y\r\n\r\n":      true,
		"3\r\nabcd\r\n0\r\n\r\n":                  false,
		"3\nabc\r\n0\r\n\r\n":                     false,
		"0x3\r\nabc\r\n0\r\n\r\n":                 false,
		"-3\r\nabc\r\n0\r\n\r\n":                  false,
		"3\r\nabc\r\n0\r\nGET / HTTP/1.1\r\n\r\n": false,
		"3\r\nab":                                    false,
		"ffffffffffffffff\r\nabc\r\n0\r\n\r\n":       false,
		"3;" + strings.Repeat("x", maxLine) + "\r\n": false,
	} {
		var out bytes.Buffer
		err := (&head{chunked: true}).body(&out, bufio.NewReaderSize(strings.NewReader(body), maxLine))
		if (err == nil) != ok || ok && out.String() != body {
			t.Errorf("body %.100q: %q %v", body, out.String(), err)
		}
	}
}

func FuzzRequests(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"))
	f.Add([]byte("POST http://a.example/ HTTP/1.1\r\nHost: a.example:80\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.0\r\nHost: b\r\n\r\n"))
	f.Add([]byte("PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: b\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := bufio.NewReaderSize(bytes.NewReader(b), maxLine), bufio.NewReader(bytes.NewReader(b))
		for {
			h, err := readHead(ours)
			if err != nil {
				return
			}
			var body bytes.Buffer
			if h.body(&body, ours) != nil {
				return
			}
			// A server finds the same host and the same end of the request.
			req, err := http.ReadRequest(theirs)
			if err != nil {
				return
			}
			host, ok := hostOf(req.Host)
			if !ok || host != h.host {
				t.Fatalf("the host is %q for us and %q for a server", h.host, req.Host)
			}
			if _, err := io.Copy(io.Discard, req.Body); err != nil {
				return
			}
		}
	})
}

// judge permits one name.
type judge struct{ refused chan string }

func (j judge) Permit(_ context.Context, name string, _ netip.AddrPort) string {
	if name == "api.example.com" {
		return ""
	}
	return "not this one"
}
func (j judge) Keep(string, uint16) bool                          { return false }
func (j judge) Opened(string, netip.AddrPort)                     {}
func (j judge) Refused(_ string, _ netip.AddrPort, reason string) { j.refused <- reason }

func TestASlowHelloIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	j := judge{make(chan string, 1)}
	s := New(j)
	s.patience = time.Millisecond
	client, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T", conn)
	}
	if _, err := client.Write(hello(t, "api.example.com")[:100]); err != nil {
		t.Fatal(err)
	}
	if err := tcp.SetReadDeadline(time.Now().Add(s.patience)); err != nil {
		t.Fatal(err)
	}
	s.tls(nil, &joined{client: tcp, to: netip.MustParseAddrPort("93.184.215.1:443")})
	if got := <-j.refused; got != "no name came in time" {
		t.Errorf("refused: %s", got)
	}
	s.Close()
}

func TestManyConnectionsOfOneLeaveRoomForOthers(t *testing.T) {
	var s shared
	mine := 0
	for range 8 { // greedy sandboxes
		for n := 0; s.take(n); n++ {
			mine++
		}
	}
	if mine >= maxAll {
		t.Errorf("%d connections of eight sandboxes are all", mine)
	}
	if !s.take(0) {
		t.Error("another sandbox has no room")
	}
	s.leave()
}
